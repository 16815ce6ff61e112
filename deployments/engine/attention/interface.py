"""The function that transformers calls in place of its own attention."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from .backend import AttentionContext, AttentionParams

IMPLEMENTATION_NAME = "servegraph_paged"


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    attention_context: AttentionContext,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write the new keys and values into the cache, then attend to all of each sequence's.

    `query` is [1, H, T, D], `key` and `value` are [1, G, T, D] for the step's T packed tokens;
    returns [1, T, H, D]. The mask is None: sequence borders come from the context's plan.
    """
    if s_aux is not None:
        raise NotImplementedError("attention sinks are not supported")
    layer: int = module.layer_idx  # type: ignore[assignment]
    params = AttentionParams(scaling, sliding_window, softcap)
    new_key, new_value = key[0].transpose(0, 1), value[0].transpose(0, 1)
    output = attention_context.attend(layer, query[0].transpose(0, 1), new_key, new_value, params)
    return output.unsqueeze(0), None


def register() -> None:
    """Make the function known to transformers. No mask function goes with it, so no mask is built."""
    AttentionInterface.register(IMPLEMENTATION_NAME, paged_attention)
