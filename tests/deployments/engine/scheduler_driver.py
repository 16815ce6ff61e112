"""Runs a Scheduler and its BlockPool without a model, and watches what a cache would hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deployments.engine.config import EngineConfig
from deployments.engine.kv_cache import BlockPool
from deployments.engine.request import FinishReason, Request, SamplingParams, ScheduledChunk
from deployments.engine.scheduler import Scheduler


class SchedulerDriver:
    """Keeps, for each slot of an imaginary cache, the token prefix that was computed into it."""

    def __init__(
        self, *, num_blocks: int = 64, block_size: int = 4, prefix_caching: bool = True, **config: Any
    ) -> None:
        self.config = EngineConfig(block_size=block_size, **config)
        self.pool = BlockPool(num_blocks, block_size, prefix_caching)
        self.scheduler = Scheduler(self.config, self.pool)
        self.finished: list[str] = []
        self._contents: dict[int, int] = {}
        self._count = 0

    def add(
        self, prompt: int | Sequence[int], max_tokens: int = 1, *, priority: int = 0, name: str | None = None
    ) -> Request:
        """A request with `prompt` tokens; an int means so many that no other request shares."""
        self._count += 1
        ids = [1000 * self._count + i for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
        params = SamplingParams(max_tokens=max_tokens)
        name, max_len = name or f"r{self._count}", len(ids) + max_tokens
        request = Request(name, len(ids), ids, params, 0, max_len, priority)
        self.scheduler.add(request)
        return request

    def step(self, *, fails: bool = False) -> list[ScheduledChunk]:
        """One engine step. The token that a request samples is a function of its tokens so far."""
        chunks = self.scheduler.schedule()
        self._check_chunks(chunks)
        self._write_and_read(chunks)
        sampling = [chunk.request for chunk in chunks if chunk.samples]
        if fails:
            for chunk in chunks:
                self._finish(chunk.request, FinishReason.ERROR)
        else:
            for chunk in chunks:
                self.scheduler.complete(chunk)
            for request in sampling:
                request.token_ids.append(hash(tuple(request.token_ids)) % 7)
                if len(request.token_ids) >= request.max_len:
                    self._finish(request, FinishReason.LENGTH)
        self.check()
        return chunks

    def abort(self, request: Request) -> None:
        self._finish(request, FinishReason.ABORTED)
        self.check()

    def drain(self, max_steps: int = 2000) -> int:
        """Step until everyone is done; returns the number of steps."""
        for count in range(max_steps):
            if not self.scheduler.has_work:
                assert self.pool.num_owned == 0
                return count
            self.step()
        raise AssertionError("requests starve")

    def check(self) -> None:
        running, waiting = self.scheduler.running, self.scheduler.waiting
        self.pool.check([*running, *waiting])
        assert len(running) <= self.config.max_num_seqs
        assert not any(request.block_ids for request in waiting), "a waiting request holds blocks"
        for queue in (running, waiting):
            assert queue == sorted(queue, key=lambda request: request.order)
        for request in [*running, *waiting]:
            assert 0 <= request.num_computed < len(request.token_ids) <= request.max_len

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self.scheduler.finish(request, reason)
        self.finished.append(request.request_id)

    def _check_chunks(self, chunks: Sequence[ScheduledChunk]) -> None:
        assert bool(chunks) == self.scheduler.has_work, "a step with work to do computes nothing"
        assert sum(chunk.num_tokens for chunk in chunks) <= self.config.max_num_batched_tokens
        assert len({chunk.request.request_id for chunk in chunks}) == len(chunks)
        largest = self.config.max_prefill_chunk or self.config.max_num_batched_tokens
        for request, num_tokens in chunks:
            assert request in self.scheduler.running
            assert 0 < num_tokens <= min(largest, request.num_pending)
            assert len(request.block_ids) >= self.pool.blocks_for(request.num_computed + num_tokens)

    def _write_and_read(self, chunks: Sequence[ScheduledChunk]) -> None:
        """As a forward pass does: all new tokens go into the cache, then each row reads all of its own."""
        for request, num_tokens in chunks:
            for position in range(request.num_computed, request.num_computed + num_tokens):
                self._contents[self._slot(request, position)] = _prefix(request, position)
        for request, num_tokens in chunks:
            for position in range(request.num_computed + num_tokens):
                found = self._contents.get(self._slot(request, position))
                assert found == _prefix(request, position), f"{request.request_id} reads another's cache"

    def _slot(self, request: Request, position: int) -> int:
        size = self.pool.block_size
        return request.block_ids[position // size] * size + position % size


def _prefix(request: Request, position: int) -> int:
    return hash(tuple(request.token_ids[: position + 1]))
