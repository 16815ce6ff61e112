"""Penalties, biases and bans change just the logits they should."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from deployments.engine.logit_edits import apply_edits
from deployments.engine.request import Request, SamplingParams

_VOCAB = 40
_EOS = (2, 3)


def make_request(prompt: list[int], output: list[int] | None = None, **params: Any) -> Request:
    output = output or []
    sampling = SamplingParams(**{"max_tokens": 100, **params})
    return Request("r", len(prompt), [*prompt, *output], sampling, 0, 200)


def random_logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, _VOCAB, generator=torch.Generator().manual_seed(rows)) * 4


def edited(logits: torch.Tensor, *requests: Request) -> torch.Tensor:
    result = logits.clone()
    apply_edits(result, requests, _EOS)
    return result


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 2.0])
def test_repetition_penalty_equals_transformers(penalty: float) -> None:
    prompts, outputs = [[5, 5, 6, 9], [0, 39], [7]], [[6, 10, 10], [], [7, 7, 8]]
    logits = random_logits(3)
    assert {bool(x > 0) for x in logits[0, [5, 6, 9, 10]]} == {True, False}
    requests = [make_request(p, o, repetition_penalty=penalty) for p, o in zip(prompts, outputs, strict=True)]
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = [
        processor(torch.tensor([p + o]), logits[row : row + 1])[0]
        for row, (p, o) in enumerate(zip(prompts, outputs, strict=True))
    ]
    torch.testing.assert_close(edited(logits, *requests), torch.stack(expected))


def test_presence_and_frequency_count_the_output_only() -> None:
    logits = random_logits(1)
    request = make_request([5, 5, 6], [6, 10, 10, 10], presence_penalty=0.5, frequency_penalty=0.25)
    expected = logits.clone()
    expected[0, 6] -= 0.5 + 0.25 * 1
    expected[0, 10] -= 0.5 + 0.25 * 3
    torch.testing.assert_close(edited(logits, request), expected)


@pytest.mark.parametrize(("presence", "frequency"), [(-2.0, 0.0), (0.0, -1.0), (2.0, -0.5)])
def test_negative_penalties_reward(presence: float, frequency: float) -> None:
    logits = random_logits(1)
    request = make_request([1], [4, 4], presence_penalty=presence, frequency_penalty=frequency)
    change = edited(logits, request) - logits
    assert change[0, 4].item() == pytest.approx(-(presence + 2 * frequency), abs=1e-5)
    assert change.count_nonzero() == 1


def test_penalties_without_output_change_nothing() -> None:
    logits = random_logits(1)
    assert torch.equal(edited(logits, make_request([4], presence_penalty=2.0, frequency_penalty=2.0)), logits)


def test_logit_bias_is_added() -> None:
    logits = random_logits(1)
    change = edited(logits, make_request([1], logit_bias=((7, 2.5), (0, -100.0)))) - logits
    assert change[0, 7].item() == pytest.approx(2.5, abs=1e-5)
    assert change[0, 0].item() == pytest.approx(-100, abs=1e-4)
    assert change.count_nonzero() == 2


@pytest.mark.parametrize(("num_outputs", "banned"), [(0, True), (1, True), (2, True), (3, False), (4, False)])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_bans_eos_and_stop_ids(num_outputs: int, banned: bool, ignore_eos: bool) -> None:
    logits = random_logits(1)
    request = make_request(
        [1, 1], [9] * num_outputs, min_tokens=3, stop_token_ids=(11, 2), ignore_eos=ignore_eos
    )
    result = edited(logits, request)
    assert result[0].isneginf().nonzero().flatten().tolist() == ([2, 3, 11] if banned else [])
    others = [token for token in range(_VOCAB) if token not in (2, 3, 11)]
    assert torch.equal(result[0, others], logits[0, others])


def test_a_bias_cannot_lift_a_ban() -> None:
    result = edited(random_logits(1), make_request([1], logit_bias=((2, 100.0),), min_tokens=1))
    assert result[0, 2] == -torch.inf


def test_repetition_penalty_comes_before_the_additions() -> None:
    logits = torch.full((1, _VOCAB), 3.0)
    request = make_request([], [8], repetition_penalty=1.5, presence_penalty=0.5, logit_bias=((8, 4.0),))
    assert edited(logits, request)[0, 8].item() == pytest.approx(3.0 / 1.5 - 0.5 + 4.0)


def test_edits_touch_only_their_rows() -> None:
    logits = random_logits(5)
    requests = [
        make_request([1, 2], [3]),
        make_request([1, 2], [3], repetition_penalty=1.7),
        make_request([4], [5, 5], frequency_penalty=1.0),
        make_request([6], [7], logit_bias=((30, 9.0),)),
        make_request([8], min_tokens=2, stop_token_ids=(31,)),
    ]
    result = edited(logits, *requests)
    changed = [(result[row] != logits[row]).nonzero().flatten().tolist() for row in range(5)]
    assert changed == [[], [1, 2, 3], [5], [30], [2, 3, 31]]
    alone = [edited(logits[row : row + 1], request) for row, request in enumerate(requests)]
    assert torch.equal(torch.cat(alone), result)


def test_rows_without_edits_are_left_alone() -> None:
    logits = random_logits(2)
    assert torch.equal(edited(logits, make_request([1]), make_request([2], [3])), logits)
