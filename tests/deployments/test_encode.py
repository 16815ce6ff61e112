"""The Tokenizer deployment's work: templates, batches, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from deployments.tokenizer import Tokenizer
from deployments.wire import Encoded, Prompt
from tests.tiny_tokenizers import MAX_MODEL_LEN, tokenizer_replica

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools\\n  here') }}{% endif %}"
    "{{ m['role'] }}:{{ m['content'] }}{% endfor %}"
    "{% if style is defined %}[{{ style }}]{% endif %}{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture(scope="module")
def templated(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_replica(tmp_path_factory.mktemp("templated"), TEMPLATE)


def with_bos(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the tokenizer put a first token in front, as Llama's does."""
    bos: int = tokenizer._tokenizer.convert_tokens_to_ids("<|im_start|>")
    backend = tokenizer._tokenizer.backend_tokenizer
    monkeypatch.setattr(
        backend,
        "post_processor",
        TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", bos)]),
    )
    monkeypatch.setattr(tokenizer, "_info", replace(tokenizer._info, bos_token_id=bos))
    return bos


def chat(content: str, role: str = "user", **kwargs: Any) -> Prompt:
    return Prompt([{"role": role, "content": content}], None, kwargs, False)


def text_of(tokenizer: Tokenizer, encoded: Encoded) -> str:
    assert encoded.refusal is None
    text: str = tokenizer._tokenizer.decode(encoded.token_ids)
    return text


def test_a_template_that_raises_refuses_only_its_own_prompt(templated: Tokenizer) -> None:
    first, refused, last = templated.encode_all([chat("a"), chat("b", role="tool"), chat("c")])
    assert text_of(templated, first) == "user:a>"
    assert text_of(templated, last) == "user:c>"
    assert refused == Encoded([], "the chat template refused the messages: no tools here")


def test_template_kwargs_reach_the_template_of_their_own_prompt(templated: Tokenizer) -> None:
    plain, styled = templated.encode_all([chat("a"), chat("a", style="haiku")])
    assert text_of(templated, plain) == "user:a>"
    assert text_of(templated, styled) == "user:a[haiku]>"


def test_a_model_without_a_template_refuses_messages(tmp_path: Path) -> None:
    tokenizer = tokenizer_replica(tmp_path)
    tokenizer._tokenizer.chat_template = None
    refused, text = tokenizer.encode_all([chat("a"), Prompt(None, "a")])
    assert refused.refusal is not None
    assert "no chat template" in refused.refusal
    assert text_of(tokenizer, text) == "a"


def test_special_tokens_are_added_where_asked_and_the_order_is_kept(
    tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bos = with_bos(tiny, monkeypatch)
    flags = [True, False, False, True, False]
    texts = [f"prompt number {i}" for i in range(5)]
    prompts = [Prompt(None, text, {}, flag) for text, flag in zip(texts, flags, strict=True)]
    encoded = tiny.encode_all(prompts)
    assert [e.token_ids[0] == bos for e in encoded] == flags
    assert [tiny._tokenizer.decode(e.token_ids, skip_special_tokens=True) for e in encoded] == texts


@pytest.mark.parametrize("special", [True, False])
def test_an_empty_prompt_becomes_the_first_token(
    tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch, special: bool
) -> None:
    bos = with_bos(tiny, monkeypatch)
    assert tiny.encode_all([Prompt(None, "", {}, special)]) == [Encoded([bos])]


def test_an_empty_prompt_is_refused_where_there_is_no_first_token(tiny: Tokenizer) -> None:
    empty, other = tiny.encode_all([Prompt(None, ""), Prompt(None, "a")])
    assert empty.token_ids == []
    assert empty.refusal is not None
    assert "empty" in empty.refusal
    assert text_of(tiny, other) == "a"


def test_a_text_that_must_be_too_long_is_refused_before_it_is_encoded(
    tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded_texts: list[str] = []
    inner = tiny._tokenizer

    def recording(texts: list[str], **kwargs: Any) -> Any:
        encoded_texts.extend(texts)
        return inner(texts, **kwargs)

    monkeypatch.setattr(tiny, "_tokenizer", recording)
    longest = tiny._longest_token * MAX_MODEL_LEN
    refused, fits = tiny.encode_all([Prompt(None, "x" * (longest + 1)), Prompt(None, "x" * longest)])
    assert refused.refusal is not None
    assert str(longest + 1) in refused.refusal
    assert str(MAX_MODEL_LEN) in refused.refusal
    assert fits.refusal is None
    assert encoded_texts == ["x" * longest]


def test_one_prompt_alone_and_an_empty_batch(tiny: Tokenizer) -> None:
    assert tiny.encode_all([]) == []
    assert text_of(tiny, tiny.encode_all([Prompt(None, "a")])[0]) == "a"
