"""One forward pass over a packed batch, through an unmodified transformers model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from .attention import AttentionContext, KVTensors, create_backend
from .batch import PackedBatch, pack
from .config import EngineConfig
from .placement import resolve_backend
from .request import Request, SamplingParams, ScheduledChunk
from .sampler import Sampler

_SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


class ModelRunner:
    """Owns the model, the KV-cache tensors, the attention backend and the sampler."""

    def __init__(self, config: EngineConfig, model: PreTrainedModel, eos_token_ids: frozenset[int]) -> None:
        _check_supported(model)
        self._model = model
        self._sampler = Sampler(eos_token_ids)
        self._block_size = config.block_size
        backend_name = resolve_backend(config, model.device, model.dtype)
        self._backend = create_backend(backend_name, model.device, model.dtype)
        self.num_blocks = _num_blocks(config, model)
        self._caches = _allocate(model, self.num_blocks, config.block_size)

    @property
    def placement(self) -> tuple[torch.device, torch.dtype]:
        return self._model.device, self._model.dtype

    @torch.inference_mode()
    def execute(self, chunks: Sequence[ScheduledChunk]) -> list[int]:
        """Compute the chunks; returns a new token for each one that `samples`, in their order."""
        logits = self._forward(pack(chunks, self._block_size))
        sampling = [chunk.request for chunk in chunks if chunk.samples]
        return self._sampler.sample(logits, sampling) if sampling else []

    def warm_up(self, max_tokens: int) -> None:
        """Run each kind of step once on block 0, so that the first request meets warm kernels."""
        for num_tokens in (max_tokens, 1):
            request = Request("warm-up", num_tokens, [0] * num_tokens, _WARM_UP_PARAMS, 0, num_tokens + 1)
            request.block_ids = [0] * -(-num_tokens // self._block_size)
            self.execute([ScheduledChunk(request, num_tokens)])
        for cache in self._caches:
            cache.key[0].zero_()
            cache.value[0].zero_()

    def _forward(self, batch: PackedBatch) -> torch.Tensor:
        context = AttentionContext(self._backend.plan(batch), self._tensor(batch.slots), self._caches)
        output = self._model(
            input_ids=self._tensor(batch.token_ids).unsqueeze(0),
            position_ids=self._tensor(batch.positions).unsqueeze(0),
            use_cache=False,
            logits_to_keep=self._tensor(batch.sample_rows),
            attention_context=context,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._model.device, non_blocking=True)


_WARM_UP_PARAMS = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)


def _check_supported(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    if not model._supports_attention_backend:
        raise ValueError(f"{config.model_type} does not route its attention through AttentionInterface")
    other = set(config.layer_types or ()) - _SUPPORTED_LAYERS if "layer_types" in config else set()
    if other:
        raise ValueError(f"{config.model_type} has layers of kind {sorted(other)}, which are not supported")


def _cache_shape(model: PreTrainedModel) -> tuple[int, int, int]:
    """Layers, key/value heads and head size."""
    config = model.config.get_text_config()
    heads: int = config.num_attention_heads
    head_dim = config.head_dim if "head_dim" in config and config.head_dim else config.hidden_size // heads
    kv_heads = config.num_key_value_heads if "num_key_value_heads" in config else heads
    return config.num_hidden_layers, kv_heads, head_dim


def _num_blocks(config: EngineConfig, model: PreTrainedModel) -> int:
    layers, kv_heads, head_dim = _cache_shape(model)
    block_bytes = 2 * layers * config.block_size * kv_heads * head_dim * model.dtype.itemsize
    if config.kv_cache_memory_gb is not None:
        budget = config.kv_cache_memory_gb * 2**30
    elif model.device.type == "cpu":
        budget = 2 * 2**30
    else:
        free, _ = torch.get_device_module(model.device).mem_get_info()
        budget = free * config.memory_utilization
    return int(budget // block_bytes)


def _allocate(model: PreTrainedModel, num_blocks: int, block_size: int) -> list[KVTensors]:
    """Zeros rather than empty memory: masked positions must hold finite numbers."""
    layers, kv_heads, head_dim = _cache_shape(model)
    shape = (num_blocks, block_size, kv_heads, head_dim)
    return [
        KVTensors(
            torch.zeros(shape, dtype=model.dtype, device=model.device),
            torch.zeros(shape, dtype=model.dtype, device=model.device),
        )
        for _ in range(layers)
    ]
