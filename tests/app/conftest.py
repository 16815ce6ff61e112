"""The app over a scripted graph, in each dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from app.dialects import DialectName
from deployments.engine.config import EngineConfig, ModelConfig
from deployments.config import TokenizerConfig
from tests.app.api import Api
from deployments.tokenizer import Tokenizer
from tests.tiny_models import build_tokenizer, tiny_config

MakeApi = Callable[..., Api]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The real Tokenizer deployment's class over the tiny byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_config("llama", build_tokenizer(folder), tied=False).save_pretrained(folder)
    model = ModelConfig(source=str(folder), served_name="tiny")
    return Tokenizer(model, EngineConfig(max_model_len=256), TokenizerConfig())


@pytest.fixture
def make_api(tokenizer: Tokenizer) -> MakeApi:
    return lambda dialect, *scripts, **graph: Api(tokenizer, dialect, *scripts, **graph)


@pytest.fixture(params=get_args(DialectName))
def dialect(request: pytest.FixtureRequest) -> DialectName:
    name: DialectName = request.param
    return name


@pytest.fixture
def api(make_api: MakeApi, dialect: DialectName) -> Api:
    """The app in each dialect in turn; every choice answers "Hello world"."""
    return make_api(dialect)
