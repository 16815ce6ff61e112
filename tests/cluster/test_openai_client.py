"""The official client, sync and async, in every dialect; the text is what transformers generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import openai
import pytest
import torch
from openai import AsyncOpenAI, OpenAI

from app.dialects import DialectName
from deployments.engine.config import ModelConfig
from deployments.engine.loader import load_model, load_tokenizer
from tests.cluster.serve_cluster import ServedApp, read_config

pytestmark = pytest.mark.real_model

MODEL = "SmolLM2-135M-Instruct"
Client = OpenAI | AsyncOpenAI
Generate = Callable[[str, str, int], str]

CONTINUED = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time", "1, 2, 3, 4,"]
ASKED = ["What is the capital of France?", "Write a haiku about rain. 🌧"]


@pytest.fixture(scope="module")
def generate() -> Generate:
    """What transformers answers greedily in float32 to a prompt on a route."""
    (app,) = read_config("app.yaml")["applications"]
    config = ModelConfig(source=app["args"]["model"]["source"])
    tokenizer = load_tokenizer(config)
    model = load_model(config, torch.float32, torch.device("cpu"), "sdpa")

    @cache
    def answer(route: str, prompt: str, num_tokens: int) -> str:
        if route == "chat":
            messages = [{"role": "user", "content": prompt}]
            prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([tokenizer(prompt, add_special_tokens=route != "chat")["input_ids"]])
        mask = torch.ones_like(ids)
        tokens = model.generate(ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False)
        text: str = tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True)
        return text

    return answer


@pytest.fixture(params=[OpenAI, AsyncOpenAI], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, real_app: ServedApp) -> Client:
    client: Client = request.param(base_url=real_app.v1, api_key="none", max_retries=0, timeout=60)
    return client


@pytest.fixture
def sync_client(real_app: ServedApp) -> Iterator[OpenAI]:
    with OpenAI(base_url=real_app.v1, api_key="none", max_retries=0, timeout=60) as client:
        yield client


async def ask(client: Client, route: str, prompt: str, stream: bool, **fields: Any) -> list[Any]:
    """The client's chunks, or its one answer."""
    resource = client.chat.completions if route == "chat" else client.completions
    given = {"messages": [{"role": "user", "content": prompt}]} if route == "chat" else {"prompt": prompt}
    answer = resource.create(model=MODEL, stream=stream, **given, **fields)
    if isinstance(client, AsyncOpenAI):
        answer = await answer
        return [chunk async for chunk in answer] if stream else [answer]
    return list(answer) if stream else [answer]


def text_of(chunks: Sequence[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    parts = (getattr(choice, "delta", None) or getattr(choice, "message", None) for choice in choices)
    return "".join(
        (part.content if part else getattr(choice, "text", None)) or ""
        for choice, part in zip(choices, parts, strict=True)
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("route", ["chat", "completions"])
async def test_the_client_gets_what_transformers_generates(
    client: Client, generate: Generate, route: str, stream: bool
) -> None:
    prompt = ASKED[0] if route == "chat" else CONTINUED[0]
    chunks = await ask(client, route, prompt, stream, max_tokens=12, temperature=0)
    assert text_of(chunks) == generate(route, prompt, 12) != ""
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["stop" if route == "chat" else "length"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("route", "prompt"), [*(("completions", prompt) for prompt in CONTINUED), ("chat", ASKED[1])]
)
async def test_varied_prompts_get_what_transformers_generates(
    real_apps: dict[DialectName, ServedApp], generate: Generate, route: str, prompt: str, stream: bool
) -> None:
    client = OpenAI(base_url=real_apps["openai"].v1, api_key="none", max_retries=0)
    chunks = await ask(client, route, prompt, stream, max_tokens=16, temperature=0)
    assert text_of(chunks) == generate(route, prompt, 16)


@pytest.mark.parametrize("route", ["chat", "completions"])
async def test_several_choices_are_the_same_streamed_and_whole(sync_client: OpenAI, route: str) -> None:
    fields = {"n": 2, "temperature": 0.9, "seed": 5, "max_tokens": 8}
    whole = await ask(sync_client, route, "Tell me a story", False, **fields)
    chunks = await ask(sync_client, route, "Tell me a story", True, **fields)
    assert [choice.index for choice in whole[0].choices] == [0, 1]
    assert text_of(whole, 0) != text_of(whole, 1)
    assert [text_of(chunks, i) for i in range(2)] == [text_of(whole, i) for i in range(2)]


@pytest.mark.parametrize("include_usage", [True, False, None])
async def test_usage_ends_a_stream_where_it_is_wanted(
    sync_client: OpenAI, dialect: DialectName, include_usage: bool | None
) -> None:
    fields: dict[str, Any] = {"max_tokens": 5, "temperature": 0}
    (whole,) = await ask(sync_client, "chat", "Hello", False, **fields)
    if include_usage is not None:
        fields["stream_options"] = {"include_usage": include_usage}
    chunks = await ask(sync_client, "chat", "Hello", True, **fields)
    expected = dialect == "pypto-serving" if include_usage is None else include_usage
    assert [chunk.usage for chunk in chunks if chunk.usage] == ([whole.usage] if expected else [])
    assert (chunks[-1].choices == []) == expected
    assert whole.usage.completion_tokens == 5


async def test_models_are_listed_and_retrieved(client: Client) -> None:
    listed, retrieved = client.models.list(), client.models.retrieve(MODEL)
    if isinstance(client, AsyncOpenAI):
        (model,), same = [model async for model in listed], await retrieved
    else:
        (model,), same = list(listed), retrieved
    assert model.id == MODEL
    assert (model.object, model.owned_by, model.model_dump()["max_model_len"]) == (
        "model",
        "servegraph",
        8192,
    )
    assert same == model


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": 5.0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_field_out_of_range_is_the_error_of_its_dialect(
    client: Client, dialect: DialectName, fields: dict[str, Any], named: str, stream: bool
) -> None:
    error = openai.BadRequestError if dialect == "openai" else openai.UnprocessableEntityError
    with pytest.raises(error) as caught:
        await ask(client, "completions", "x", stream, **fields)
    assert named in caught.value.response.text
    if dialect == "openai":
        assert caught.value.type == "invalid_request_error"
        assert caught.value.param.startswith(named)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_prompt_beyond_the_context_is_a_bad_request(client: Client, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match=r"tokens.*8192"):
        await ask(client, "completions", "hello " * 9000, stream)


async def test_what_is_not_supported_is_a_bad_request(sync_client: OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(openai.BadRequestError, match="tools"):
        await ask(sync_client, "chat", "x", False, tools=[tool])


def test_a_model_that_is_not_served_is_not_found_or_only_a_label(
    sync_client: OpenAI, dialect: DialectName
) -> None:
    with pytest.raises(openai.NotFoundError, match="nope"):
        sync_client.models.retrieve("nope")
    if dialect == "openai":
        with pytest.raises(openai.NotFoundError, match="nope") as caught:
            sync_client.completions.create(model="nope", prompt="x", max_tokens=1)
        assert caught.value.code == "model_not_found"
    else:
        assert sync_client.completions.create(model="nope", prompt="x", max_tokens=1).model == "nope"
