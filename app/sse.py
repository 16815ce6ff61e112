"""Server-sent events: one JSON object a line, `[DONE]` at the end, also after an error."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import orjson
from fastapi.responses import StreamingResponse

from .errors import ApiError, ServerError, error_event

logger = logging.getLogger("ray.serve")

_DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would otherwise collect the events
}


async def event_stream(events: AsyncIterator[dict[str, Any]]) -> StreamingResponse:
    """Stream the events. The first one is awaited here, so that a refusal still has its own status."""
    first = await anext(events)
    return StreamingResponse(_encode(first, events), media_type="text/event-stream", headers=_HEADERS)


async def _encode(first: dict[str, Any], events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    async with aclosing(events) as rest:  # type: ignore[type-var]  # every caller passes a generator
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
