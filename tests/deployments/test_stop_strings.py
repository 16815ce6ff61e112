"""Stop strings are found at the first place where one is complete, and nothing of them is sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deployments.stop_strings import StopStrings

short = st.text("ab", max_size=5)
cuttings = st.lists(st.integers(0, 4), max_size=20)


def expected(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Read character by character until some stop is complete; of those, the longest began first."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


def feed(text: str, stops: Sequence[str], sizes: Sequence[int]) -> tuple[list[str], bool]:
    """What StopStrings passes on of the text in chunks of these sizes, up to the stop or the flush."""
    finder, pieces, start = StopStrings(stops), [], 0
    for size in [*sizes, len(text)]:
        piece, found = finder.push(text[start : start + size])
        pieces.append(piece)
        if found:
            return pieces, True
        start += size
    return [*pieces, finder.flush()], False


@settings(max_examples=400, deadline=None)
@given(text=st.text("ab", max_size=30), stops=st.lists(short.filter(bool), max_size=4), sizes=cuttings)
@example(text="aabab", stops=["abb", "aab"], sizes=[1, 1, 1, 1])
@example(text="aaab", stops=["aab"], sizes=[2, 1])
def test_any_cutting_gives_the_first_complete_stop(text: str, stops: list[str], sizes: list[int]) -> None:
    pieces, found = feed(text, stops, sizes)
    assert ("".join(pieces), found) == expected(text, stops)


@settings(max_examples=200, deadline=None)
@given(text=st.text("ab", max_size=30), stops=st.lists(short.filter(bool), min_size=1, max_size=3))
def test_only_what_may_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    """After each character: what is held is the longest beginning of a stop, no more."""
    finder, sent = StopStrings(stops), ""
    for end, character in enumerate(text, 1):
        piece, found = finder.push(character)
        if found:
            return
        sent += piece
        held = text[len(sent) : end]
        beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
        assert held == max(
            (text[start:end] for start in range(end + 1) if text[start:end] in beginnings), key=len
        )


@pytest.mark.parametrize(
    ("chunks", "stops", "text"),
    [
        (["a", "\n", "E", "ND", "b"], ["\nEND"], "a"),  # over chunks
        (["foo.bar"], ["."], "foo"),  # in the middle of one, with text behind it
        (["one STOP two END"], ["END", "STOP"], "one "),  # the earliest of several
        (["x</s", ">y"], ["</s>", "s>"], "x"),  # both complete at once: the one that began first
        (["ab"], [], "ab"),
        (["ab", "c"], ["abcd"], "abc"),  # a beginning without its end is text
    ],
)
def test_text_before_the_stop_is_kept(chunks: list[str], stops: list[str], text: str) -> None:
    pieces, found = feed("".join(chunks), stops, [len(chunk) for chunk in chunks])
    assert "".join(pieces) == text
    assert found is ("".join(chunks) != text)


def test_flush_gives_what_was_held_once() -> None:
    finder = StopStrings(["END"])
    assert finder.push("xEN") == ("x", False)
    assert finder.flush() == "EN"
    assert finder.flush() == ""
