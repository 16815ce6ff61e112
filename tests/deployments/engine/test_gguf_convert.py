"""A GGUF file becomes a folder once, computes the same, and survives a kill half-way."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from deployments.engine import gguf_convert
from deployments.engine.config import ModelConfig
from deployments.engine.model_cache import ModelSourceError
from deployments.engine.sources import resolve
from tests.source_builders import kill_once_ready, start_python, write_gguf
from tests.tiny_models import build_model


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    build_model(folder, "llama")
    return folder


@pytest.fixture(scope="module")
def tiny_gguf(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf"
    write_gguf(tiny_folder, file)
    return file


def test_a_gguf_file_is_converted_once_and_gives_the_same_model(
    tiny_folder: Path, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(source=str(tiny_gguf), cache_dir=tmp_path)
    folder = resolve(config)
    original = AutoModelForCausalLM.from_pretrained(tiny_folder)
    converted = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "The quick brown fox, 12 times."
    ids = AutoTokenizer.from_pretrained(tiny_folder)(text, return_tensors="pt").input_ids
    assert tokenizer(text).input_ids == ids[0].tolist()
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(tiny_folder).chat_template
    torch.testing.assert_close(converted(ids).logits, original(ids).logits)

    monkeypatch.setattr(gguf_convert, "_convert", lambda *_: pytest.fail("converted twice"))
    assert resolve(config) == folder


def test_the_digest_of_a_gguf_file_is_checked_and_follows_its_content(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    right = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    with pytest.raises(ModelSourceError, match=f"{right}.*{'0' * 64}"):
        resolve(ModelConfig(source=str(tiny_gguf), sha256="0" * 64, cache_dir=tmp_path))
    assert tiny_gguf.is_file(), "the user's own file is never deleted"
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(tiny_gguf.read_bytes())
    first = resolve(ModelConfig(source=str(changed), sha256=right, cache_dir=tmp_path))
    changed.write_bytes(b"GGUF, but not really")
    with pytest.raises(ModelSourceError, match=r"cannot convert .*changed\.gguf"):
        resolve(ModelConfig(source=str(changed), cache_dir=tmp_path))
    assert list((tmp_path / "converted").iterdir()) == [first]


KILLED_WHILE_CONVERTING = """
import sys, time
from pathlib import Path
from deployments.engine import gguf_convert, sources
from deployments.engine.config import ModelConfig

convert = gguf_convert._convert
def halt_before_the_marker(file, folder):
    convert(file, folder)
    Path(sys.argv[2]).touch()
    time.sleep(600)

gguf_convert._convert = halt_before_the_marker
sources.resolve(ModelConfig(source=sys.argv[3], cache_dir=Path(sys.argv[1])))
"""


def test_a_conversion_that_is_killed_is_not_trusted(tiny_gguf: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = start_python(KILLED_WHILE_CONVERTING, cache, tmp_path / "ready", tiny_gguf)
    kill_once_ready(process, tmp_path / "ready")
    assert list(cache.glob("tmp/*/entry/model.safetensors")), "the kill came half-way"
    assert not list(cache.glob("converted/*"))
    folder = resolve(ModelConfig(source=str(tiny_gguf), cache_dir=cache))
    AutoModelForCausalLM.from_pretrained(folder)
    assert not list(cache.glob("tmp/*"))
