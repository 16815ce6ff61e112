"""Decides what each step computes: running streams first, then chunks of prompts, under a token budget.

The order is first come, first served within a priority. When blocks run out, the latest request gives
its blocks back and waits; later it computes its prompt and its output so far again (recompute preemption).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from .config import EngineConfig
from .kv_cache import BlockPool
from .request import FinishReason, Request, ScheduledChunk

_ORDER = attrgetter("order")


class Scheduler:
    """Owns the waiting and the running requests and the block pool; the engine thread alone calls it."""

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self.pool = pool
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._max_num_seqs = config.max_num_seqs
        self._token_budget = config.max_num_batched_tokens
        self._max_chunk = config.max_prefill_chunk or config.max_num_batched_tokens
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        self._arrivals += 1
        request.arrival = self._arrivals
        insort(self.waiting, request, key=_ORDER)

    def schedule(self) -> list[ScheduledChunk]:
        """The next step's work; empty only when nothing is waiting or running."""
        chunks: list[ScheduledChunk] = []
        budget = self._schedule_decodes(chunks)
        budget = self._schedule_prefills(chunks, budget)
        self._admit(chunks, budget)
        if not chunks and self.running:
            self._force_progress(chunks)
        return chunks

    def complete(self, chunk: ScheduledChunk) -> None:
        """Record that the chunk's keys and values are in the cache."""
        request = chunk.request
        since = request.num_computed
        request.num_computed += chunk.num_tokens
        self.pool.publish(request, since)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Take the request out, wherever it is, and give back what it holds."""
        request.finish_reason = reason
        for queue in (self.running, self.waiting):
            index = bisect_left(queue, request.order, key=_ORDER)
            if index < len(queue) and queue[index] is request:
                del queue[index]
        self.pool.release(request)

    def requests(self) -> Iterator[Request]:
        yield from self.running
        yield from self.waiting

    def _schedule_decodes(self, chunks: list[ScheduledChunk]) -> int:
        """One token for each running stream, oldest first; returns the budget left."""
        budget = self._token_budget
        for request in [r for r in self.running if r.num_pending == 1]:
            if not budget or not request.block_ids:  # without blocks: preempted a moment ago
                continue
            if self._make_room(request, len(request.token_ids)):
                chunks.append(ScheduledChunk(request, 1))
                budget -= 1
        return budget

    def _schedule_prefills(self, chunks: list[ScheduledChunk], budget: int) -> int:
        """The next chunk of each admitted prompt, as far as free blocks and budget reach."""
        for request in self.running:
            size = min(request.num_pending, budget, self._max_chunk)
            if request.num_pending > 1 and size and self.pool.can_grow(request, request.num_computed + size):
                self._schedule_chunk(chunks, request, size)
                budget -= size
        return budget

    def _admit(self, chunks: list[ScheduledChunk], budget: int) -> None:
        """Start waiting requests while there is budget, a place, and room for the whole sequence so far.

        What the running prompts still need is held back, and one block for each stream, so that admission
        neither stops a prompt half-way nor causes preemption in the very next steps.
        """
        reserved = sum(self._blocks_to_come(request) for request in self.running)
        while self.waiting and budget and len(self.running) < self._max_num_seqs:
            request = self.waiting[0]
            cached = self.pool.match_prefix(request)
            needed = self.pool.blocks_for(len(request.token_ids)) - len(request.block_ids)
            if needed + reserved > self.pool.num_available:
                self.pool.release(request)
                return
            del self.waiting[0]
            insort(self.running, request, key=_ORDER)
            request.num_computed = cached
            self.prefix_queries += len(request.token_ids)
            self.prefix_hits += cached
            if not request.num_preemptions:
                request.num_cached = cached
            size = min(request.num_pending, budget, self._max_chunk)
            self._schedule_chunk(chunks, request, size)
            budget -= size
            reserved += self._blocks_to_come(request)

    def _blocks_to_come(self, request: Request) -> int:
        return max(1, self.pool.blocks_for(len(request.token_ids)) - len(request.block_ids))

    def _force_progress(self, chunks: list[ScheduledChunk]) -> None:
        """Every running prompt waits for blocks: let the oldest have those of the latest."""
        request = self.running[0]
        size = min(request.num_pending, self._token_budget, self._max_chunk)
        if self._make_room(request, request.num_computed + size):
            self._schedule_chunk(chunks, request, size)

    def _schedule_chunk(self, chunks: list[ScheduledChunk], request: Request, size: int) -> None:
        self.pool.grow(request, request.num_computed + size)
        chunks.append(ScheduledChunk(request, size))

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Grow the request, preempting later ones as needed; False if it had to give way itself."""
        while not self.pool.can_grow(request, num_tokens):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        self.pool.grow(request, num_tokens)
        return True

    def _preempt(self, request: Request) -> None:
        del self.running[-1]
        self.pool.release(request)
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.waiting, request, key=_ORDER)
