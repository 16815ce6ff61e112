"""Server-sent events: framing and headers, and errors before and after the first event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.dialects import DialectName
from app.errors import ApiError, Overloaded, ServerError, Unavailable
from deployments.engine.request import FinishReason
from deployments.wire import GenerateRequest, TextChunk
from tests.app.api import CHAT, ROUTES, Api, Json, error_message, read_events, text_of, valid_body
from tests.app.conftest import MakeApi
from tests.app.scripted_graph import Script

SECRET = RuntimeError("/srv/secret.py: object at 0x7f12ab34cd56")
INTERNAL = {"message": "Internal server error", "type": "internal_server_error", "param": None, "code": 500}


async def post(api: Api, route: str, stream: bool, **fields: Any) -> httpx.Response:
    return await api.post(route, valid_body(route, stream=stream, **fields))


@pytest.mark.parametrize("route", ROUTES)
async def test_headers_keep_proxies_from_buffering(api: Api, route: str) -> None:
    response = await post(api, route, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers


@pytest.mark.parametrize("route", ROUTES)
async def test_each_event_is_sent_by_itself(api: Api, route: str) -> None:
    """Nothing is collected: one message to the server for each event."""
    body = json.dumps(valid_body(route, stream=True)).encode()
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": route, "query_string": b"", "headers": headers}
    sent: list[Json] = []

    async def receive() -> Json:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await api.app({**scope, "asgi": {"version": "3.0", "spec_version": "2.4"}}, receive, send)
    assert sent[0]["status"] == 200
    *events, last = [message["body"] for message in sent[1:]]
    assert last == b""
    assert len(events) > 3
    for event in events:
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert event.count(b"\n") == 2


@pytest.mark.parametrize("route", ROUTES)
async def test_text_that_looks_like_framing_stays_text(
    make_api: MakeApi, dialect: DialectName, route: str
) -> None:
    text = 'data: [DONE]\n\n\r\n\rid: 1\x85\u2028\u2029"\\ \x00 event: end'
    api = make_api(dialect, text)
    assert text_of(await api.stream(route, max_tokens=200)) == text


@pytest.mark.parametrize("route", ROUTES)
async def test_an_event_of_more_than_64_kb_stays_whole(
    api: Api, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "é\n" * 100_000

    async def stream(request: GenerateRequest) -> AsyncIterator[TextChunk]:
        yield TextChunk(text, 1, "stop")

    monkeypatch.setattr(api.graph, "stream", stream)
    assert text_of(await api.stream(route)) == text


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ({"raises": SECRET}, INTERNAL),
        ({"end": FinishReason.ERROR}, INTERNAL),
        ({"raises": ServerError("The replica died")}, {**INTERNAL, "message": "The replica died"}),
        (
            {"raises": Unavailable()},
            {
                "message": "No replica can serve the request now",
                "type": "service_unavailable_error",
                "param": None,
                "code": 503,
            },
        ),
    ],
    ids=["exception", "engine", "server-error", "unavailable"],
)
async def test_an_error_midway_is_one_event_before_done(
    make_api: MakeApi, dialect: DialectName, route: str, script: dict[str, Any], error: Json
) -> None:
    """Cases 67, 69, 71: no finish reason that did not happen, no usage, nothing of what went wrong inside."""
    api = make_api(dialect)
    api.graph.scripts = [Script(api.ids("abc"), **script)]
    response = await post(api, route, stream=True, stream_options={"include_usage": True})
    *events, last = read_events(response)
    assert last == {"error": error}
    assert text_of(events) == "abc"
    assert all(choice["finish_reason"] is None for event in events for choice in event["choices"])
    assert not any("usage" in event for event in events)
    assert "secret" not in response.text
    assert "0x7f" not in response.text
    api.graph.scripts = [Script(api.ids("abc"))]
    await api.assert_still_works()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        (Script([], raises=SECRET), 500, "Internal server error"),
        (Script([], end=FinishReason.ERROR), 500, "Internal server error"),
        (Script([], raises=Unavailable()), 503, "No replica can serve the request now"),
        (Script([], refusal="the prompt does not fit"), 400, "the prompt does not fit"),
    ],
    ids=["exception", "engine", "unavailable", "refusal"],
)
async def test_an_error_before_the_first_event_has_its_own_status(
    make_api: MakeApi,
    dialect: DialectName,
    route: str,
    stream: bool,
    script: Script,
    status: int,
    message: str,
) -> None:
    api = make_api(dialect, script)
    response = await post(api, route, stream)
    assert (response.status_code, error_message(response)) == (status, message)
    assert response.headers["content-type"] == "application/json"
    api.graph.scripts = [Script(api.ids("abc"))]
    await api.assert_still_works()


async def test_an_error_after_the_first_tokens_of_a_whole_answer(
    make_api: MakeApi, dialect: DialectName
) -> None:
    api = make_api(dialect)
    for script in (
        Script(api.ids("abc"), raises=SECRET),
        Script(api.ids("abc"), end=FinishReason.ERROR),
    ):
        api.graph.scripts = [script]
        response = await post(api, CHAT, stream=False)
        assert (response.status_code, error_message(response)) == (500, "Internal server error")
    api.graph.scripts = [Script(api.ids("abc"))]
    await api.assert_still_works()


@pytest.mark.parametrize("reason", [FinishReason.ABORTED, FinishReason.LENGTH])
async def test_an_end_that_is_no_error_is_a_finish_reason(
    make_api: MakeApi, dialect: DialectName, reason: FinishReason
) -> None:
    api = make_api(dialect)
    api.graph.scripts = [Script(api.ids("abc"), end=reason)]
    answer = await api.ask(CHAT)
    events = await api.stream(CHAT)
    assert answer["choices"][0]["finish_reason"] == reason.value
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert [given for given in reasons if given] == [reason.value]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["encode_error", "accept_error"])
@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [(Overloaded(503, 2.4), 503, "2"), (Overloaded(429, None), 429, "1"), (Unavailable(), 503, "1")],
    ids=["503", "429", "unavailable"],
)
async def test_overload_says_when_to_come_again(
    api: Api, route: str, stream: bool, where: str, error: ApiError, status: int, retry_after: str
) -> None:
    setattr(api.graph, where, error)
    response = await post(api, route, stream, n=2)
    assert (response.status_code, response.headers["retry-after"]) == (status, retry_after)
    assert error_message(response) == error.message
    setattr(api.graph, where, None)
    await api.assert_still_works()
