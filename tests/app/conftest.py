"""The app over a scripted graph, in each dialect."""

from __future__ import annotations

from typing import Protocol, get_args

import pytest

from app.dialects import DialectName
from deployments.tokenizer import Tokenizer
from tests.app.api import Api
from tests.app.scripted_graph import Script
from tests.tiny_tokenizers import tokenizer_replica


class MakeApi(Protocol):
    def __call__(self, dialect: DialectName, *scripts: Script | str, **graph: object) -> Api: ...


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The Tokenizer deployment's class over the tiny byte-level tokenizer."""
    return tokenizer_replica(tmp_path_factory.mktemp("tiny-tokenizer"))


@pytest.fixture
def make_api(tiny: Tokenizer) -> MakeApi:
    return lambda dialect, *scripts, **graph: Api(tiny, dialect, *scripts, **graph)


@pytest.fixture(params=get_args(DialectName))
def dialect(request: pytest.FixtureRequest) -> DialectName:
    name: DialectName = request.param
    return name


@pytest.fixture
def api(make_api: MakeApi, dialect: DialectName) -> Api:
    """The app in each dialect in turn; every choice answers "Hello world"."""
    return make_api(dialect)
