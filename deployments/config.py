"""Configuration of the deployments around the engine. Frozen and strict, like the engine's own."""

from __future__ import annotations

from pydantic import Field

from .engine.config import Settings


class TokenizerConfig(Settings):
    """Batching of the Tokenizer's encode calls."""

    max_batch_tokens: int = Field(65536, gt=0, description="estimated tokens in one batch")
    batch_wait_timeout_s: float = Field(0.0, ge=0, le=1, description="seconds to wait for a batch to fill")


class AdmissionConfig(Settings):
    """Batching of the requests that enter a ModelReplica's scheduler together."""

    max_batch_tokens: int = Field(8192, gt=0, description="prompt tokens still to compute in one hand-over")
    batch_wait_timeout_s: float = Field(0.0, ge=0, le=1, description="seconds to wait for a batch to fill")


class ReplicaResources(Settings):
    """What Ray reserves for one ModelReplica."""

    num_cpus: float = Field(1.0, ge=0, description="logical CPUs; the engine uses engine.num_threads threads")
    num_gpus: float = Field(0.0, ge=0, description="GPUs, fractions share one")
    resources: dict[str, float] = Field({}, description="other resources, such as NPU: 1")
    accelerator_type: str | None = Field(None, description="accelerator to require, such as H100")
