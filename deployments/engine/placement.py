"""Resolves the `auto` settings of an EngineConfig against the machine at hand."""

from __future__ import annotations

import torch

from .config import EngineConfig
from .threads import available_cores


def resolve_device(config: EngineConfig) -> torch.device:
    """The device to run on; a device that is asked for but absent is an error that says so."""
    present = {"cuda": torch.cuda.is_available(), "npu": _npu_available(), "cpu": True}
    if config.device == "auto":
        return torch.device(next(name for name in ("cuda", "npu", "cpu") if present[name]))
    if not present[config.device]:
        raise ValueError(f"engine.device is {config.device}, but torch finds no such device; use cpu or auto")
    return torch.device(config.device)


def resolve_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """16-bit only where it is computed natively: emulated bfloat16 is slower than float32."""
    if config.dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[config.dtype]
    if device.type == "cpu":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if native else torch.float32
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


def resolve_backend(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> str:
    if config.attention_backend != "auto":
        return config.attention_backend
    return "varlen" if device.type == "cuda" and dtype != torch.float32 else "sdpa"


def resolve_num_threads(config: EngineConfig) -> int:
    return config.num_threads or len(available_cores())


def _npu_available() -> bool:
    try:
        import torch_npu  # noqa: F401  (registers torch.npu)
    except ImportError:
        return False
    return bool(torch.get_device_module("npu").is_available())
