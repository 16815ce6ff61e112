"""Incremental decoding gives what decoding at once gives, whatever the tokenizer and the chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from deployments.detokenizer import Decode, Detokenizer, make_decode
from tests.tiny_models import build_tokenizer
from tests.tiny_tokenizers import sentencepiece_like, wordpiece_like

REPLACEMENT = "\ufffd"
EMOJI = "🙂👩‍🚀中文é"

# Text as models write it, with characters of two to four bytes beside each other and beside ASCII.
valid_text = st.text(
    st.one_of(
        st.sampled_from("ab hello.,\n"),
        st.sampled_from("é中文🙂\u200d👩🚀"),
        st.characters(exclude_categories=["Cs"], exclude_characters=REPLACEMENT + "▁"),
    ),
    max_size=30,
)
examples = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PreTrainedTokenizerFast]:
    folder: Path = tmp_path_factory.mktemp("byte-level")
    return {"byte-level": build_tokenizer(folder), "sentencepiece": sentencepiece_like()}


@pytest.fixture(params=["byte-level", "sentencepiece"])
def tokenizer(
    request: pytest.FixtureRequest, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> PreTrainedTokenizerFast:
    return tokenizers[request.param]


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def cut(ids: Sequence[int], sizes: Iterable[int]) -> list[Sequence[int]]:
    """Cut into chunks of these sizes; the last takes the rest."""
    chunks, start = [], 0
    for size in sizes:
        chunks.append(ids[start : start + size])
        start += size
    return [*chunks, ids[start:]]


def push_all(decode: Decode, prompt: Sequence[int], chunks: Iterable[Sequence[int]]) -> list[str]:
    detokenizer = Detokenizer(decode, prompt)
    return [detokenizer.push(chunk) for chunk in chunks]


chunk_sizes = st.lists(st.integers(1, 9), max_size=40)


@examples
@given(prompt=valid_text, output=valid_text, sizes=chunk_sizes)
@example(prompt="", output=EMOJI, sizes=[5])
@example(prompt="中文🙂中", output="文é", sizes=[1])
@example(prompt="é", output="中文中", sizes=[])
def test_chunks_join_to_the_text_of_all_tokens(
    tokenizer: PreTrainedTokenizerFast, prompt: str, output: str, sizes: list[int]
) -> None:
    decode = make_decode(tokenizer)
    prompt_ids = encode(tokenizer, prompt)
    all_ids = encode(tokenizer, prompt + output)
    if all_ids[: len(prompt_ids)] != prompt_ids:  # the tokenizer merges over the border
        prompt_ids, prompt = [], ""
    output_ids = all_ids[len(prompt_ids) :]
    expected = decode(all_ids)[len(decode(prompt_ids)) :]
    for chunks in (cut(output_ids, sizes), [[token] for token in output_ids], [output_ids]):
        pieces = push_all(decode, prompt_ids, chunks)
        assert "".join(pieces) == expected
        assert not any(REPLACEMENT in piece for piece in pieces)


@examples
@given(text=valid_text, num_prompt=st.integers(0, 20), sizes=chunk_sizes)
def test_a_prompt_may_end_within_a_character(
    tokenizers: dict[str, PreTrainedTokenizerFast], text: str, num_prompt: int, sizes: list[int]
) -> None:
    decode = make_decode(tokenizers["byte-level"])
    ids = encode(tokenizers["byte-level"], text)
    prompt, output = ids[:num_prompt], ids[num_prompt:]
    expected = text[len(decode(prompt).rstrip(REPLACEMENT)) :]
    assert "".join(push_all(decode, prompt, cut(output, sizes))) == expected


@examples
@given(data=st.data(), sizes=chunk_sizes)
def test_garbage_never_raises_and_does_not_depend_on_the_chunks(
    tokenizer: PreTrainedTokenizerFast, data: st.DataObject, sizes: list[int]
) -> None:
    ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=40)
    prompt, output = data.draw(ids, "prompt"), data.draw(ids, "output")
    decode = make_decode(tokenizer)
    one_by_one = "".join(push_all(decode, prompt, [[token] for token in output]))
    assert "".join(push_all(decode, prompt, cut(output, sizes))) == one_by_one
    assert "".join(push_all(decode, prompt, [output])) == one_by_one


@examples
@given(text=valid_text, places=st.lists(st.integers(0, 200), min_size=1, max_size=4), sizes=chunk_sizes)
@example(text="a b", places=[1], sizes=[])
def test_special_tokens_between_leave_the_text_as_it_is(
    tokenizer: PreTrainedTokenizerFast, text: str, places: list[int], sizes: list[int]
) -> None:
    decode = make_decode(tokenizer)
    ids = encode(tokenizer, text)
    mixed = list(ids)
    for place in places:
        mixed[place % (len(mixed) + 1) : 0] = [tokenizer.all_special_ids[0]]
    assert "".join(push_all(decode, [], [[token] for token in mixed])) == decode(ids)
    assert "".join(push_all(decode, [], cut(mixed, sizes))) == decode(ids)


@examples
@given(text=valid_text, num_cut=st.integers(1, 3))
@example(text="é中", num_cut=1)
def test_a_character_that_the_end_cuts_off_is_left_out(
    tokenizer: PreTrainedTokenizerFast, text: str, num_cut: int
) -> None:
    """The text before it is kept, also if all tokens come at once."""
    decode = make_decode(tokenizer)
    ids = encode(tokenizer, text)[:-num_cut]
    one_by_one = "".join(push_all(decode, [], [[token] for token in ids]))
    assert "".join(push_all(decode, [], [ids])) == one_by_one
    assert REPLACEMENT not in one_by_one
    assert text.removeprefix(" ").startswith(one_by_one.removeprefix(" "))


@pytest.mark.parametrize("text", [" indented", "\n    def f():", "a  b", "   "])
def test_spaces_stay_as_the_model_made_them(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    prompt = encode(tokenizer, "x")
    output = encode(tokenizer, "x" + text)[len(prompt) :]
    assert "".join(push_all(make_decode(tokenizer), prompt, [[token] for token in output])) == text


@pytest.mark.parametrize("token_by_token", [True, False])
def test_word_pieces_are_joined_by_spaces(token_by_token: bool) -> None:
    tokenizer = wordpiece_like()
    ids = encode(tokenizer, "hello abc hello x")
    prompt, output = ids[:2], ids[2:]
    chunks = [[token] for token in output] if token_by_token else [output]
    assert "".join(push_all(make_decode(tokenizer), prompt, chunks)) == " abc hello x"


def test_special_tokens_have_no_text(tokenizer: PreTrainedTokenizerFast) -> None:
    special = tokenizer.eos_token_id
    a, b = encode(tokenizer, "ab")[-2:]
    assert push_all(make_decode(tokenizer), [], [[a], [special], [b]])[1:] == ["", "b"]


def test_endless_broken_bytes_are_decoded_in_short_windows(tokenizer: PreTrainedTokenizerFast) -> None:
    """Else each token costs more than the last."""
    lengths = []
    decode = make_decode(tokenizer)

    def counting(ids: list[int]) -> str:
        lengths.append(len(ids))
        return decode(ids)

    byte = encode(tokenizer, "é")[-1]  # a continuation byte, which begins no character
    push_all(counting, encode(tokenizer, "é"), [[byte]] * 500)
    assert max(lengths) < 100
