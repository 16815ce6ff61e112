"""ModelReplica: receives token ids and sampling parameters, returns text. One engine on one device.

Requests that arrive together enter the scheduler in one hand-over. Tokens become text here, on the event
loop, so that a stop string ends the work at once and the engine's thread only computes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from ray import serve

from .batching import Sized, sized, total_tokens
from .config import AdmissionConfig
from .detokenizer import make_decode
from .engine.config import EngineConfig, ModelConfig
from .engine.request import Request, RequestRefused, StepOutput
from .session import Session
from .wire import GenerateRequest, TextChunk

if TYPE_CHECKING:
    from .engine.engine import EngineStats

logger = logging.getLogger("ray.serve")


class ModelReplica:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, model: ModelConfig, engine: EngineConfig, admission: AdmissionConfig
    ) -> None:
        self._sessions: dict[str, Session] = {}
        self._loop = asyncio.get_running_loop()
        self._max_batch_tokens = admission.max_batch_tokens
        self._admit.set_max_batch_size(admission.max_batch_tokens)
        self._admit.set_batch_wait_timeout_s(admission.batch_wait_timeout_s)
        await asyncio.to_thread(self._start_engine, model, engine)

    def _start_engine(self, model: ModelConfig, config: EngineConfig) -> None:
        from .engine.start import start_engine  # slow, and the builder needs only the class

        self._engine, tokenizer = start_engine(model, config, self._publish)
        self._decode = make_decode(tokenizer)
        logger.info("%s is ready: %s", model.source, self._engine.summary)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[TextChunk]:
        """Text as it is generated; the last chunk has the finish reason."""
        session = await self._open(request, stream=True)
        try:
            while True:
                chunk = await session.next_chunk()
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            self._close(session)

    async def complete(self, request: GenerateRequest) -> TextChunk:
        """The whole text in one chunk."""
        session = await self._open(request, stream=False)
        try:
            return await session.whole()
        finally:
            self._close(session)

    async def stats(self) -> EngineStats:
        return self._engine.stats()

    async def check_health(self) -> None:
        self._engine.check_health()
        if not await self._admit._is_batching_task_alive():
            raise RuntimeError("the batching task of admission is dead")

    def __del__(self) -> None:
        self._engine.stop()

    async def _open(self, request: GenerateRequest, stream: bool) -> Session:
        """Bring the request into the engine. If the caller goes away meanwhile, it never enters."""
        session = Session(request, self._decode, stream)
        try:
            engine_request = self._engine.make_request(
                request.request_id, request.prompt_ids, request.params, request.seed, request.priority
            )
        except RequestRefused as error:
            session.refuse(str(error))
            return session
        self._sessions[request.request_id] = session
        uncached = self._engine.uncached_tokens(request.prompt_ids)
        try:
            await self._admit(sized((session, engine_request), uncached, self._max_batch_tokens))
        except BaseException:
            self._close(session)
            raise
        return session

    def _close(self, session: Session) -> None:
        """Forget the request, and stop working for it if it is unfinished. May be called twice."""
        session.closed = True
        self._sessions.pop(session.request.request_id, None)
        if session.finish_reason is None:
            self._engine.abort(session.request.request_id)

    @serve.batch(batch_wait_timeout_s=0, batch_size_fn=total_tokens)
    async def _admit(self, items: list[Sized[tuple[Session, Request]]]) -> list[None]:
        """One hand-over to the scheduler. There is no await inside, so no caller can go away midway."""
        self._engine.submit([request for (session, request), _ in items if not session.closed])
        return [None] * len(items)

    def _publish(self, outputs: Sequence[StepOutput]) -> None:
        """Called by the engine's thread: one hop to the event loop for the whole step."""
        self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        for output in outputs:
            session = self._sessions.get(output.request_id)
            if session is not None and session.receive(output):
                self._engine.abort(output.request_id)
