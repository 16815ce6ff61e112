"""Tiny models and their expected greedy answers, made once a session."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from deployments.engine.config import ModelConfig
from tests.deployments.engine.engine_harness import LoadedModel, LoadTiny, load_twice
from tests.deployments.engine.parity import MakeCase, ParityCase, random_case
from tests.tiny_models import Kind, build_model


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny kernels gain nothing from a second thread, and wait long for it on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def load_tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadTiny:
    """Float32 tiny models by kind and whether input and output embeddings are tied."""

    @cache
    def load(kind: Kind, tied: bool) -> LoadedModel:
        folder = tmp_path_factory.mktemp("tiny") / f"{kind}-{tied}"
        build_model(folder, kind, tied=tied)
        return load_twice(ModelConfig(source=str(folder)))

    return load


@pytest.fixture(scope="session")
def make_case(load_tiny: LoadTiny) -> MakeCase:
    """Random prompts and what `generate` answers to each of them."""
    return cache(lambda kind, tied: random_case(load_tiny(kind, tied), 50 if kind == "llama" else 20))


@pytest.fixture(scope="session")
def llama(load_tiny: LoadTiny) -> LoadedModel:
    return load_tiny("llama", False)


@pytest.fixture(scope="session")
def llama_case(make_case: MakeCase) -> ParityCase:
    return make_case("llama", False)
