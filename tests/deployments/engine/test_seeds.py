"""A request with a seed gives the same tokens whatever runs beside it and however it is computed."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.engine.request import Request
from tests.deployments.engine.engine_harness import Harness, LoadedModel, build_harness

_PARAMS: dict[str, Any] = {"max_tokens": 30, "temperature": 1.2, "top_p": 0.95}
_PROMPT = list(range(5, 45))


def watched(harness: Harness, seed: int = 7, name: str = "watched", **params: Any) -> Request:
    return harness.request(name, _PROMPT, seed=seed, **{**_PARAMS, **params})


def neighbours(harness: Harness, count: int, first_seed: int = 100) -> list[Request]:
    return [
        harness.request(
            f"neighbour-{i}",
            [3 + i, *range(20 + i)],
            seed=first_seed + i,
            max_tokens=5 + 2 * i,
            temperature=0.3 * (i % 4),
            top_k=i % 5,
            repetition_penalty=1.0 + 0.1 * (i % 2),
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def alone(llama: LoadedModel) -> list[int]:
    harness = build_harness(llama)
    (tokens,) = harness.answers(watched(harness))
    assert len(set(tokens)) > 5, "a constant answer would equal anything"
    return tokens


@pytest.mark.parametrize("first_seed", [100, 900])
def test_in_a_batch_of_sixteen(llama: LoadedModel, alone: list[int], first_seed: int) -> None:
    harness = build_harness(llama)
    others = neighbours(harness, 15, first_seed)
    answers = harness.answers(*others[:8], watched(harness), *others[8:])
    assert answers[8] == alone


def test_joining_a_batch_that_runs(llama: LoadedModel, alone: list[int]) -> None:
    harness = build_harness(llama)
    harness.submit(*neighbours(harness, 5))
    for _ in range(4):
        harness.step()
    assert harness.answers(watched(harness)) == [alone]


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_with_other_chunks(llama: LoadedModel, alone: list[int], chunk: int) -> None:
    harness = build_harness(llama, max_prefill_chunk=chunk)
    assert harness.answers(watched(harness)) == [alone]


def test_with_a_cached_prefix(llama: LoadedModel, alone: list[int]) -> None:
    harness = build_harness(llama)
    assert harness.answers(watched(harness, name="first")) == [alone]
    second = watched(harness, name="second")
    assert harness.answers(second) == [alone]
    assert second.num_cached == 32


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_after_preemption(llama: LoadedModel, alone: list[int], prefix_caching: bool) -> None:
    harness = build_harness(llama, num_blocks=13, max_model_len=104, enable_prefix_caching=prefix_caching)
    elder = harness.request("elder", _PROMPT[::-1], max_tokens=40, temperature=1.0)
    request = watched(harness)
    assert harness.answers(elder, request)[1] == alone
    assert request.num_preemptions > 0


def test_other_seeds_give_other_tokens(llama: LoadedModel, alone: list[int]) -> None:
    harness = build_harness(llama)
    answers = harness.answers(*[watched(harness, seed, f"seed-{seed}") for seed in range(100, 112)])
    assert len({tuple(answer) for answer in [alone, *answers]}) == 13


def test_equal_seeds_in_one_batch_give_equal_tokens(llama: LoadedModel, alone: list[int]) -> None:
    harness = build_harness(llama)
    assert harness.answers(*[watched(harness, name=f"twin-{i}") for i in range(4)]) == [alone] * 4


def test_greedy_answers_do_not_depend_on_the_seed(llama: LoadedModel) -> None:
    harness = build_harness(llama)
    answers = harness.answers(*[watched(harness, seed, f"seed-{seed}", temperature=0.0) for seed in range(4)])
    assert answers == [llama.generate(_PROMPT, 30)] * 4
