"""Shapes of answers: each row of the table of differences, in each dialect, streamed and not."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import pytest

from app.dialects import DIALECTS, DialectName
from deployments.engine.config import GenerateConfig
from tests.app.api import CHAT, COMPLETIONS, ROUTES, Api, Json, error_message, valid_body
from tests.app.conftest import MakeApi
from tests.tiny_tokenizers import SERVED_NAME


@dataclass(frozen=True)
class Row:
    """What the documents, or OpenAI's, say; not read from the code's own table."""

    max_tokens: int
    """Where the request says nothing and the server's generation config says 77."""
    temperature: float
    """Likewise, with 0.25."""
    usage_unasked: bool
    chunk_object: str
    id_prefix: str
    role_on_every_delta: bool
    prompt_on_chat: bool
    ignores_eos: bool
    schema_status: int
    unknown_model: int


ROWS: dict[DialectName, Row] = {
    "pypto-serving": Row(77, 0.25, True, "chat.completion.chunk", "chatcmpl-", True, True, True, 422, 200),
    "mini-sglang": Row(16, 1.0, False, "text_completion.chunk", "cmpl-", False, True, False, 422, 200),
    "openai": Row(77, 1.0, False, "chat.completion.chunk", "chatcmpl-", False, False, False, 400, 404),
}
SERVER = GenerateConfig(max_new_tokens=77, temperature=0.25)
USAGE = {"prompt_tokens": 15, "completion_tokens": 3, "total_tokens": 18}  # of HI, and "ab" with EOS


@pytest.fixture
def row(dialect: DialectName) -> Row:
    return ROWS[dialect]


@pytest.fixture
def ab(make_api: MakeApi, dialect: DialectName) -> Api:
    """Answers the tokens "a" and "b"."""
    return make_api(dialect, "ab", generation=SERVER)


def test_every_dialect_has_a_row() -> None:
    assert DIALECTS.keys() == ROWS.keys()


@pytest.mark.parametrize("route", ROUTES)
async def test_defaults(ab: Api, row: Row, route: str) -> None:
    await ab.ask(route)
    params = ab.graph.requests[0].params
    assert (params.max_tokens, params.temperature) == (row.max_tokens, row.temperature)


async def test_chat_answer(ab: Api, row: Row) -> None:
    before = int(time.time())
    answer = await ab.ask(CHAT)
    assert re.fullmatch(row.id_prefix + "[0-9a-f]{32}", answer.pop("id"))
    assert before <= answer.pop("created") <= time.time()
    assert answer == {
        "object": "chat.completion",
        "model": SERVED_NAME,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }


