"""A model's description: light to import, so that the ingress needs neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass

from .config import GenerateConfig


@dataclass(frozen=True)
class ModelInfo:
    """What the rest of the system must know of a model without loading its weights."""

    served_name: str
    max_position_embeddings: int
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    vocab_size: int  # rows of the embedding, which may be padded beyond the tokenizer
    tokenizer_size: int
    created: int  # unix seconds
    generation: GenerateConfig
