"""What every attention backend receives and returns.

Shapes: T packed tokens of a step, S sequences, H query heads, G key/value heads, D head size,
B blocks of P tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch

from ..batch import PackedBatch


@dataclass(frozen=True, slots=True)
class KVTensors:
    """One layer's cache. `key` and `value` are [B, P, G, D] in the model's dtype."""

    key: torch.Tensor
    value: torch.Tensor

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store [T, G, D] keys and values at flat positions `slots` [T] int64."""
        self.key.flatten(0, 1).index_copy_(0, slots, key)
        self.value.flatten(0, 1).index_copy_(0, slots, value)


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """What a layer says about its attention: softmax scale, sliding window in tokens, logit soft cap."""

    scaling: float
    sliding_window: int | None
    softcap: float | None


class AttentionPlan(Protocol):
    """A step's index tensors, prepared once and used by every layer."""

    def attend(self, query: torch.Tensor, cache: KVTensors, params: AttentionParams) -> torch.Tensor:
        """[T, H, D] queries against each sequence's cached keys, causally; returns [T, H, D]."""
        ...


class AttentionBackend(Protocol):
    def plan(self, batch: PackedBatch) -> AttentionPlan: ...


class AttentionContext(Protocol):
    """Travels through the model's keyword arguments to every attention layer of one forward."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        params: AttentionParams,
    ) -> torch.Tensor:
        """Write [T, G, D] keys and values to a layer's cache, then attend with [T, H, D] queries."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedContext:
    """The context of every backend that leaves the writing to torch."""

    plan: AttentionPlan
    slots: torch.Tensor
    cache: torch.Tensor

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        params: AttentionParams,
    ) -> torch.Tensor:
        tensors = KVTensors(self.cache[layer, 0], self.cache[layer, 1])
        tensors.write(self.slots, key, value)
        return self.plan.attend(query, tensors, params)


_MODULES = {"reference": ".reference", "sdpa": ".sdpa", "varlen": ".varlen"}


def create_backend(name: str, device: torch.device, dtype: torch.dtype) -> AttentionBackend:
    """The backend called `name`; its module is imported only now, since it may need its device's kernels."""
    module = import_module(_MODULES[name], __package__)
    backend: AttentionBackend = module.create(device, dtype)
    return backend
