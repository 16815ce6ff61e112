"""Several choices of one request, generated at once and told apart by their index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from deployments.engine.request import FinishReason
from deployments.wire import GenerateRequest, TextChunk

from .errors import InvalidRequest, ServerError
from .graph import Graph

Indexed = tuple[int, TextChunk]


async def complete_all(graph: Graph, requests: Sequence[GenerateRequest]) -> list[TextChunk]:
    """Every choice in full. If one fails, the others are cancelled and its error is raised."""
    if len(requests) == 1:
        return [await _complete(graph, requests[0])]
    tasks = [asyncio.ensure_future(_complete(graph, request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _cancel(tasks)


async def stream_all(graph: Graph, requests: Sequence[GenerateRequest]) -> AsyncGenerator[Indexed, None]:
    """Chunks of all choices as they come. If one fails, the others are cancelled and its error is raised."""
    if len(requests) == 1:
        async with aclosing(graph.stream(requests[0])) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield 0, _checked(chunk)
        return
    queue: asyncio.Queue[Indexed | Exception | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_pump(graph, i, request, queue)) for i, request in enumerate(requests)]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item[0], _checked(item[1])
    finally:
        await _cancel(tasks)


async def _complete(graph: Graph, request: GenerateRequest) -> TextChunk:
    return _checked(await graph.complete(request))


async def _pump(
    graph: Graph, index: int, request: GenerateRequest, queue: asyncio.Queue[Indexed | Exception | None]
) -> None:
    try:
        async with aclosing(graph.stream(request)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                queue.put_nowait((index, chunk))
        queue.put_nowait(None)
    except Exception as error:
        queue.put_nowait(error)


def _checked(chunk: TextChunk) -> TextChunk:
    if chunk.refusal is not None:
        raise InvalidRequest(chunk.refusal)
    if chunk.finish_reason == FinishReason.ERROR:
        raise ServerError()
    return chunk


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
