"""Tokenizer, weights and facts of a model folder; the overlay of generation defaults."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from deployments.engine.config import GenerateConfig, ModelConfig
from deployments.engine.loader import describe, generation_defaults, load_model, load_tokenizer
from deployments.engine.sources import ModelSourceError
from tests.tiny_models import KINDS, MAX_POSITIONS, Kind, build_model

CPU = torch.device("cpu")
BUILT_IN: dict[str, Any] = {
    "max_new_tokens": 256,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": None,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "stop": [],
    "stream": False,
    "ignore_eos": False,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_model(tmp_path / "tiny", "llama")
    return tmp_path / "tiny"


def edit_json(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | values))


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_model_computes_what_the_saved_one_did(kind: Kind, tmp_path: Path) -> None:
    original = build_model(tmp_path, kind)
    config = ModelConfig(source=str(tmp_path))
    tokenizer = load_tokenizer(config)
    model = load_model(config, torch.float32, CPU, "sdpa")
    ids = tokenizer("The quick brown fox jumps over the lazy dog", return_tensors="pt").input_ids
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(model(ids).logits, original(ids).logits)

    info = describe(config, tokenizer)
    assert info.vocab_size == model.get_input_embeddings().weight.shape[0]
    assert info.max_position_embeddings == MAX_POSITIONS
    assert info.eos_token_ids == {tokenizer.convert_tokens_to_ids("<|im_end|>")}


def test_the_model_has_the_dtype_and_attention_asked_for(folder: Path) -> None:
    model = load_model(ModelConfig(source=str(folder)), torch.bfloat16, CPU, "eager")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "eager"


def test_facts_of_a_model(folder: Path) -> None:
    edit_json(folder / "config.json", vocab_size=384)
    config = ModelConfig(source=str(folder))
    info = describe(config, load_tokenizer(config))
    assert info.served_name == "tiny"
    assert (info.vocab_size, info.tokenizer_size) == (384, 320)
    assert info.bos_token_id is None
    assert info.created == int((folder / "config.json").stat().st_mtime)
    assert info.generation.model_dump() == BUILT_IN
    named = ModelConfig(source=str(folder), served_name="another")
    assert describe(named, load_tokenizer(named)).served_name == "another"


@pytest.mark.parametrize(
    ("in_config", "in_generation_config", "expected"),
    [(None, None, {2}), (5, None, {2, 5}), ([5, 6], 7, {2, 5, 6, 7}), (2, [2, 9], {2, 9})],
)
def test_eos_ids_are_the_union_of_all_that_name_them(
    folder: Path, in_config: object, in_generation_config: object, expected: set[int]
) -> None:
    edit_json(folder / "config.json", eos_token_id=in_config)
    edit_json(folder / "generation_config.json", eos_token_id=in_generation_config)
    config = ModelConfig(source=str(folder))
    assert describe(config, load_tokenizer(config)).eos_token_ids == expected


def test_facts_of_a_nested_configuration(folder: Path) -> None:
    text = {"vocab_size": 999, "max_position_embeddings": 77, "hidden_size": 64, "eos_token_id": 8}
    nested = {"model_type": "gemma3", "text_config": text}
    (folder / "config.json").write_text(json.dumps(nested))
    config = ModelConfig(source=str(folder))
    info = describe(config, load_tokenizer(config))
    assert (info.vocab_size, info.max_position_embeddings) == (999, 77)
    assert info.eos_token_ids == {2, 8}
    (folder / "config.json").write_text(json.dumps(nested | {"eos_token_id": [1, 106]}))
    assert describe(config, load_tokenizer(config)).eos_token_ids == {1, 2, 8, 106}


@pytest.mark.parametrize(
    ("model_file", "configured", "expected"),
    [
        ({}, {}, {}),
        ({"max_new_tokens": 12}, {}, {"max_new_tokens": 12}),
        ({"max_length": 20}, {}, {}),
        ({"do_sample": True}, {}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, {}, {"temperature": 0.6, "top_k": 20}),
        ({"do_sample": False, "temperature": 0.6}, {}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {}, {"top_p": 0.9}),
        ({"do_sample": True, "temperature": 0.6}, {"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_p": 0.9, "top_k": 20}, {"top_p": 0.5}, {"top_p": 0.5, "top_k": 20}),
        ({"top_k": 20}, {"top_k": None}, {"top_k": 20}),
        (
            {},
            {"stop": ["END"], "seed": 3, "ignore_eos": True},
            {"stop": ["END"], "seed": 3, "ignore_eos": True},
        ),
        ({"repetition_penalty": 1.1, "min_p": 0.1}, {}, {"repetition_penalty": 1.1, "min_p": 0.1}),
        ({"top_p": None, "do_sample": None}, {}, {}),
    ],
)
def test_configured_defaults_lie_over_the_models_own(
    model_file: dict[str, Any], configured: dict[str, Any], expected: dict[str, Any]
) -> None:
    merged = generation_defaults(model_file, GenerateConfig.model_validate(configured))
    assert merged.model_dump() == BUILT_IN | expected


@pytest.mark.parametrize(
    "value",
    [{"top_k": 0}, {"top_p": 1.5}, {"repetition_penalty": "high"}, {"do_sample": True, "temperature": 3.0}],
)
def test_values_out_of_range_are_ignored_with_a_warning(
    value: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        merged = generation_defaults(value | {"max_new_tokens": 7}, GenerateConfig())
    assert merged.model_dump() == BUILT_IN | {"max_new_tokens": 7}
    assert list(value)[-1] in caplog.text


def test_a_generation_config_that_is_not_json_is_refused(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    config = ModelConfig(source=str(folder))
    with pytest.raises(ModelSourceError, match=r"generation_config\.json is not valid JSON"):
        describe(config, load_tokenizer(config))


def test_a_chat_template_file_replaces_the_tokenizers(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for message in messages %}"
        "{% generation %}[{{ message['content'] }}]{% endgeneration %}"
        "{% endfor %}"
    )
    tokenizer = load_tokenizer(ModelConfig(source=str(folder), chat_template=template))
    messages = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "[hello]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the chat template"),
        (b"\xff", "cannot read"),
        (b"\n{% if %}", "template.jinja, line 2"),
    ],
)
def test_a_bad_chat_template_is_refused(
    folder: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    template = tmp_path / "template.jinja"
    if content is not None:
        template.write_bytes(content)
    with pytest.raises(ModelSourceError, match=message):
        load_tokenizer(ModelConfig(source=str(folder), chat_template=template))


def test_a_tokenizer_needs_no_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert load_tokenizer(ModelConfig(source=str(folder))).chat_template is None


def test_a_folder_without_weights_or_tokenizer_is_refused(folder: Path) -> None:
    config = ModelConfig(source=str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelSourceError, match="cannot load"):
        load_model(config, torch.float32, CPU, "sdpa")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelSourceError, match="tokenizer"):
        load_tokenizer(config)