async def test_completion_answer(ab: Api, row: Row) -> None:
    answer = await ab.ask(COMPLETIONS)
    assert re.fullmatch("cmpl-[0-9a-f]{32}", answer.pop("id"))
    assert isinstance(answer.pop("created"), int)
    num_tokens = 2 if row.ignores_eos else 3
    reason = "length" if row.ignores_eos else "stop"
    assert answer == {
        "object": "text_completion",
        "model": SERVED_NAME,
        "choices": [{"index": 0, "text": "ab", "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1 + num_tokens},
    }


def without_envelope(events: list[Json], kind: str, id_prefix: str) -> list[Json]:
    """The events without what they share, which is checked."""
    envelopes = [{key: event.pop(key) for key in ("id", "object", "created", "model")} for event in events]
    assert all(envelope == envelopes[0] for envelope in envelopes)
    assert (envelopes[0]["object"], envelopes[0]["model"]) == (kind, SERVED_NAME)
    assert envelopes[0]["id"].startswith(id_prefix)
    return events


def deltas(*choices: tuple[Json, str | None]) -> list[Json]:
    return [{"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} for delta, reason in choices]


async def test_chat_stream(ab: Api, row: Row) -> None:
    events = without_envelope(await ab.stream(CHAT), row.chunk_object, row.id_prefix)
    usage = [{"choices": [], "usage": USAGE}] if row.usage_unasked else []
    role = {"role": "assistant"}
    if row.role_on_every_delta:
        texts = [({**role, "content": text}, None) for text in "ab"]
        assert events == [*deltas(*texts, ({**role, "content": ""}, "stop")), *usage]
    else:
        texts = [({"content": text}, None) for text in "ab"]
        assert events == [*deltas((role, None), *texts, ({}, "stop")), *usage]


async def test_completion_stream(ab: Api, row: Row) -> None:
    events = without_envelope(await ab.stream(COMPLETIONS), "text_completion", "cmpl-")
    reason = "length" if row.ignores_eos else "stop"
    texts = [("a", None), ("b", None), ("", reason)]
    expected: list[Json] = [
        {"choices": [{"index": 0, "text": text, "finish_reason": reason}]} for text, reason in texts
    ]
    if row.usage_unasked:
        num_tokens = 2 if row.ignores_eos else 3
        usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1 + num_tokens}
        expected.append({"choices": [], "usage": usage})
    assert events == expected


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ({"include_usage": None}, None),
        ({}, None),
        (None, None),
    ],
)
async def test_usage_event(ab: Api, row: Row, route: str, options: Json | None, asked: bool | None) -> None:
    events = await ab.stream(route, stream_options=options)
    wanted = row.usage_unasked if asked is None else asked
    assert [event["choices"] == [] for event in events if "usage" in event] == [True] * wanted
    assert ("usage" in events[-1]) is wanted


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("messages", [None, [], "absent"])  # with messages: see test_messages
async def test_raw_prompt_on_the_chat_route(ab: Api, row: Row, stream: bool, messages: Any) -> None:
    body = {"prompt": "Once", "stream": stream} | ({} if messages == "absent" else {"messages": messages})
    response = await ab.post(CHAT, body)
    if row.prompt_on_chat:
        assert response.status_code == 200
        assert [prompt.text for prompt in ab.graph.prompts] == ["Once"]
        assert row.chunk_object in response.text if stream else '"message":' in response.text
    else:
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt"
        assert ab.graph.requests == []


@pytest.mark.parametrize(("asked", "chat"), [(True, True), (False, False), (None, True)])
async def test_ignore_eos(
    make_api: MakeApi, dialect: DialectName, row: Row, asked: bool | None, chat: bool
) -> None:
    """The server's config says to ignore EOS; a request on a route that obeys it may say otherwise."""
    api = make_api(dialect, generation=GenerateConfig(ignore_eos=True))
    await api.ask(CHAT, ignore_eos=asked)
    await api.ask(COMPLETIONS, ignore_eos=asked)
    ignored = [request.params.ignore_eos for request in api.graph.requests]
    assert ignored == [chat, True if row.ignores_eos else chat]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
async def test_form_of_errors(ab: Api, row: Row, route: str, stream: bool) -> None:
    schema = await ab.post(route, valid_body(route, temperature="hot", stream=stream))
    refusal = await ab.post(route, valid_body(route, min_tokens=9, max_tokens=8, stream=stream))
    assert (schema.status_code, refusal.status_code) == (row.schema_status, 400)
    if row.schema_status == 400:
        assert schema.json()["error"]["param"] == "temperature"
        assert refusal.json()["error"]["param"] == "min_tokens"
    else:
        assert schema.json()["detail"][0]["loc"] == ["body", "temperature"]
    assert "min_tokens" in error_message(refusal)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["nope", "tiny ", "Tiny", "a/b%2F", "x" * 1024, "\0"])
async def test_model_names_another_model(ab: Api, row: Row, route: str, stream: bool, model: str) -> None:
    response = await ab.post(route, valid_body(route, model=model, stream=stream))
    assert response.status_code == row.unknown_model
    if row.unknown_model == 404:
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
    elif not stream:
        assert response.json()["model"] == model
    await ab.assert_still_works()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("model", "label"), [(None, SERVED_NAME), (SERVED_NAME, SERVED_NAME)])
async def test_label_of_the_served_model(ab: Api, route: str, model: str | None, label: str) -> None:
    assert (await ab.ask(route, model=model))["model"] == label
    assert {event["model"] for event in await ab.stream(route, model=model)} == {label}
