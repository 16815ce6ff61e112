"""A client that goes away, or no longer reads: every choice's work ends with its request."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, Literal

import pytest

from app.dialects import DialectName
from tests.app.api import ROUTES, Api, valid_body
from tests.app.conftest import MakeApi
from tests.app.scripted_graph import Script

WAIT_S = 10
Way = Literal["cancelled", "disconnect message", "broken pipe"]


class Client:
    """One request straight to the ASGI app, whose client may close the connection or stop reading."""

    def __init__(self, api: Api, route: str, spec_version: str = "2.3", **fields: Any) -> None:
        self._body = json.dumps(valid_body(route, **fields)).encode()
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec_version},
            "method": "POST",
            "path": route,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        self._sent_body = False
        self._gone = asyncio.Event()
        self._broken = False
        self._reads = asyncio.Event()
        self._reads.set()
        self.blocked = asyncio.Event()
        self.num_messages = 0
        self.task = asyncio.ensure_future(api.app(self._scope, self._receive, self._send))

    async def leave(self, way: Way) -> None:
        """Close the connection, and wait until the app is done with the request."""
        if way == "cancelled":  # what Serve does with the call
            self.task.cancel()
        elif way == "disconnect message":
            self._gone.set()
        else:
            self._broken = True
            self._reads.set()
        with suppress(asyncio.CancelledError, Exception):
            await asyncio.wait_for(self.task, WAIT_S)

    def stop_reading(self) -> None:
        self._reads.clear()

    async def _receive(self) -> dict[str, Any]:
        if self._sent_body:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        self._sent_body = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _send(self, message: Any) -> None:
        if not self._reads.is_set():
            self.blocked.set()
            await self._reads.wait()
        if self._broken:
            raise OSError("broken pipe")
        self.num_messages += 1


async def until_hung(api: Api, number: int) -> None:
    """Wait until so many choices have given all their tokens, and go on without an end."""
    for _ in range(number):
        await asyncio.wait_for(api.graph.hung.get(), WAIT_S)


def assert_closed(api: Api, number: int) -> None:
    """At once, not when the garbage collector finds the generators."""
    assert api.graph.live == set()
    assert len(set(api.graph.unfinished)) == number


def endless(make_api: MakeApi, dialect: DialectName, text: str) -> Api:
    """Generates the text and then goes on for ever without a token."""
    api = make_api(dialect)
    api.graph.scripts = [Script(api.ids(text), hangs=True)]
    return api


async def assert_recovers(api: Api) -> None:
    api.graph.scripts = [Script(api.ids("abc"))]
    await api.assert_still_works()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("text", ["", "abc"], ids=["before the first token", "midway"])
async def test_a_cancelled_call_ends_the_work(
    make_api: MakeApi, dialect: DialectName, route: str, n: int, stream: bool, text: str
) -> None:
    api = endless(make_api, dialect, text)
    client = Client(api, route, n=n, stream=stream)
    await until_hung(api, n)
    assert len(api.graph.live) == n
    await client.leave("cancelled")
    assert_closed(api, n)
    await assert_recovers(api)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("n", [1, 3])
async def test_a_disconnect_message_ends_a_stream(
    make_api: MakeApi, dialect: DialectName, route: str, n: int
) -> None:
    api = endless(make_api, dialect, "abc")
    client = Client(api, route, n=n, stream=True)
    await until_hung(api, n)
    await client.leave("disconnect message")
    assert client.task.done()
    assert_closed(api, n)
    await assert_recovers(api)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("num_read", [0, 2])
@pytest.mark.parametrize("way", ["cancelled", "broken pipe"])
async def test_a_client_that_stops_reading_and_leaves(
    make_api: MakeApi, dialect: DialectName, route: str, n: int, num_read: int, way: Way
) -> None:
    """Also before it has read the headers, when the stream's events have begun but none was sent."""
    api = endless(make_api, dialect, "abc" * 50)
    client = Client(api, route, spec_version="2.4", n=n, stream=True)
    if num_read == 0:
        client.stop_reading()
    else:
        while client.num_messages < num_read:
            await asyncio.sleep(0)
        client.stop_reading()
    await asyncio.wait_for(client.blocked.wait(), WAIT_S)
    assert len(api.graph.live) == n
    await client.leave(way)
    assert client.task.done()
    assert_closed(api, n)
    await assert_recovers(api)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_single_choice_is_generated_no_faster_than_it_is_read(
    make_api: MakeApi, dialect: DialectName, route: str
) -> None:
    api = endless(make_api, dialect, "abc")
    client = Client(api, route, spec_version="2.4", stream=True)
    client.stop_reading()
    await asyncio.wait_for(client.blocked.wait(), WAIT_S)
    for _ in range(100):
        await asyncio.sleep(0)
    assert api.graph.hung.empty()
    await client.leave("cancelled")
    assert_closed(api, 1)
