"""A model's forward pass over a packed batch: its inputs, and the ways to run it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from .attention import AttentionBackend, AttentionContext, PlannedContext
from .attention.native import NativeContext
from .batch import PackedBatch


class Forward(Protocol):
    """Runs a batch against the cache [L, 2, B, P, G, D]; returns the logits [N, V] of its sample rows."""

    def __call__(self, batch: PackedBatch, cache: torch.Tensor) -> torch.Tensor: ...


class PackedInputs(NamedTuple):
    """All that a native forward depends on, as tensors: int64 but for the cache. See PackedBatch."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    sample_rows: torch.Tensor
    cache: torch.Tensor
    slots: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor


def native_inputs(batch: PackedBatch, cache: torch.Tensor) -> PackedInputs:
    starts = np.zeros(len(batch.query_lens) + 1, dtype=np.int64)
    np.cumsum(batch.query_lens, out=starts[1:])
    return PackedInputs(
        torch.from_numpy(batch.token_ids),
        torch.from_numpy(batch.positions),
        torch.from_numpy(batch.sample_rows),
        cache,
        torch.from_numpy(batch.slots),
        torch.from_numpy(starts),
        torch.from_numpy(batch.context_lens),
        torch.from_numpy(batch.block_tables),
    )


class NativeModel(nn.Module):
    """The model as a function of tensors alone, so that it can be exported."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        inputs = PackedInputs(*tensors)
        return _call(
            self.model,
            inputs.token_ids,
            inputs.positions,
            inputs.sample_rows,
            NativeContext(
                inputs.cache, inputs.slots, inputs.query_starts, inputs.context_lens, inputs.block_tables
            ),
        )


class NativeForward:
    """Calls transformers' code step by step, with our attention kernel in it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = NativeModel(model)

    def __call__(self, batch: PackedBatch, cache: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model(*native_inputs(batch, cache))
        return logits


class TorchForward:
    """Any device: transformers' code with an attention backend that torch provides."""

    def __init__(self, model: PreTrainedModel, backend: AttentionBackend) -> None:
        self._model = model
        self._backend = backend

    def __call__(self, batch: PackedBatch, cache: torch.Tensor) -> torch.Tensor:
        return _call(
            self._model,
            self._tensor(batch.token_ids),
            self._tensor(batch.positions),
            self._tensor(batch.sample_rows),
            PlannedContext(self._backend.plan(batch), self._tensor(batch.slots), cache),
        )

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._model.device, non_blocking=True)


def _call(
    model: PreTrainedModel,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    sample_rows: torch.Tensor,
    context: AttentionContext,
) -> torch.Tensor:
    output = model(
        input_ids=token_ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=sample_rows,
        attention_context=context,
    )
    logits: torch.Tensor = output.logits[0]
    return logits
