"""Everything a serve config may say under `args`; an unknown key or a value out of range stops the start."""

from __future__ import annotations

from pydantic import Field

from deployments.config import AdmissionConfig, ReplicaResources, TokenizerConfig
from deployments.engine.config import EngineConfig, ModelConfig, Settings

from .dialects import DialectName


class ApiConfig(Settings):
    """How the HTTP API speaks."""

    dialect: DialectName = Field(
        "pypto-serving", description="where the API documents differ, which one holds"
    )
    owned_by: str = Field("servegraph", description="owner shown by /v1/models")
    max_choices: int = Field(128, gt=0, description="prompts times n in one request")
    health_timeout_s: float = Field(2.0, gt=0, description="seconds a replica has to answer /health")


class AppArgs(Settings):
    """The builder's arguments."""

    model: ModelConfig
    engine: EngineConfig = EngineConfig()
    api: ApiConfig = ApiConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    admission: AdmissionConfig = AdmissionConfig()
    replica: ReplicaResources = ReplicaResources()
