"""Tokens are drawn from exactly the distribution that transformers' warpers define."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from deployments.engine import sampler as sampler_module
from deployments.engine.noise import gumbel, row_keys
from deployments.engine.request import Request, SamplingParams
from deployments.engine.sampler import Sampler

_DRAWS = 40_000
_COMBINATIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 500},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "top_p": 0.05},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.7, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 1.2, "top_k": 12, "top_p": 0.7, "min_p": 0.08},
]


def make_request(seed: int, position: int = 0, **params: Any) -> Request:
    sampling = SamplingParams(**{"max_tokens": 100, **params})
    return Request(f"r{seed}", 1, [0] * (1 + position), sampling, seed, 200)


def draw(logits: torch.Tensor, requests: list[Request]) -> torch.Tensor:
    return torch.tensor(Sampler(frozenset({0})).sample(logits.clone(), requests))


def warped(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """One row of logits in float64 after transformers' warpers, in the order that `generate` uses."""
    scores, ids = logits.double().unsqueeze(0), torch.zeros(1, 1, dtype=torch.int64)
    scores = TemperatureLogitsWarper(params.temperature)(ids, scores)
    if 0 < params.top_k < logits.numel():
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p > 0:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    row: torch.Tensor = scores[0]
    return row


def chi_square_excess(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Statistic over its critical value at p = 1e-6 (Wilson and Hilferty 1931); above 1 is a rejection."""
    expected = probabilities * counts.sum()
    assert not counts[probabilities == 0].any(), "a token was drawn that the distribution leaves out"
    usual = expected >= 5
    if usual.sum() < 2:
        return 0.0
    statistic = (((counts - expected) ** 2)[usual] / expected[usual]).sum()
    degrees = int(usual.sum())
    if rest := float(expected[~usual].sum()):
        statistic += (counts[~usual].sum() - rest) ** 2 / max(rest, 5)
        degrees += 1
    degrees -= 1
    share = 2 / (9 * degrees)
    return float(statistic) / (degrees * (1 - share + 4.75 * math.sqrt(share)) ** 3)


def counts_of(logits: torch.Tensor, **params: Any) -> torch.Tensor:
    requests = [make_request(seed, **params) for seed in range(_DRAWS)]
    tokens = draw(logits.expand(_DRAWS, -1), requests)
    return torch.bincount(tokens, minlength=logits.numel()).double()


@pytest.fixture(scope="module")
def logits() -> torch.Tensor:
    return torch.randn(60, generator=torch.Generator().manual_seed(4)) * 1.5


@pytest.mark.parametrize("params", _COMBINATIONS, ids=str)
def test_draws_follow_the_distribution(logits: torch.Tensor, params: dict[str, Any]) -> None:
    probabilities = warped(logits, SamplingParams(max_tokens=1, **params)).softmax(0)
    assert chi_square_excess(counts_of(logits, **params), probabilities) < 1


@pytest.mark.parametrize("wrong", [{"temperature": 1.1}, {"temperature": 1.0, "top_p": 0.97}])
def test_a_wrong_distribution_is_rejected(logits: torch.Tensor, wrong: dict[str, Any]) -> None:
    assert chi_square_excess(counts_of(logits, **wrong), logits.double().softmax(0)) > 1


def test_draws_at_later_steps_follow_the_distribution_too(logits: torch.Tensor) -> None:
    requests = [make_request(7, position, temperature=1.0) for position in range(2000)]
    tokens = draw(logits.expand(2000, -1), requests)
    counts = torch.bincount(tokens, minlength=60).double()
    assert chi_square_excess(counts, logits.double().softmax(0)) < 1


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("vocab_size", [50, 1024, 1025, 5000])
def test_each_draw_equals_a_full_computation(vocab_size: int, scale: float) -> None:
    """The truncated rows draw what the whole vocabulary would, also when top-p reaches past 1024 tokens."""
    generator = torch.Generator().manual_seed(vocab_size)
    requests = [make_request(seed, seed % 3, **params) for seed, params in enumerate(_COMBINATIONS * 4)]
    logits = torch.randn(len(requests), vocab_size, generator=generator) * scale
    vocabulary = torch.arange(vocab_size, dtype=torch.int32)
    expected = []
    for row, request in enumerate(requests):
        noise = gumbel(row_keys([request.seed], [request.num_outputs]), vocabulary)[0]
        expected.append(int((warped(logits[row], request.params) + noise).argmax()))
    assert draw(logits, requests).tolist() == expected


def kept_by(truncated: tuple[torch.Tensor, torch.Tensor], row: int) -> set[int]:
    scores, candidates = truncated
    return set(candidates[row][scores[row].isfinite()].tolist())


@pytest.mark.parametrize(
    ("params", "wide"),
    [
        ({"top_p": 0.9}, True),
        ({"min_p": 0.01}, True),
        ({"top_k": 2000, "top_p": 0.9}, False),
        ({"top_p": 0.1}, False),
        ({"min_p": 0.9}, False),
    ],
)
def test_truncation_falls_back_to_the_whole_row(
    params: dict[str, Any], wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(1)) * 0.5
    widths: list[int] = []
    inner = sampler_module._truncate_to

    def spy(logits: torch.Tensor, params: Any, limits: Any, width: int) -> Any:
        widths.append(width)
        return inner(logits, params, limits, width)

    monkeypatch.setattr(sampler_module, "_truncate_to", spy)
    rows = [SamplingParams(max_tokens=1, temperature=1.0, **p) for p in (params, {"top_k": 3})]
    truncated = sampler_module._truncate(logits, rows)
    assert widths == ([1024, 5000] if wide else [max(1024, params.get("top_k", 0))])
    for row, row_params in enumerate(rows):
        expected = warped(logits[row], row_params).isfinite().nonzero().flatten().tolist()
        assert kept_by(truncated, row) == set(expected)


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": 1e-9}, {"temperature": 1.0, "top_k": 1}]
)
def test_greedy_takes_the_largest_logit(params: dict[str, Any]) -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(2)) * 0.01
    requests = [make_request(seed, **params) for seed in range(50)]
    assert torch.equal(draw(logits, requests), logits.argmax(-1))


def test_greedy_takes_the_first_of_equal_logits() -> None:
    logits = torch.zeros(1, 100)
    logits[0, [17, 40, 99]] = 2.5
    assert draw(logits, [make_request(0)]).tolist() == [17]


def test_equal_logits_are_drawn_equally_often() -> None:
    counts = counts_of(torch.zeros(20), temperature=1.0, top_p=0.999)
    assert chi_square_excess(counts, torch.full((20,), 0.05, dtype=torch.float64)) < 1


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.5}])
def test_a_low_temperature_stays_finite(logits: torch.Tensor, params: dict[str, Any]) -> None:
    requests = [make_request(seed, temperature=2e-5, **params) for seed in range(100)]
    assert set(draw(logits.expand(100, -1), requests).tolist()) == {int(logits.argmax())}


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    logits = torch.randn(16, 500, generator=torch.Generator().manual_seed(3))
    mixed = [*_COMBINATIONS, {"temperature": 0.0}, {"temperature": 1.0, "logit_bias": ((5, 50.0),)}, {}, {}]
    requests = [make_request(seed, **params) for seed, params in enumerate(mixed)]
    together = draw(logits, requests).tolist()
    alone = [draw(logits[row : row + 1], [request]).item() for row, request in enumerate(requests)]
    assert together == alone
    order = torch.randperm(16, generator=torch.Generator().manual_seed(5)).tolist()
    assert draw(logits[order], [requests[i] for i in order]).tolist() == [together[i] for i in order]


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}]
)
def test_a_bias_forces_or_bans_a_token(logits: torch.Tensor, params: dict[str, Any]) -> None:
    best = int(logits.argmax())
    rows = logits.expand(200, -1)
    forced = [make_request(seed, logit_bias=((33, 100.0),), **params) for seed in range(200)]
    assert set(draw(rows, forced).tolist()) == {33}
    banned = [make_request(seed, logit_bias=((best, -100.0),), **params) for seed in range(200)]
    assert best not in draw(rows, banned).tolist()


@pytest.mark.parametrize(
    "params", [{"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.99}, {"temperature": 0.0}]
)
def test_a_banned_token_is_never_drawn(params: dict[str, Any]) -> None:
    logits = torch.zeros(500, 8)
    logits[:, 0] = 20.0  # EOS of the sampler in `draw`
    requests = [make_request(seed, min_tokens=1, **params) for seed in range(500)]
    assert 0 not in draw(logits, requests).tolist()


def test_half_precision_logits_are_sampled_in_float32() -> None:
    logits = torch.randn(30, 400, generator=torch.Generator().manual_seed(6)).bfloat16()
    requests = [make_request(seed, temperature=1.0, top_p=0.9) for seed in range(30)]
    assert torch.equal(draw(logits, requests), draw(logits.float(), requests))
