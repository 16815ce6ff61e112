"""The engine's promises: limits are named, every request ends exactly once, a failure stays local."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from deployments.engine.request import FinishReason, RequestRefused, ScheduledChunk
from tests.deployments.engine.engine_harness import Harness, LoadedModel, build_harness


def test_an_empty_prompt_is_refused(llama: LoadedModel) -> None:
    with pytest.raises(RequestRefused, match="the prompt is empty"):
        build_harness(llama).request("r", [])


@pytest.mark.parametrize("length", [64, 65, 500])
def test_a_prompt_that_leaves_no_room_is_refused_naming_both_numbers(llama: LoadedModel, length: int) -> None:
    harness = build_harness(llama, max_model_len=64)
    with pytest.raises(RequestRefused, match=rf"has {length} tokens.* 64 tokens"):
        harness.request("r", [5] * length)


_FIELDS: dict[str, Callable[[int], Any]] = {
    "prompt": lambda token: [5, token, 6],
    "logit_bias": lambda token: ((4, 1.0), (token, 1.0)),
    "stop_token_ids": lambda token: (4, token),
}


@pytest.mark.parametrize("beyond", [True, False])
@pytest.mark.parametrize("field", _FIELDS)
def test_token_ids_out_of_the_vocabulary_are_refused(llama: LoadedModel, beyond: bool, field: str) -> None:
    token = llama.info.vocab_size if beyond else -1
    arguments: dict[str, Any] = {"prompt": [5, 6], field: _FIELDS[field](token)}
    with pytest.raises(RequestRefused, match=f"token id {token} is not in the vocabulary"):
        build_harness(llama).request("r", **arguments)


def test_the_whole_vocabulary_and_the_longest_prompt_are_served(llama: LoadedModel) -> None:
    harness = build_harness(llama, max_model_len=64)
    prompt = [0, llama.info.vocab_size - 1] * 31 + [5]
    assert harness.answers(harness.request("r", prompt)) == [llama.generate(prompt, 1)]
    assert harness.outputs.reason("r") is FinishReason.LENGTH


@pytest.mark.parametrize(("max_tokens", "expected"), [(3, 3), (14, 14), (15, 14), (1000, 14)])
def test_max_tokens_is_capped_to_the_room_left(llama: LoadedModel, max_tokens: int, expected: int) -> None:
    harness = build_harness(llama, max_model_len=64)
    (answer,) = harness.answers(harness.request("r", [5] * 50, max_tokens=max_tokens))
    assert len(answer) == expected
    assert harness.outputs.reason("r") is FinishReason.LENGTH


def test_a_cache_smaller_than_one_request_is_refused_at_start_naming_both(llama: LoadedModel) -> None:
    with pytest.raises(ValueError, match=r"holds 504 tokens.*512.*kv_cache_memory_gb.*max_model_len"):
        build_harness(llama, num_blocks=63)
    assert build_harness(llama, num_blocks=64).engine.max_model_len == 512


def test_max_model_len_beyond_the_model_is_refused(llama: LoadedModel) -> None:
    with pytest.raises(ValueError, match=r"513.*512"):
        build_harness(llama, max_model_len=513)


def test_stop_token_ids_end_the_answer(llama: LoadedModel) -> None:
    prompt = list(range(3, 30))
    full = llama.generate(prompt, 20)
    stop = full[6]
    harness = build_harness(llama)
    (answer,) = harness.answers(harness.request("r", prompt, max_tokens=20, stop_token_ids=(stop,)))
    assert answer == full[: full.index(stop) + 1]
    assert harness.outputs.reason("r") is FinishReason.STOP


def test_eos_does_not_end_an_answer_that_ignores_it(llama: LoadedModel) -> None:
    prompt = list(range(3, 30))
    full = llama.generate(prompt, 20)
    info = dataclasses.replace(llama.info, eos_token_ids=frozenset({full[0]}))
    harness = build_harness(llama, info=info)
    assert harness.answers(
        harness.request("ignores", prompt, max_tokens=20),
        harness.request("ends", prompt, max_tokens=20, ignore_eos=False),
    ) == [full, full[:1]]


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_min_tokens_keeps_the_answer_going(llama: LoadedModel, ignore_eos: bool) -> None:
    prompt = list(range(3, 30))
    first = llama.generate(prompt, 1)[0]
    info = dataclasses.replace(llama.info, eos_token_ids=frozenset({first}))
    harness = build_harness(llama, info=info)
    (answer,) = harness.answers(
        harness.request("r", prompt, max_tokens=20, min_tokens=6, ignore_eos=ignore_eos)
    )
    assert len(answer) >= 6
    assert first not in answer[:6]


def test_each_step_gives_a_stream_one_token(llama: LoadedModel) -> None:
    harness = build_harness(llama)
    harness.submit(harness.request("r", [5, 6, 7], max_tokens=5))
    for count in range(1, 6):
        harness.step()
        assert len(harness.outputs.tokens("r")) == count
    harness.assert_idle_and_complete()


def test_requests_submitted_together_enter_the_same_step(llama: LoadedModel) -> None:
    harness = build_harness(llama)
    harness.submit(*[harness.request(f"r{i}", [5, 6, i], max_tokens=1) for i in range(10)])
    harness.step()
    assert harness.engine.stats().num_steps == 1
    harness.assert_idle_and_complete()


def test_uncached_tokens_sees_the_prefix_cache(llama: LoadedModel) -> None:
    harness = build_harness(llama)
    prompt = list(range(3, 43))
    assert harness.engine.uncached_tokens(prompt) == 40
    harness.answers(harness.request("r", prompt))
    assert harness.engine.uncached_tokens(prompt) == 8
    assert harness.engine.uncached_tokens([9, *prompt]) == 41


def test_stats_count_what_waits_and_runs(llama: LoadedModel) -> None:
    harness = build_harness(llama, max_num_seqs=2)
    harness.submit(*[harness.request(f"r{i}", [5] * 9, max_tokens=3) for i in range(3)])
    assert harness.engine.stats().num_waiting == 3
    harness.step()
    stats = harness.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.blocks_owned) == (2, 1, 4)
    assert stats.kv_cache_usage == 4 / 512
    harness.drain()


def failing(harness: Harness, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the next `times` forward passes raise."""
    execute, left = harness.engine._runner.execute, [None] * times

    def fail(chunks: Sequence[ScheduledChunk]) -> list[int]:
        if left:
            left.pop()
            raise ValueError("secret prompt text")
        return execute(chunks)

    monkeypatch.setattr(harness.engine._runner, "execute", fail)


