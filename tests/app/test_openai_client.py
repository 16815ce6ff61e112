"""The official client, async and sync, in each dialect."""

from __future__ import annotations

import asyncio

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from app.dialects import DialectName
from app.errors import Overloaded
from tests.app.api import Api
from tests.app.conftest import MakeApi
from tests.app.scripted_graph import Script
from tests.tiny_tokenizers import SERVED_NAME

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Say hello."},
]


class SyncTransport(httpx2.BaseTransport):
    """The app behind a client without an event loop: each request gets a loop of its own."""

    def __init__(self, api: Api) -> None:
        self._asgi = httpx2.ASGITransport(api.app, raise_app_exceptions=False)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        async def answer() -> httpx2.Response:
            response = await self._asgi.handle_async_request(request)
            content = await response.aread()
            return httpx2.Response(response.status_code, headers=response.headers, content=content)

        return asyncio.run(answer())


def async_client(api: Api) -> AsyncOpenAI:
    transport = httpx2.ASGITransport(api.app, raise_app_exceptions=False)
    http = httpx2.AsyncClient(transport=transport)
    return AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0)


def sync_client(api: Api) -> OpenAI:
    http = httpx2.Client(transport=SyncTransport(api))
    return OpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0)


async def test_async_chat(api: Api) -> None:
    answer = await async_client(api).chat.completions.create(
        model=SERVED_NAME, messages=MESSAGES, max_tokens=150, temperature=0.7, extra_body={"top_k": 50}
    )
    assert answer.choices[0].message.content == "Hello world"
    assert (answer.choices[0].message.role, answer.choices[0].finish_reason) == ("assistant", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert api.graph.requests[0].params.top_k == 50


async def test_async_chat_stream(api: Api) -> None:
    chunks = [
        chunk
        async for chunk in await async_client(api).chat.completions.create(
            model=SERVED_NAME,
            messages=MESSAGES,
            max_completion_tokens=50,
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    *with_choice, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in with_choice) == "Hello world"
    assert with_choice[0].choices[0].delta.role == "assistant"
    assert with_choice[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None


async def test_async_completions(api: Api) -> None:
    client = async_client(api)
    answer = await client.completions.create(model=SERVED_NAME, prompt=["Once", "Twice"], n=2)
    assert [choice.text for choice in answer.choices] == ["Hello world"] * 4
    stream = await client.completions.create(model=SERVED_NAME, prompt="Once", stream=True)
    texts = [choice.text async for chunk in stream for choice in chunk.choices]
    assert "".join(texts) == "Hello world"


def test_sync_chat(api: Api) -> None:
    client = sync_client(api)
    answer = client.chat.completions.create(model=SERVED_NAME, messages=MESSAGES, n=2)
    assert [choice.message.content for choice in answer.choices] == ["Hello world"] * 2
    stream = client.chat.completions.create(model=SERVED_NAME, messages=MESSAGES, stream=True)
    deltas = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    assert "".join(deltas) == "Hello world"


def test_sync_completions(api: Api) -> None:
    client = sync_client(api)
    answer = client.completions.create(model=SERVED_NAME, prompt="Once")
    assert answer.choices[0].text == "Hello world"
    stream = client.completions.create(model=SERVED_NAME, prompt="Once", stream=True)
    assert "".join(choice.text for chunk in stream for choice in chunk.choices) == "Hello world"


async def test_models(api: Api) -> None:
    client = async_client(api)
    (model,) = [model async for model in client.models.list()]
    assert model.id == SERVED_NAME
    assert await client.models.retrieve(SERVED_NAME) == model
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nope")


async def test_a_wrong_field_is_the_clients_own_exception(api: Api) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await async_client(api).chat.completions.create(model=SERVED_NAME, messages=MESSAGES, temperature=9)
    assert caught.value.status_code == api.schema_status
    if api.dialect.openai_errors:
        assert isinstance(caught.value, openai.BadRequestError)
        assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    else:
        assert isinstance(caught.value, openai.UnprocessableEntityError)


@pytest.mark.parametrize("stream", [True, False])
async def test_another_model(api: Api, stream: bool) -> None:
    request = async_client(api).completions.create(model="nope", prompt="x", stream=stream)
    if api.dialect.checks_model:
        with pytest.raises(openai.NotFoundError) as caught:
            await request
        assert caught.value.code == "model_not_found"
    else:
        await request


@pytest.mark.parametrize("stream", [True, False])
async def test_overload_is_a_rate_limit_error(api: Api, stream: bool) -> None:
    api.graph.accept_error = Overloaded(429, 3)
    with pytest.raises(openai.RateLimitError) as caught:
        await async_client(api).completions.create(model=SERVED_NAME, prompt="x", stream=stream)
    assert caught.value.response.headers["retry-after"] == "3"


async def test_an_error_midway_is_raised_while_the_stream_is_read(
    make_api: MakeApi, dialect: DialectName
) -> None:
    api = make_api(dialect)
    api.graph.scripts = [Script(api.ids("abc"), raises=RuntimeError("inside"))]
    stream = await async_client(api).chat.completions.create(
        model=SERVED_NAME, messages=MESSAGES, stream=True
    )
    received: list[str] = []

    async def read() -> None:
        async for chunk in stream:
            received.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError, match="Internal server error"):
        await read()
    assert "".join(received) == "abc"
