"""Builds engines on small models and drives them, step by step or through their thread."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from deployments.engine import attention
from deployments.engine.compiled import compile_forward
from deployments.engine.config import EngineConfig, ModelConfig
from deployments.engine.engine import Engine
from deployments.engine.forward import Forward, NativeForward
from deployments.engine.kernels import load_kernels
from deployments.engine.loader import describe, load_model, load_tokenizer
from deployments.engine.model_cache import cache_folder
from deployments.engine.model_info import ModelInfo
from deployments.engine.model_shape import cache_shape
from deployments.engine.packed_linear import pack_linears
from deployments.engine.request import FinishReason, Request, SamplingParams, StepOutput
from deployments.engine.start import create_forward
from tests.tiny_models import Kind

LoadTiny = Callable[[Kind, bool], "LoadedModel"]

_MAX_STEPS = 50_000
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class LoadedModel:
    """One set of weights twice: `paged` for the engine and `plain` for transformers' `generate`."""

    paged: PreTrainedModel
    plain: PreTrainedModel
    info: ModelInfo

    @cached_property
    def packed(self) -> PreTrainedModel:
        """A third copy, its linear layers packed for the CPU kernels."""
        load_kernels(cache_folder(None))
        model = copy.deepcopy(self.paged)
        pack_linears(model, int8=False)
        return model

    def generate(self, prompt: Sequence[int], num_tokens: int, eos: int | None = None) -> list[int]:
        """What transformers answers greedily, prompt not included."""
        ids = torch.tensor([prompt])
        output = self.plain.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            repetition_penalty=1.0,
            eos_token_id=eos,
            pad_token_id=0,
        )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens


def load_twice(config: ModelConfig, dtype: torch.dtype = torch.float32) -> LoadedModel:
    attention.register()
    cpu = torch.device("cpu")
    return LoadedModel(
        load_model(config, dtype, cpu, attention.IMPLEMENTATION_NAME),
        load_model(config, dtype, cpu, "sdpa"),
        describe(config, load_tokenizer(config)),
    )


class Collector:
    """Takes the place of `publish`: keeps each request's outputs and lets a test wait for them."""

    def __init__(self) -> None:
        self.on_publish: Callable[[Sequence[StepOutput]], None] | None = None
        self._outputs: defaultdict[str, list[StepOutput]] = defaultdict(list)
        self._changed = threading.Condition()

    def __call__(self, outputs: Sequence[StepOutput]) -> None:
        with self._changed:
            for output in outputs:
                self._outputs[output.request_id].append(output)
            self._changed.notify_all()
        if self.on_publish:
            self.on_publish(outputs)

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self._outputs[request_id] for token in output.token_ids]

    def final(self, request_id: str) -> StepOutput:
        """The final output; fails unless there is exactly one and it is the last."""
        outputs = self._outputs[request_id]
        finals = [output for output in outputs if output.finish_reason is not None]
        assert len(finals) == 1, f"{request_id} has {len(finals)} final outputs"
        assert outputs[-1] is finals[0], f"{request_id} got an output after its final one"
        return finals[0]

    def reason(self, request_id: str) -> FinishReason | None:
        return self.final(request_id).finish_reason

    def has_ended(self, request_id: str) -> bool:
        return any(output.finish_reason is not None for output in self._outputs[request_id])

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, _TIMEOUT_S), "timed out"

    def wait_until_ended(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.wait_for(lambda request_id=request_id: self.has_ended(request_id))  # type: ignore[misc]


@dataclass
class Harness:
    engine: Engine
    outputs: Collector
    submitted: list[str] = field(default_factory=list)

    def request(
        self, name: str, prompt: Sequence[int], *, seed: int = 0, priority: int = 0, **params: Any
    ) -> Request:
        """A request that ignores EOS unless told otherwise."""
        sampling = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **params})
        return self.engine.make_request(name, prompt, sampling, seed, priority)

    def submit(self, *requests: Request) -> None:
        self.submitted += [request.request_id for request in requests]
        self.engine.submit(requests)

    @property
    def busy(self) -> bool:
        stats = self.engine.stats()
        return bool(stats.num_running or stats.num_waiting)

    def step(self) -> None:
        """What the engine's thread does in one turn, and a look at the books after it."""
        self.engine.process_inbox()
        if self.busy:
            self.engine.step()
        self.engine.check_bookkeeping()

    def drain(self) -> None:
        """Step until nothing is left to do, then check that nothing was lost or kept."""
        for _ in range(_MAX_STEPS):
            self.step()
            if not self.busy:
                self.assert_idle_and_complete()
                return
        raise AssertionError("the engine does not come to an end")

    def answers(self, *requests: Request) -> list[list[int]]:
        """Submit the requests together, drain, and return each one's tokens."""
        self.submit(*requests)
        self.drain()
        return [self.outputs.tokens(request.request_id) for request in requests]

    def assert_idle_and_complete(self) -> None:
        for name in self.submitted:
            self.outputs.final(name)
        self.engine.check_bookkeeping()
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.blocks_owned) == (0, 0, 0)
        assert not self.engine._requests


def kv_memory_gb(model: PreTrainedModel, num_blocks: int, block_size: int) -> float:
    """The setting that gives an engine just so many blocks."""
    layers, kv_heads, head_dim = cache_shape(model)
    block_bytes: int = 2 * layers * block_size * kv_heads * head_dim * model.dtype.itemsize
    return (num_blocks + 0.5) * block_bytes / 2**30


ForwardKind = Literal["sdpa", "reference", "native", "compiled"]


def block_size_of(kind: ForwardKind) -> int:
    """The smallest that the kind of forward pass works with, but no smaller than 8."""
    return 16 if kind in ("native", "compiled") else 8


def build_forward(loaded: LoadedModel, kind: ForwardKind, block_size: int) -> Forward:
    match kind:
        case "native":
            return NativeForward(loaded.packed)
        case "compiled":
            return compile_forward(loaded.packed, block_size, cache_folder(None))
        case _:
            config = EngineConfig(attention_backend=kind)
            return create_forward(loaded.paged, config, cache_folder(None))


def build_harness(
    loaded: LoadedModel,
    *,
    num_blocks: int = 512,
    info: ModelInfo | None = None,
    forward: ForwardKind = "sdpa",
    **config: Any,
) -> Harness:
    """An engine that is not started: tests step it, or call `harness.engine.start()`."""
    defaults = {"warmup": False, "block_size": block_size_of(forward), "num_threads": 1}
    settings: dict[str, Any] = {**defaults, **config}
    memory = kv_memory_gb(loaded.paged, num_blocks, settings["block_size"])
    outputs = Collector()
    engine_config = EngineConfig(kv_cache_memory_gb=memory, **settings)
    computes = build_forward(loaded, forward, engine_config.block_size)
    engine = Engine(engine_config, loaded.paged, info or loaded.info, computes, outputs)
    return Harness(engine, outputs)
