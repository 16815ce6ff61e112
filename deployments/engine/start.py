"""From configuration to a running engine."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from .attention import IMPLEMENTATION_NAME, register
from .config import EngineConfig, ModelConfig
from .engine import Engine, Publish
from .loader import describe, load_model, load_tokenizer
from .placement import resolve_device, resolve_dtype


def start_engine(
    model: ModelConfig, config: EngineConfig, publish: Publish
) -> tuple[Engine, PreTrainedTokenizerBase]:
    """Load the model on its device and start an engine on it; returns when that is warm."""
    tokenizer = load_tokenizer(model)
    device = resolve_device(config)
    dtype = resolve_dtype(config, device)
    register()
    weights = load_model(model, dtype, device, IMPLEMENTATION_NAME)
    engine = Engine(config, weights, describe(model, tokenizer), publish)
    engine.start()
    return engine, tokenizer
