"""Any device: gather each sequence's blocks, then torch's scaled_dot_product_attention.

Sequences of like length form a group that is padded to one rectangle, so that a forward runs a few
batched kernels for each layer whatever the number of rows. The query heads that share a key/value
head are folded into the query length: one key head is then read once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from ..batch import PackedBatch
from .backend import AttentionParams, KVTensors

_SHORTEST_BUCKET = 128


@dataclass(slots=True)
class SequenceGroup:
    """S sequences padded to Q queries and N blocks.

    `tokens` [S * Q] int64 are the packed positions of the queries (padding repeats the group's first),
    `valid` selects those that are not padding (None: all), `blocks` [S * N] int64 are their blocks,
    `query_positions` [S, Q] and `key_positions` [K] build the masks, one for each window in use.
    """

    num_sequences: int
    tokens: torch.Tensor
    valid: torch.Tensor | None
    blocks: torch.Tensor
    query_positions: torch.Tensor
    key_positions: torch.Tensor
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: torch.dtype, repeats: int) -> torch.Tensor:
        """Additive mask [S, 1, repeats * Q, K], or [S, 1, 1, K] where there is one query."""
        if window not in self.masks:
            positions = self.query_positions.unsqueeze(-1)
            visible = self.key_positions <= positions
            if window is not None:
                visible &= self.key_positions > positions - window
            mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
            mask.masked_fill_(~visible, -torch.inf)
            if mask.shape[1] > 1:
                mask = mask.repeat(1, repeats, 1)
            self.masks[window] = mask.unsqueeze(1)
        return self.masks[window]


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    groups: list[SequenceGroup]

    def attend(self, query: torch.Tensor, cache: KVTensors, params: AttentionParams) -> torch.Tensor:
        if params.softcap is not None:
            raise NotImplementedError(
                "the sdpa backend has no logit soft cap; use attention_backend: reference"
            )
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for group in self.groups:
            result = _attend_group(query, cache, group, params)
            if group.valid is None:
                output.index_copy_(0, group.tokens, result)
            else:
                output.index_copy_(0, group.tokens[group.valid], result[group.valid])
        return output


def _attend_group(
    query: torch.Tensor, cache: KVTensors, group: SequenceGroup, params: AttentionParams
) -> torch.Tensor:
    """[S * Q, H, D] outputs of one group."""
    size, (_, heads, dim), kv_heads = group.num_sequences, query.shape, cache.key.shape[2]
    repeats = heads // kv_heads
    rows = query.index_select(0, group.tokens).view(size, -1, kv_heads, repeats, dim)
    length = rows.shape[1]
    folded = rows.permute(0, 2, 3, 1, 4).reshape(size, kv_heads, repeats * length, dim)
    key = cache.key.index_select(0, group.blocks).view(size, -1, kv_heads, dim).transpose(1, 2)
    value = cache.value.index_select(0, group.blocks).view(size, -1, kv_heads, dim).transpose(1, 2)
    mask = group.mask(params.sliding_window, query.dtype, repeats)
    result = functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=params.scaling)
    unfolded = result.view(size, kv_heads, repeats, length, dim).permute(0, 3, 1, 2, 4)
    return unfolded.reshape(size * length, heads, dim)


@dataclass(frozen=True, slots=True)
class SdpaBackend:
    device: torch.device

    def plan(self, batch: PackedBatch) -> SdpaPlan:
        """Group sequences whose query and context lengths round up to the same powers of two."""
        contexts = np.maximum(batch.context_lens, _SHORTEST_BUCKET)
        buckets = np.stack([_log2_ceil(batch.query_lens), _log2_ceil(contexts)])
        _, membership = np.unique(buckets, axis=1, return_inverse=True)
        membership = membership.reshape(-1)
        return SdpaPlan(
            [self._group(batch, np.flatnonzero(membership == index)) for index in range(membership.max() + 1)]
        )

    def _group(self, batch: PackedBatch, members: np.ndarray) -> SequenceGroup:
        query_lens, context_lens = batch.query_lens[members], batch.context_lens[members]
        starts = (np.cumsum(batch.query_lens) - batch.query_lens)[members]
        offsets = np.arange(query_lens.max())
        valid = offsets < query_lens[:, None]
        tokens = np.where(valid, starts[:, None] + offsets, starts[0])
        positions = np.where(valid, (context_lens - query_lens)[:, None] + offsets, 0)
        num_blocks = -(-int(context_lens.max()) // batch.block_size)
        return SequenceGroup(
            len(members),
            self._int64(tokens.reshape(-1)),
            None if valid.all() else self._int64(np.flatnonzero(valid)),
            self._int64(batch.block_tables[members, :num_blocks].reshape(-1)),
            self._int64(positions),
            torch.arange(num_blocks * batch.block_size, device=self.device),
        )

    def _int64(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.device, non_blocking=True)


def _log2_ceil(values: np.ndarray) -> np.ndarray:
    exponents: np.ndarray = np.ceil(np.log2(values)).astype(np.int64)
    return exponents


def create(device: torch.device, dtype: torch.dtype) -> SdpaBackend:
    return SdpaBackend(device)
