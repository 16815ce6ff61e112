"""CUDA: torch's variable-length flash attention, which reads the block tables itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.attention.varlen import varlen_attn

from ..batch import PackedBatch
from .backend import AttentionParams, KVTensors


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    """`query_starts` [S + 1], `context_lens` [S] and `block_tables` [S, N], all int32 on the device."""

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_context_len: int

    def attend(self, query: torch.Tensor, cache: KVTensors, params: AttentionParams) -> torch.Tensor:
        if params.softcap is not None:
            raise NotImplementedError("the varlen backend has no logit soft cap; use attention_backend: sdpa")
        window = -1 if params.sliding_window is None else params.sliding_window - 1
        output: torch.Tensor = varlen_attn(  # type: ignore[assignment]
            query,
            cache.key,
            cache.value,
            self.query_starts,
            None,
            self.max_query_len,
            self.max_context_len,
            scale=params.scaling,
            window_size=(window, 0),
            enable_gqa=query.shape[1] != cache.key.shape[2],
            seqused_k=self.context_lens,
            block_table=self.block_tables,
        )
        return output


@dataclass(frozen=True, slots=True)
class VarlenBackend:
    device: torch.device

    def plan(self, batch: PackedBatch) -> VarlenPlan:
        starts = np.concatenate(([0], np.cumsum(batch.query_lens)))
        return VarlenPlan(
            self._int32(starts),
            self._int32(batch.context_lens),
            self._int32(batch.block_tables),
            int(batch.query_lens.max()),
            int(batch.context_lens.max()),
        )

    def _int32(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int32)).to(self.device, non_blocking=True)


def create(device: torch.device, dtype: torch.dtype) -> VarlenBackend:
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"attention_backend varlen needs cuda and a 16-bit dtype, not {device.type} and {dtype}"
        )
    return VarlenBackend(device)
