"""The deployments behind the ingress, and what their failures mean to a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.wire import Encoded, GenerateRequest, Prompt, ServedModel, TextChunk

from .errors import ApiError, Overloaded, ServerError, Unavailable

logger = logging.getLogger("ray.serve")


class Graph(Protocol):
    """What the API needs from the deployments. Every method raises ApiError for a failure behind it."""

    async def served_model(self) -> ServedModel: ...

    async def encode(self, prompt: Prompt) -> Encoded: ...

    async def complete(self, request: GenerateRequest) -> TextChunk: ...

    def stream(self, request: GenerateRequest) -> AsyncIterator[TextChunk]: ...

    async def is_ready(self) -> bool: ...


class RayGraph:
    """The graph over Serve's handles. Whoever stops waiting for an answer cancels the call behind it."""

    def __init__(
        self, tokenizer: DeploymentHandle, model_replica: DeploymentHandle, health_timeout_s: float
    ) -> None:
        self._tokenizer = tokenizer
        self._model_replica = model_replica
        self._streaming = model_replica.options(stream=True)
        self._health_timeout_s = health_timeout_s
        self._served_model: ServedModel | None = None

    async def served_model(self) -> ServedModel:
        if self._served_model is None:
            self._served_model = await _call(self._tokenizer.served_model.remote())
        return self._served_model

    async def encode(self, prompt: Prompt) -> Encoded:
        encoded: Encoded = await _call(self._tokenizer.encode.remote(prompt))
        return encoded

    async def complete(self, request: GenerateRequest) -> TextChunk:
        chunk: TextChunk = await _call(self._model_replica.complete.remote(request))
        return chunk

    async def stream(self, request: GenerateRequest) -> AsyncIterator[TextChunk]:
        chunks = self._streaming.stream.remote(request)
        try:
            with _translated_errors():
                async for chunk in chunks:
                    yield chunk
        finally:
            chunks.cancel()

    async def is_ready(self) -> bool:
        """Whether at least one replica of each deployment answers."""
        answers = await asyncio.gather(*map(self._any_healthy, (self._tokenizer, self._model_replica)))
        return all(answers)

    async def _any_healthy(self, handle: DeploymentHandle) -> bool:
        try:
            results = await handle.broadcast("check_health").results_async(
                timeout_s=self._health_timeout_s, return_exceptions=True
            )
        except (TimeoutError, RayError, DeploymentUnavailableError):
            return False
        return any(result is None for result in results)


async def _call(response: Any) -> Any:
    try:
        with _translated_errors():
            return await response
    except asyncio.CancelledError:
        response.cancel()
        raise


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Serve's and Ray's exceptions as ApiErrors. What went wrong inside is for the log, not the client."""
    try:
        yield
    except ApiError:
        raise
    except BackPressureError as error:
        raise Overloaded(error.status_code, error.retry_after_s) from error
    except DeploymentUnavailableError as error:
        raise Unavailable() from error
    except RayActorError as error:
        raise ServerError("The replica that worked on this request died") from error
    except Exception as error:
        logger.exception("a deployment failed")
        raise ServerError() from error
