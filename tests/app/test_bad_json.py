"""Bodies that are not JSON, or not an object: a short answer in the dialect's form, and nothing left over."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.api import ROUTES, Api, read_events, valid_body

BROKEN = {
    "empty": b"",
    "open": b"{",
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "number": b"1",
    "trailing-comma": b'{"model":"m",}',
    "trailing-text": b'{"prompt":"x"}x',
    "single-quotes": b"{'prompt':'x'}",
    "gzip": gzip.compress(b'{"prompt":"x"}'),
    "byte-order-mark": b'\xef\xbb\xbf{"prompt":"x"}',
    "utf-16": '{"prompt":"x"}'.encode("utf-16"),
    "nested-arrays": b"[" * 10_000,
    "nested-and-closed": b"[" * 10_000 + b"]" * 10_000,
    "nested-objects": b'{"messages":' * 5_000,
    "invalid-utf-8": b'{"prompt":"\xff\xfe"}',
    "overlong-utf-8": b'{"prompt":"\xc0\x80"}',
    "nan": b'{"temperature":NaN}',
    "infinity": b'{"temperature":Infinity}',
    "minus-infinity": b'{"temperature":-Infinity}',
    "control-character": b'{"prompt":"a\x00b"}',
    "form": b"prompt=x",
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_body_is_refused_in_few_words(api: Api, route: str, body: bytes) -> None:
    response = await api.post_raw(route, body)
    assert response.status_code == api.schema_status
    assert len(response.content) < 500
    if api.dialect.openai_errors:
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", None)
    else:
        assert response.json()["detail"][0]["loc"][0] == "body"
    await api.assert_still_works()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "bad", "", None])
async def test_a_body_that_does_not_say_that_it_is_json(
    api: Api, route: str, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = await api.http.post(route, content=json.dumps(valid_body(route)).encode(), headers=headers)
    assert response.status_code == api.schema_status
    await api.assert_still_works()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_last_of_duplicate_keys_counts(api: Api, route: str, stream: bool) -> None:
    body = json.dumps(valid_body(route, stream=stream))[1:]
    response = await api.post_raw(route, b'{"max_tokens":1,"max_tokens":2,"stream":7,' + body.encode())
    assert response.status_code == 200
    assert api.graph.requests[0].params.max_tokens == 2
    if stream:
        assert read_events(response)


STRINGS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "@"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "@"}]}]},
        {"messages": [{"role": "user", "content": "x", "name": "@"}]},
        {"messages": [{"role": "@", "content": "x"}]},
        {"tools": [{"type": "function", "function": {"name": "@"}}]},
        {"tool_choice": "@"},
        {"chat_template_kwargs": {"@": "@"}},
        {"reasoning_effort": "@"},
    ],
    "/v1/completions": [
        {"prompt": "@"},
        {"prompt": ["x", "@"]},
        {"suffix": "@"},
    ],
}
ANYWHERE: list[dict[str, Any]] = [
    {"model": "@"},
    {"stop": "@"},
    {"stop": ["x", "@"]},
    {"user": "@"},
    {"logit_bias": {"@": 1}},
    {"response_format": {"type": "@"}},
    {"unknown": "@"},
    {"@": 1},
]


def bodies_with(text: str) -> Iterator[tuple[str, bytes]]:
    """A body for each place where a string may stand, with this piece of JSON text in it."""
    for route in ROUTES:
        for fields in STRINGS[route] + ANYWHERE:
            yield route, json.dumps(valid_body(route, **fields)).replace("@", text).encode()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("surrogate", [r"a\ud800b", r"\udc00", r"\udc00\ud800", r"\ud83d", r"\ud83dx"])
async def test_a_lone_surrogate_anywhere_is_refused(api: Api, surrogate: str, stream: bool) -> None:
    """Case 57: no text that cannot be encoded as UTF-8 gets behind the parser."""
    for route, body in bodies_with(surrogate):
        response = await api.post_raw(route, body[:-1] + b',"stream":%s}' % json.dumps(stream).encode())
        assert response.status_code == api.schema_status, body
    assert api.graph.requests == []
    await api.assert_still_works()


@pytest.mark.parametrize(
    "text", [r"\u0000", r"\u001b[2J", r"\u202e", r"\uffff", r"\ud83d\ude42", "🙂", r"\ufffd"]
)
async def test_control_characters_and_pairs_of_surrogates_never_fail(api: Api, text: str) -> None:
    for route, body in bodies_with(text):
        response = await api.post_raw(route, body)
        assert response.status_code in (200, 400, 404, api.schema_status), response.text
        response.json()
    await api.assert_still_works()


async def test_control_characters_reach_the_prompt(api: Api) -> None:
    await api.ask("/v1/completions", prompt="a\0b\x1b")
    assert api.graph.prompts[0].text == "a\0b\x1b"
