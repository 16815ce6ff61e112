"""Serve's handles behind the API: calls that nobody waits for are cancelled, failures get a meaning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from app.errors import ApiError, Overloaded, ServerError, Unavailable
from app.graph import RayGraph
from deployments.engine.request import SamplingParams
from deployments.wire import Encoded, GenerateRequest, Prompt, TextChunk

REQUEST = GenerateRequest("r-0", [1], SamplingParams(8), 0)
CHUNKS = [TextChunk("a", 1), TextChunk("b", 1)]


class Reply:
    """What a handle's `.remote()` gives: awaited for one result, or read as a stream."""

    def __init__(self, results: Sequence[Any], error: Exception | None, hangs: bool) -> None:
        self._results, self._error, self._hangs = results, error, hangs
        self.num_cancels = 0
        self.waiting = asyncio.Event()

    def cancel(self) -> None:
        self.num_cancels += 1

    async def _end(self) -> None:
        if self._error is not None:
            raise self._error
        if self._hangs:
            self.waiting.set()
            await asyncio.Event().wait()

    def __await__(self) -> Any:
        async def result() -> Any:
            await self._end()
            return self._results[0]

        return result().__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        for result in self._results:
            yield result
        await self._end()


class Handle:
    """Stands in for a DeploymentHandle whose every method gives the same reply."""

    def __init__(self, *results: Any, error: Exception | None = None, hangs: bool = False) -> None:
        self.reply = Reply(results, error, hangs)

    def options(self, stream: bool) -> Handle:
        assert stream
        return self

    def __getattr__(self, method: str) -> Handle:
        return self

    def remote(self, *_: Any) -> Reply:
        return self.reply


class Broadcasting:
    """A handle whose replicas give these answers to a health check."""

    def __init__(self, *answers: Any) -> None:
        self._answers = answers

    def options(self, stream: bool) -> Broadcasting:
        return self

    def broadcast(self, method: str) -> Broadcasting:
        assert method == "check_health"
        return self

    async def results_async(self, timeout_s: float, return_exceptions: bool) -> list[Any]:
        assert return_exceptions
        if self._answers and isinstance(self._answers[0], TimeoutError):
            raise self._answers[0]
        return list(self._answers)


def graph_over(tokenizer: object, model_replica: object) -> RayGraph:
    handles = [cast(DeploymentHandle, handle) for handle in (tokenizer, model_replica)]
    return RayGraph(*handles, health_timeout_s=1)


FAILURES = [
    (BackPressureError(9, 9, 429, 2.0), Overloaded, 429),
    (BackPressureError(9, 9), Overloaded, 503),
    (DeploymentUnavailableError(cast(Any, "ModelReplica")), Unavailable, 503),
    (RayActorError(error_msg="at /srv/secret"), ServerError, 500),
    (ValueError("/srv/secret.py"), ServerError, 500),
]


@pytest.mark.parametrize(("failure", "kind", "status"), FAILURES)
async def test_failures_have_a_meaning_and_hide_what_is_inside(
    failure: Exception, kind: type[ApiError], status: int
) -> None:
    handle = Handle(error=failure)
    graph = graph_over(handle, handle)
    errors: list[ApiError] = []
    for call in (graph.complete(REQUEST), graph.encode(Prompt(None, "x")), graph.served_model()):
        with pytest.raises(kind) as caught:
            await call
        errors.append(caught.value)
    with pytest.raises(kind) as caught:
        async for _ in graph.stream(REQUEST):
            pass
    for error in [*errors, caught.value]:
        assert error.status == status
        assert "secret" not in error.message


async def test_the_refusals_retry_after_is_passed_on() -> None:
    handle = Handle(error=BackPressureError(9, 9, 429, 7.0))
    with pytest.raises(Overloaded) as caught:
        await graph_over(handle, handle).complete(REQUEST)
    assert caught.value.headers == {"Retry-After": "7"}


async def test_results_are_passed_on() -> None:
    graph = graph_over(Handle(Encoded([5])), Handle(*CHUNKS))
    assert await graph.encode(Prompt(None, "x")) == Encoded([5])
    assert await graph.complete(REQUEST) == CHUNKS[0]
    assert [chunk async for chunk in graph.stream(REQUEST)] == CHUNKS


async def test_the_served_model_is_asked_for_once() -> None:
    handle = Handle("model")
    graph = graph_over(handle, Handle())
    assert await graph.served_model() == await graph.served_model() == "model"
    handle.reply = Reply([], RuntimeError("asked again"), hangs=False)
    assert await graph.served_model() == "model"


async def test_a_stream_that_is_closed_cancels_its_call() -> None:
    replica = Handle(*CHUNKS, hangs=True)
    stream = cast(Any, graph_over(Handle(), replica).stream(REQUEST))
    assert await anext(stream) == CHUNKS[0]
    assert replica.reply.num_cancels == 0
    await stream.aclose()
    assert replica.reply.num_cancels == 1


@pytest.mark.parametrize("method", ["complete", "stream"])
async def test_a_caller_that_is_cancelled_cancels_its_call(method: str) -> None:
    replica = Handle(hangs=True)
    graph = graph_over(Handle(), replica)

    async def read() -> None:
        async for _ in graph.stream(REQUEST):
            pass

    task = asyncio.ensure_future(graph.complete(REQUEST) if method == "complete" else read())
    await asyncio.wait_for(replica.reply.waiting.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert replica.reply.num_cancels == 1


@pytest.mark.parametrize(
    ("tokenizer", "replicas", "ready"),
    [
        ([None], [None], True),
        ([RuntimeError(), None], [None, RuntimeError()], True),
        ([None], [RuntimeError()], False),
        ([RuntimeError()], [None], False),
        ([None], [], False),
        ([None], [TimeoutError()], False),
    ],
)
async def test_ready_when_some_replica_of_each_deployment_is_healthy(
    tokenizer: list[Any], replicas: list[Any], ready: bool
) -> None:
    assert await graph_over(Broadcasting(*tokenizer), Broadcasting(*replicas)).is_ready() is ready
