"""A session turns the engine's outputs into the caller's text, reason and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from deployments.detokenizer import make_decode
from deployments.engine.request import FinishReason, SamplingParams, StepOutput
from deployments.session import Session
from deployments.tokenizer import Tokenizer
from deployments.wire import GenerateRequest, TextChunk


class Sessions:
    """Makes sessions over the tiny tokenizer, and the engine's outputs for them."""

    def __init__(self, tiny: Tokenizer) -> None:
        self.tokenizer = tiny._tokenizer
        self.eos: int = self.tokenizer.eos_token_id

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def open(self, *stop: str, stream: bool = True, **params: Any) -> Session:
        request = GenerateRequest("r", self.ids("x"), SamplingParams(100, **params), 0, stop)
        return Session(request, make_decode(self.tokenizer), stream)


def output(*token_ids: int, reason: FinishReason | None = None, num_cached: int = 0) -> StepOutput:
    return StepOutput("r", token_ids, reason, num_cached)


@pytest.fixture
def sessions(tiny: Tokenizer) -> Sessions:
    return Sessions(tiny)


async def drive(session: Session, steps: Sequence[StepOutput]) -> tuple[list[TextChunk], int]:
    """Feed the steps as the engine does, until one ends the request: the chunks and the steps taken."""
    chunks: list[TextChunk] = []
    for number, step in enumerate(steps, 1):
        must_stop = session.receive(step)
        if session._decode_at_end and session.finish_reason is None:
            continue
        chunks.append(await session.next_chunk())
        if chunks[-1].finish_reason is not None:
            assert must_stop is (step.finish_reason is None)
            return chunks, number
    return chunks, len(steps)


def text_of(chunks: Sequence[TextChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_over_several_tokens_ends_the_request(sessions: Sessions, stream: bool) -> None:
    """Case 3. Its tokens are counted, its text is not sent, not even in part."""
    session = sessions.open("\nEND", stream=stream)
    tokens = sessions.ids("a\nEND")
    chunks, steps = await drive(session, [output(token) for token in [*tokens, *sessions.ids("b")]])
    assert steps == len(tokens)
    assert [chunk.text for chunk in chunks if chunk.text] == ["a"]
    assert chunks[-1].finish_reason == "stop"
    assert sum(chunk.num_tokens for chunk in chunks) == len(tokens)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_within_one_step_ends_the_request(sessions: Sessions, stream: bool) -> None:
    """Case 5, and the earliest stop wins."""
    session = sessions.open("r", ".", stream=stream)
    tokens = sessions.ids("foo.bar")
    chunks, _ = await drive(session, [output(*tokens)])
    assert chunks == [TextChunk("foo", len(tokens), "stop")]


async def test_a_stop_string_in_the_engines_last_output_is_a_stop(sessions: Sessions) -> None:
    """The engine is finished already, so there is nothing to abort."""
    session = sessions.open("!")
    assert session.receive(output(*sessions.ids("a!"), reason=FinishReason.LENGTH)) is False
    assert await session.next_chunk() == TextChunk("a", 2, "stop")


async def test_stop_strings_do_not_end_a_request_before_min_tokens(sessions: Sessions) -> None:
    session = sessions.open("!", min_tokens=4)
    chunks, steps = await drive(session, [output(token) for token in sessions.ids("a!b!c!")])
    assert (text_of(chunks), steps, chunks[-1].finish_reason) == ("a!b", 4, "stop")


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP, FinishReason.ABORTED])
async def test_the_beginning_of_a_stop_string_is_sent_at_the_end(
    sessions: Sessions, reason: FinishReason
) -> None:
    ending = (sessions.eos,) if reason is FinishReason.STOP else ()
    session = sessions.open("END")
    session.receive(output(*sessions.ids("xEN")))
    assert (await session.next_chunk()).text == "x"
    session.receive(output(*ending, reason=reason))
    assert await session.next_chunk() == TextChunk("EN", len(ending), reason.value)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("last", ["b", "<eos>"])
async def test_the_token_that_stopped_the_engine_is_counted_but_has_no_text(
    sessions: Sessions, stream: bool, last: str
) -> None:
    """EOS and stop token ids alike, also where they are ordinary text."""
    (token,) = [sessions.eos] if last == "<eos>" else sessions.ids(last)
    session = sessions.open(stream=stream, stop_token_ids=(token,))
    steps = [output(*sessions.ids("a")), output(token, reason=FinishReason.STOP)]
    chunks, _ = await drive(session, steps)
    assert text_of(chunks) == "a"
    assert sum(chunk.num_tokens for chunk in chunks) == 2


@pytest.mark.parametrize("text", ["Hello world", "🙂👩‍🚀中文é", "a\n  b", ""])
@pytest.mark.parametrize("num_tokens", [1, 3, 100])
async def test_text_decoded_at_the_end_is_the_streamed_text(
    sessions: Sessions, text: str, num_tokens: int
) -> None:
    ids = sessions.ids(text)
    steps = [output(*ids[i : i + num_tokens]) for i in range(0, len(ids), num_tokens)]
    steps.append(output(sessions.eos, reason=FinishReason.STOP))
    streamed, _ = await drive(sessions.open(), steps)
    whole, _ = await drive(sessions.open(stream=False), steps)
    assert text_of(streamed) == text_of(whole) == text
    assert len(whole) == 1
    assert whole[0].num_tokens == sum(chunk.num_tokens for chunk in streamed) == len(ids) + 1


async def test_a_cut_character_is_left_out_streamed_or_not(sessions: Sessions) -> None:
    ids = sessions.ids("a🙂")[:-1]
    for stream in (True, False):
        chunks, _ = await drive(sessions.open(stream=stream), [output(*ids, reason=FinishReason.LENGTH)])
        assert chunks == [TextChunk("a", len(ids), "length")]


async def test_outputs_that_arrive_before_the_caller_looks_leave_as_one_chunk(sessions: Sessions) -> None:
    session = sessions.open()
    for token in sessions.ids("abc"):
        session.receive(output(token, num_cached=7))
    assert await session.next_chunk() == TextChunk("abc", 3, num_cached=7)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.next_chunk(), 0.01)


async def test_the_whole_text_waits_for_the_end(sessions: Sessions) -> None:
    session = sessions.open("!", stream=False)
    waiting = asyncio.ensure_future(session.whole())
    for token in sessions.ids("ab"):
        session.receive(output(token))
        await asyncio.sleep(0)
    assert not waiting.done()
    session.receive(output(reason=FinishReason.LENGTH))
    assert await waiting == TextChunk("ab", 2, "length")


async def test_outputs_after_the_end_are_ignored(sessions: Sessions) -> None:
    session = sessions.open("!")
    assert session.receive(output(*sessions.ids("a!"))) is True
    assert session.receive(output(*sessions.ids("b"))) is False
    assert session.receive(output(reason=FinishReason.ABORTED)) is False
    assert await session.next_chunk() == TextChunk("a", 2, "stop")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_reaches_the_caller(sessions: Sessions, stream: bool) -> None:
    session = sessions.open(stream=stream)
    session.refuse("too long")
    chunk = await (session.next_chunk() if stream else session.whole())
    assert chunk == TextChunk("", 0, "error", refusal="too long")
