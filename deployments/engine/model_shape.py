"""What the engine must know of a loaded model's architecture."""

from __future__ import annotations

from transformers import PreTrainedModel

_SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


def check_supported(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    if not model._supports_attention_backend:
        raise ValueError(f"{config.model_type} does not route its attention through AttentionInterface")
    other = set(config.layer_types or ()) - _SUPPORTED_LAYERS if "layer_types" in config else set()
    if other:
        raise ValueError(f"{config.model_type} has layers of kind {sorted(other)}, which are not supported")


def cache_shape(model: PreTrainedModel) -> tuple[int, int, int]:
    """Layers, key/value heads and head size."""
    config = model.config.get_text_config()
    heads: int = config.num_attention_heads
    head_dim = config.head_dim if "head_dim" in config and config.head_dim else config.hidden_size // heads
    kv_heads = config.num_key_value_heads if "num_key_value_heads" in config else heads
    return config.num_hidden_layers, kv_heads, head_dim
