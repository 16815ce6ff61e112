"""CPU: our own kernel, which writes the new keys and values and reads the block tables itself.

Its cache has the same shape as every other, but its own order of elements within a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .backend import AttentionParams


@dataclass(frozen=True, slots=True)
class NativeContext:
    """A step's tensors, all int64 but the cache: `cache` [L, 2, B, P, G, D], `slots` [T], `query_starts`
    [S + 1], `context_lens` [S], `block_tables` [S, N]."""

    cache: torch.Tensor
    slots: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        params: AttentionParams,
    ) -> torch.Tensor:
        output: torch.Tensor = torch.ops.servegraph.paged_attention(
            query,
            key,
            value,
            self.cache,
            layer,
            self.slots,
            self.query_starts,
            self.context_lens,
            self.block_tables,
            params.scaling,
            params.softcap or 0.0,
            params.sliding_window or 0,
        )
        return output


def supports(dtype: torch.dtype, head_dim: int, block_size: int) -> bool:
    """The kernel reads vectors of 16 elements, along the head and along a block."""
    return dtype in (torch.float32, torch.bfloat16) and head_dim % 16 == 0 and block_size % 16 == 0
