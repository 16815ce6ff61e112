"""Server-sent events: one JSON object a line, `[DONE]` at the end, also after an error."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import orjson
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .errors import ApiError, ServerError, error_event

logger = logging.getLogger("ray.serve")

_DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would otherwise collect the events
}


Events = AsyncGenerator[dict[str, Any], None]


class EventStream(StreamingResponse):
    """Sends events, and closes them however it ends, also if the client left before the headers."""

    def __init__(self, first: dict[str, Any], rest: Events) -> None:
        super().__init__(_encode(first, rest), media_type="text/event-stream", headers=_HEADERS)
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            await super().__call__(scope, receive, send)


async def event_stream(events: Events) -> EventStream:
    """Stream the events. The first one is awaited here, so that a refusal still has its own status."""
    return EventStream(await anext(events), events)


async def _encode(first: dict[str, Any], rest: Events) -> AsyncIterator[bytes]:
    yield _event(first)
    try:
        async for event in rest:
            yield _event(event)
    except ApiError as error:
        yield _event(error_event(error))
    except Exception:
        logger.exception("a stream failed")
        yield _event(error_event(ServerError()))
    yield _DONE


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"
