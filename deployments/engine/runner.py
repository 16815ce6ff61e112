"""Runs a step: packs the scheduled chunks, computes their logits, and samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from .batch import pack
from .config import EngineConfig
from .forward import Forward
from .model_shape import cache_shape
from .request import Request, SamplingParams, ScheduledChunk
from .sampler import Sampler


class ModelRunner:
    """Owns the KV-cache tensor, and runs the model and the sampler on it."""

    def __init__(
        self, config: EngineConfig, model: PreTrainedModel, eos_token_ids: frozenset[int], forward: Forward
    ) -> None:
        self._model = model
        self._forward = forward
        self._sampler = Sampler(eos_token_ids)
        self._block_size = config.block_size
        self.num_blocks = _num_blocks(config, model)
        layers, kv_heads, head_dim = cache_shape(model)
        # Zeros rather than empty memory: masked positions must hold finite numbers.
        self._cache = torch.zeros(
            (layers, 2, self.num_blocks, config.block_size, kv_heads, head_dim),
            dtype=model.dtype,
            device=model.device,
        )

    @property
    def placement(self) -> tuple[torch.device, torch.dtype]:
        return self._model.device, self._model.dtype

    @torch.inference_mode()
    def execute(self, chunks: Sequence[ScheduledChunk]) -> list[int]:
        """Compute the chunks; returns a new token for each one that `samples`, in their order."""
        logits = self._forward(pack(chunks, self._block_size), self._cache)
        sampling = [chunk.request for chunk in chunks if chunk.samples]
        return self._sampler.sample(logits, sampling) if sampling else []

    def warm_up(self, max_tokens: int) -> None:
        """Run each kind of step once on block 0, so that the first request meets warm kernels."""
        for num_tokens in (max_tokens, 1):
            request = Request("warm-up", num_tokens, [0] * num_tokens, _WARM_UP_PARAMS, 0, num_tokens + 1)
            request.block_ids = [0] * -(-num_tokens // self._block_size)
            self.execute([ScheduledChunk(request, num_tokens)])
        self._cache[:, :, 0].zero_()


_WARM_UP_PARAMS = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)


def _num_blocks(config: EngineConfig, model: PreTrainedModel) -> int:
    layers, kv_heads, head_dim = cache_shape(model)
    block_bytes = 2 * layers * config.block_size * kv_heads * head_dim * model.dtype.itemsize
    if config.kv_cache_memory_gb is not None:
        budget = config.kv_cache_memory_gb * 2**30
    elif model.device.type == "cpu":
        budget = 2 * 2**30
    else:
        free, _ = torch.get_device_module(model.device).mem_get_info()
        budget = free * config.memory_utilization
    return int(budget // block_bytes)
