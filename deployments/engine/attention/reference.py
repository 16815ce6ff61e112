"""Plain torch, one sequence at a time, softmax in float32: slow, obvious, the truth in tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..batch import PackedBatch
from .backend import AttentionParams, KVTensors


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    batch: PackedBatch

    def attend(self, query: torch.Tensor, cache: KVTensors, params: AttentionParams) -> torch.Tensor:
        outputs, start = [], 0
        for index, (num_queries, num_keys) in enumerate(
            zip(self.batch.query_lens.tolist(), self.batch.context_lens.tolist(), strict=True)
        ):
            table = torch.from_numpy(self.batch.block_tables[index]).to(query.device).long()
            key = cache.key[table].flatten(0, 1)[:num_keys]
            value = cache.value[table].flatten(0, 1)[:num_keys]
            outputs.append(_attend_one(query[start : start + num_queries], key, value, params))
            start += num_queries
        return torch.cat(outputs)


def _attend_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, params: AttentionParams
) -> torch.Tensor:
    """[Q, H, D] queries, the last of which sees all of [K, G, D] keys."""
    repeats = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(repeats, dim=1).float()
    value = value.repeat_interleave(repeats, dim=1).float()
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * params.scaling
    if params.softcap is not None:
        scores = params.softcap * torch.tanh(scores / params.softcap)
    key_positions = torch.arange(key.shape[0], device=query.device)
    query_positions = key_positions[-query.shape[0] :].unsqueeze(1)
    hidden = key_positions > query_positions
    if params.sliding_window is not None:
        hidden |= key_positions <= query_positions - params.sliding_window
    probabilities = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", probabilities, value).to(query.dtype)


@dataclass(frozen=True, slots=True)
class ReferenceBackend:
    def plan(self, batch: PackedBatch) -> ReferencePlan:
        return ReferencePlan(batch)


def create(device: torch.device, dtype: torch.dtype) -> ReferenceBackend:
    return ReferenceBackend()
