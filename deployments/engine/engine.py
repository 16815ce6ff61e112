"""The engine: schedule, forward, sample, publish, again and again in a thread of its own.

Other threads only put commands into its inbox; every request that was accepted gets exactly one final
output: stop, length, aborted or error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from transformers import PreTrainedModel

from .allocator import keep_freed_memory
from .config import EngineConfig
from .forward import Forward
from .kv_cache import BlockPool
from .model_info import ModelInfo, resolve_max_model_len
from .placement import resolve_num_threads
from .request import FinishReason, Request, RequestRefused, SamplingParams, ScheduledChunk, StepOutput
from .runner import ModelRunner
from .scheduler import Scheduler
from .threads import use_threads

logger = logging.getLogger(__name__)

Publish = Callable[[Sequence[StepOutput]], None]
_MAX_CONSECUTIVE_FAILURES = 3


@dataclass(frozen=True, slots=True)
class EngineStats:
    num_running: int
    num_waiting: int
    kv_cache_usage: float
    blocks_owned: int
    num_steps: int
    num_preemptions: int
    prefix_queries: int
    prefix_hits: int


class Engine:
    def __init__(
        self,
        config: EngineConfig,
        model: PreTrainedModel,
        info: ModelInfo,
        forward: Forward,
        publish: Publish,
    ) -> None:
        self.max_model_len = resolve_max_model_len(config, info.max_position_embeddings)
        self._config = config
        self._info = info
        self._publish = publish
        self._runner = ModelRunner(config, model, info.eos_token_ids, forward)
        self._pool = BlockPool(self._runner.num_blocks, config.block_size, config.enable_prefix_caching)
        self._check_capacity()
        self._scheduler = Scheduler(config, self._pool)
        self._requests: dict[str, Request] = {}
        self._inbox: list[Request | str] = []
        self._wakeup = threading.Condition()
        self._stopping = False
        self._step_started: float | None = None
        self._num_steps = 0
        self._failures = 0
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def summary(self) -> str:
        """For the person who starts it: where it runs and how much fits."""
        device, dtype = self._runner.placement
        return (
            f"{device}, {str(dtype).removeprefix('torch.')}, context of {self.max_model_len} tokens, "
            f"KV cache of {self._pool.num_tokens} tokens, "
            f"at most {self._config.max_num_seqs} requests at once"
        )

    def start(self) -> None:
        """Start the thread; returns when it is warm, or raises what stopped it."""
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """End the thread after the current step; what is unfinished is published as aborted."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        if self._thread.is_alive():
            self._thread.join()

    def make_request(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, seed: int, priority: int = 0
    ) -> Request:
        """Check a prompt against the engine's limits. Raises RequestRefused with a text for the client."""
        if not prompt_ids:
            raise RequestRefused("the prompt is empty")
        if len(prompt_ids) >= self.max_model_len:
            raise RequestRefused(
                f"the prompt has {len(prompt_ids)} tokens, but the maximum context length is "
                f"{self.max_model_len} tokens and at least one is needed for the output"
            )
        named = [token for token, _ in params.logit_bias] + [*params.stop_token_ids]
        for token in (min(prompt_ids), max(prompt_ids), *named):
            if not 0 <= token < self._info.vocab_size:
                raise RequestRefused(
                    f"token id {token} is not in the vocabulary (0 to {self._info.vocab_size - 1})"
                )
        max_len = min(len(prompt_ids) + params.max_tokens, self.max_model_len)
        return Request(request_id, len(prompt_ids), list(prompt_ids), params, seed, max_len, priority)

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests over together, so that they can enter the same step. Any thread may call.

        Raises RuntimeError once `stop` was called, since nobody would end the requests any more.
        """
        self._post(requests)

    def abort(self, request_id: str) -> None:
        """Stop working for the request before the next step; unknown and finished ids are ignored."""
        self._post([request_id])

    def uncached_tokens(self, token_ids: Sequence[int]) -> int:
        """How many of the prompt's tokens have to be computed, as far as can be told from outside."""
        return len(token_ids) - self._pool.peek_prefix(token_ids)

    def check_health(self) -> None:
        """Raise RuntimeError if the thread is dead, keeps failing, or is stuck in a step."""
        if not self._thread.is_alive():
            raise RuntimeError("the engine thread is not running")
        if self._failures >= _MAX_CONSECUTIVE_FAILURES:
            raise RuntimeError(f"the last {self._failures} engine steps failed")
        started = self._step_started
        if started is not None and time.monotonic() - started > self._config.step_timeout_s:
            raise RuntimeError(f"an engine step takes longer than {self._config.step_timeout_s} seconds")

    def stats(self) -> EngineStats:
        scheduler, pool = self._scheduler, self._pool
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting) + sum(isinstance(item, Request) for item in list(self._inbox)),
            kv_cache_usage=pool.usage,
            blocks_owned=pool.num_owned,
            num_steps=self._num_steps,
            num_preemptions=scheduler.num_preemptions,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
        )

    def check_bookkeeping(self) -> None:
        """Raise RuntimeError unless every block is accounted for. Only between steps or when idle."""
        self._pool.check(list(self._scheduler.requests()))
        if len(self._requests) != len(list(self._scheduler.requests())):
            raise RuntimeError("finished requests are still known to the engine")

    def step(self) -> None:
        """One step: schedule, forward, sample, publish. The thread calls it; tests without one may."""
        self._step_started = time.monotonic()
        chunks = self._scheduler.schedule()
        try:
            tokens = self._runner.execute(chunks)
            outputs = self._collect(chunks, tokens)
            self._failures = 0
        except Exception as error:
            logger.exception("an engine step failed; its %d requests end with an error", len(chunks))
            self._failures += 1
            outputs = [
                self._end(chunk.request, FinishReason.ERROR, error=type(error).__name__)
                for chunk in chunks
                if chunk.request.finish_reason is None
            ]
        self._num_steps += 1
        self._step_started = None
        self._publish(outputs)

    def process_inbox(self) -> None:
        with self._wakeup:
            items, self._inbox = self._inbox, []
        outputs = []
        for item in items:
            if isinstance(item, Request):
                self._requests[item.request_id] = item
                self._scheduler.add(item)
            elif request := self._requests.get(item):
                outputs.append(self._end(request, FinishReason.ABORTED))
        if outputs:
            self._publish(outputs)

    def _run(self) -> None:
        try:
            self._prepare()
        except Exception as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        self._loop()

    def _prepare(self) -> None:
        use_threads(resolve_num_threads(self._config))
        keep_freed_memory()
        if self._config.warmup:
            self._runner.warm_up(min(self._config.max_num_batched_tokens, self.max_model_len))

    def _loop(self) -> None:
        while True:
            with self._wakeup:
                self._wakeup.wait_for(lambda: self._stopping or self._inbox or self._scheduler.has_work)
            self.process_inbox()
            if self._stopping:
                break
            if self._scheduler.has_work:
                self.step()
        self._publish([self._end(request, FinishReason.ABORTED) for request in [*self._requests.values()]])

    def _post(self, items: Sequence[Request | str]) -> None:
        with self._wakeup:
            if self._stopping and any(isinstance(item, Request) for item in items):
                raise RuntimeError("the engine is stopping")
            self._inbox.extend(items)
            self._wakeup.notify()

    def _collect(self, chunks: Sequence[ScheduledChunk], tokens: Sequence[int]) -> list[StepOutput]:
        """Book what the step computed; one output for each request that got a token."""
        sampling = [chunk.request for chunk in chunks if chunk.samples]
        for chunk in chunks:
            self._scheduler.complete(chunk)
        outputs = []
        for request, token in zip(sampling, tokens, strict=True):
            request.token_ids.append(token)
            reason = self._finish_reason(request, token)
            if reason is None:
                outputs.append(StepOutput(request.request_id, (token,), None, request.num_cached))
            else:
                outputs.append(self._end(request, reason, (token,)))
        return outputs

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        params = request.params
        if token in params.stop_token_ids or (token in self._info.eos_token_ids and not params.ignore_eos):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(request.token_ids) >= request.max_len else None

    def _end(
        self, request: Request, reason: FinishReason, tokens: tuple[int, ...] = (), error: str | None = None
    ) -> StepOutput:
        self._scheduler.finish(request, reason)
        del self._requests[request.request_id]
        return StepOutput(request.request_id, tokens, reason, request.num_cached, error)

    def _check_capacity(self) -> None:
        if self._pool.num_tokens < self.max_model_len:
            raise ValueError(
                f"the KV cache holds {self._pool.num_tokens} tokens, "
                f"but one request may have {self.max_model_len}: "
                "raise engine.kv_cache_memory_gb or lower engine.max_model_len"
            )