def test_a_failed_step_ends_its_requests_and_no_others(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(llama, max_num_seqs=2)
    prompts = [[5 + i, *range(3, 30)] for i in range(4)]
    harness.submit(*[harness.request(f"r{i}", prompt) for i, prompt in enumerate(prompts)])
    harness.step()
    failing(harness, monkeypatch, 1)
    harness.drain()
    for i in (0, 1):
        final = harness.outputs.final(f"r{i}")
        assert (final.finish_reason, final.error) == (FinishReason.ERROR, "ValueError")
        assert harness.outputs.tokens(f"r{i}") == llama.generate(prompts[i], 1)
    for i in (2, 3):
        assert harness.outputs.reason(f"r{i}") is FinishReason.LENGTH
        assert harness.outputs.tokens(f"r{i}") == llama.generate(prompts[i], 8)


def test_blocks_of_a_failed_prefill_are_not_offered_as_prefixes(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(llama)
    prompt = list(range(3, 40))
    failing(harness, monkeypatch, 1)
    assert harness.answers(harness.request("fails", prompt)) == [[]]
    retry = harness.request("retry", prompt)
    assert harness.answers(retry) == [llama.generate(prompt, 8)]
    assert retry.num_cached == 0


def test_a_request_preempted_in_a_step_that_fails_lives_on(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build_harness(llama, num_blocks=6, max_model_len=48)
    elder = harness.request("elder", list(range(3, 21)), max_tokens=30)
    younger = harness.request("younger", list(range(30, 46)), max_tokens=20)
    harness.submit(elder, younger)
    schedule, scheduler = harness.engine._scheduler.schedule, harness.engine._scheduler

    def fail_on_preemption() -> list[ScheduledChunk]:
        chunks = schedule()
        if younger.num_preemptions and elder.finish_reason is None:
            assert [chunk.request for chunk in chunks] == [elder]
            failing(harness, monkeypatch, 1)
        return chunks

    monkeypatch.setattr(scheduler, "schedule", fail_on_preemption)
    harness.drain()
    assert harness.outputs.reason("elder") is FinishReason.ERROR
    assert harness.outputs.tokens("younger") == llama.generate(list(range(30, 46)), 20)


def test_requests_of_a_wrong_abort_are_untouched(llama: LoadedModel) -> None:
    harness = build_harness(llama)
    harness.submit(harness.request("r", [5, 6, 7]))
    harness.engine.abort("never heard of")
    harness.step()
    harness.drain()
    harness.engine.abort("r")
    harness.step()
    harness.assert_idle_and_complete()
    assert harness.outputs.reason("r") is FinishReason.LENGTH


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_aborted_request_ends_once_and_gets_nothing_more(
    llama: LoadedModel, steps: int, repeats: int
) -> None:
    harness = build_harness(llama)
    prompt = list(range(3, 20))
    harness.submit(harness.request("r", prompt), harness.request("other", prompt[::-1]))
    for _ in range(steps):
        harness.step()
    for _ in range(repeats):
        harness.engine.abort("r")
    harness.drain()
    assert harness.outputs.reason("r") is FinishReason.ABORTED
    assert harness.outputs.tokens("r") == llama.generate(prompt, 8)[:steps]
    assert harness.outputs.tokens("other") == llama.generate(prompt[::-1], 8)
