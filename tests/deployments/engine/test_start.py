"""Which forward pass a configuration gets, and what is said where it is not the fast one."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from deployments.engine import start
from deployments.engine.compiled import CompiledForward
from deployments.engine.config import EngineConfig
from deployments.engine.forward import NativeForward, TorchForward
from deployments.engine.kernels import build
from deployments.engine.model_cache import cache_folder
from tests.deployments.engine.engine_harness import LoadedModel


def test_compiled_is_the_default(llama: LoadedModel) -> None:
    forward = start.create_forward(copy.deepcopy(llama.paged), EngineConfig(), cache_folder(None))
    assert type(forward) is CompiledForward


@pytest.mark.parametrize(
    "config", [{"compile": "off"}, {"attention_backend": "reference"}, {"block_size": 8}], ids=str
)
def test_what_excludes_the_kernels(llama: LoadedModel, config: dict[str, object]) -> None:
    settings = EngineConfig.model_validate(config)
    assert type(start.create_forward(llama.paged, settings, cache_folder(None))) is TorchForward
    with pytest.raises(ValueError, match=r"engine.quantization is int8, but .*(engine\.|blocks)"):
        start.create_forward(
            llama.paged, settings.model_copy(update={"quantization": "int8"}), cache_folder(None)
        )


def test_without_a_compiler_it_starts_and_says_so_in_one_line(
    llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "is_loaded", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert type(start.create_forward(llama.paged, EngineConfig(), tmp_path)) is TorchForward
    assert [record.getMessage() for record in caplog.records] == [
        "running without compilation: there is no C++ compiler (g++ or clang++)"
    ]


def test_a_model_that_cannot_be_compiled_runs_step_by_step(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("cannot follow this\nand more")

    monkeypatch.setattr(start, "compile_forward", refuse)
    model = copy.deepcopy(llama.paged)
    assert type(start.create_forward(model, EngineConfig(), cache_folder(None))) is NativeForward
    assert [record.getMessage() for record in caplog.records] == [
        "the model runs without compilation: RuntimeError: cannot follow this"
    ]
