"""A model's description: light to import, so that the ingress needs neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass

from .config import EngineConfig, GenerateConfig


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


def resolve_max_model_len(config: EngineConfig, model_maximum: int) -> int:
    """Tokens of prompt and output together that one request may have."""
    if config.max_model_len is not None and config.max_model_len > model_maximum:
        raise ValueError(
            f"engine.max_model_len is {config.max_model_len}, but the model's maximum is {model_maximum}"
        )
    return config.max_model_len or model_maximum
