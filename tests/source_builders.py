"""What the tests of model sources need: wheels, a package index, a GGUF file, and processes to kill."""

from __future__ import annotations

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
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

REPOSITORY = Path(__file__).parents[1]
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


def use_only_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `folder` the only place where pip looks for packages."""
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)


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
