"""From configuration to a running engine."""

from __future__ import annotations

import logging
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .attention import IMPLEMENTATION_NAME, create_backend, native, register
from .compiled import compile_forward
from .config import EngineConfig, ModelConfig
from .engine import Engine, Publish
from .forward import Forward, NativeForward, TorchForward
from .kernels import KernelsUnavailableError, load_kernels
from .loader import describe, load_model, load_tokenizer
from .model_cache import cache_folder
from .model_shape import cache_shape, check_supported
from .packed_linear import pack_linears
from .placement import resolve_backend, resolve_device, resolve_dtype

logger = logging.getLogger(__name__)


def start_engine(
    model: ModelConfig, config: EngineConfig, publish: Publish
) -> tuple[Engine, PreTrainedTokenizerBase]:
    """Load the model on its device and start an engine on it; returns when that is warm."""
    tokenizer = load_tokenizer(model)
    device = resolve_device(config)
    dtype = resolve_dtype(config, device)
    register()
    weights = load_model(model, dtype, device, IMPLEMENTATION_NAME)
    check_supported(weights)
    forward = create_forward(weights, config, cache_folder(model.cache_dir))
    engine = Engine(config, weights, describe(model, tokenizer), forward, publish)
    engine.start()
    return engine, tokenizer


def create_forward(model: PreTrainedModel, config: EngineConfig, cache: Path) -> Forward:
    """The fastest forward pass that the configuration allows and this machine can build."""
    reason = _no_kernels_because(model, config, cache)
    if reason is None:
        return _native_forward(model, config, cache)
    if config.quantization != "none":
        raise ValueError(f"engine.quantization is {config.quantization}, but {reason}")
    if config.compile == "auto" and model.device.type == "cpu":
        logger.warning("running without compilation: %s", reason)
    backend = resolve_backend(config, model.device, model.dtype)
    return TorchForward(model, create_backend(backend, model.device, model.dtype))


def _no_kernels_because(model: PreTrainedModel, config: EngineConfig, cache: Path) -> str | None:
    """Why our CPU kernels cannot be used, or None once they are loaded."""
    if config.compile == "off":
        return "engine.compile is off"
    if config.attention_backend != "auto":
        return f"engine.attention_backend is {config.attention_backend}"
    if model.device.type != "cpu":
        return f"the kernels are for cpu, not {model.device.type}"
    *_, head_dim = cache_shape(model)
    if not native.supports(model.dtype, head_dim, config.block_size):
        return (
            f"the kernels need float32 or bfloat16, heads and blocks of a multiple of 16, not {model.dtype}, "
            f"heads of {head_dim} and engine.block_size {config.block_size}"
        )
    try:
        load_kernels(cache)
    except KernelsUnavailableError as error:
        return str(error)
    return None


def _native_forward(model: PreTrainedModel, config: EngineConfig, cache: Path) -> Forward:
    pack_linears(model, int8=config.quantization == "int8")
    try:
        return compile_forward(model, config.block_size, cache)
    except Exception as error:  # whatever a model does that export or Inductor cannot follow
        lines = str(error).splitlines() or [""]
        logger.warning("the model runs without compilation: %s: %s", type(error).__name__, lines[0])
        return NativeForward(model)
