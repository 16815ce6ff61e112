"""The noise is uniform, finite, and independent across seeds, steps and tokens."""

from __future__ import annotations

import pytest
import torch

from deployments.engine.noise import gumbel, row_keys

_SIZE = 1 << 18


def uniform(seed: int, position: int, size: int = _SIZE) -> torch.Tensor:
    """The noise of `size` tokens, mapped back from Gumbel to (0, 1) in float64."""
    noise = gumbel(row_keys([seed], [position]), torch.arange(size, dtype=torch.int32))[0]
    return (-(-noise.double()).exp()).exp()


def chi_square_per_degree(values: torch.Tensor, bins: int = 256) -> float:
    counts = torch.histc(values.float(), bins=bins, min=0, max=1).double()
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum() / (bins - 1))


def correlation(left: torch.Tensor, right: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([left, right]))[0, 1])


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, 2**31, 2**63 - 1])
@pytest.mark.parametrize("position", [0, 1, 1000])
def test_noise_is_uniform_over_tokens(seed: int, position: int) -> None:
    assert 0.6 < chi_square_per_degree(uniform(seed, position)) < 1.45


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_noise_is_uniform_over_seeds_and_steps(vary: str) -> None:
    steps, zeros = list(range(50_000)), [0] * 50_000
    keys = row_keys(steps, zeros) if vary == "seed" else row_keys(zeros, steps)
    for token in (0, 1, 49_151):
        noise = gumbel(keys, torch.tensor([token], dtype=torch.int32))[:, 0]
        assert 0.6 < chi_square_per_degree((-(-noise.double()).exp()).exp()) < 1.45


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 0), (2, 0)),
        ((1, 0), (1, 1)),
        ((1, 1), (2, 0)),
        ((0, 5), (5, 0)),
        ((0, 0), (2**32, 0)),
        ((7, 8), (8, 7)),
    ],
)
def test_rows_are_independent(left: tuple[int, int], right: tuple[int, int]) -> None:
    a, b = uniform(*left), uniform(*right)
    assert abs(correlation(a, b)) < 5 / _SIZE**0.5
    assert chi_square_per_degree((a + b) % 1) < 1.45


@pytest.mark.parametrize("lag", [1, 2, 3, 64, 256, 1 << 14])
def test_neighbouring_tokens_are_independent(lag: int) -> None:
    values = uniform(3, 4)
    assert abs(correlation(values[:-lag], values[lag:])) < 5 / _SIZE**0.5
    assert chi_square_per_degree((values[:-lag] + values[lag:]) % 1) < 1.45


def test_consecutive_steps_are_independent_at_one_token() -> None:
    noise = gumbel(row_keys([9] * 50_001, list(range(50_001))), torch.tensor([17], dtype=torch.int32))[:, 0]
    assert abs(correlation(noise[:-1], noise[1:])) < 5 / 50_000**0.5


def test_equal_seeds_and_steps_give_equal_noise_wherever_they_stand() -> None:
    keys = row_keys([5, 6, 5], [2, 2, 2])
    tokens = torch.tensor([9, 1, 30_000], dtype=torch.int32)
    noise = gumbel(keys, tokens)
    assert torch.equal(noise[0], noise[2])
    assert not torch.equal(noise[0], noise[1])
    assert torch.equal(gumbel(keys[1:2], tokens[2:]), noise[1:2, 2:])


def test_tokens_may_be_given_for_each_row() -> None:
    keys = row_keys([5, 6], [0, 0])
    vocabulary = torch.arange(10, dtype=torch.int32)
    picked = torch.tensor([[3, 9], [0, 3]], dtype=torch.int32)
    assert torch.equal(gumbel(keys, picked), gumbel(keys, vocabulary).gather(1, picked.long()))


def test_the_numbers_do_not_change_between_versions() -> None:
    """A request with a seed gives the same tokens tomorrow; change these only with a release note."""
    keys = row_keys([0, 42, 2**63 - 1], [0, 1, 2])
    assert keys.tolist() == [[1293516399, -1492722385], [-1936506139, -212866780], [1778782589, 143647798]]
    noise = gumbel(keys[1:2], torch.tensor([0, 1, 49_151], dtype=torch.int32))
    torch.testing.assert_close(noise, torch.tensor([[0.383485, 0.334621, 1.003799]]), rtol=1e-5, atol=1e-6)


def _unshift(bits: int, shift: int) -> int:
    result = bits
    for _ in range(32 // shift):
        result = bits ^ (result >> shift)
    return result


def _unmix32(bits: int) -> int:
    """The input that the noise's 32-bit hash maps to `bits`."""
    bits = _unshift(bits, 16) * pow(0x846CA68B, -1, 1 << 32) % (1 << 32)
    bits = _unshift(bits, 15) * pow(0x7FEB352D, -1, 1 << 32) % (1 << 32)
    return _unshift(bits, 16)


@pytest.mark.parametrize("bits", [0, 1, 0x7FFFFFFF, 0x7FFFFFC0, 0x80000000, 0xFFFFFFFF])
def test_noise_is_finite_at_the_ends_of_its_range(bits: int) -> None:
    key = _unmix32(bits)
    keys = torch.tensor([[0, key - (1 << 32) if key >> 31 else key]], dtype=torch.int32)
    noise = gumbel(keys, torch.tensor([0], dtype=torch.int32))
    assert noise.isfinite().all()
    low = (bits & 0x7FFFFFFF) < 2
    assert noise.item() > 20 if low else noise.item() < -2.5


def test_noise_has_the_moments_of_a_gumbel_variable() -> None:
    noise = gumbel(row_keys([11], [0]), torch.arange(1 << 20, dtype=torch.int32))[0].double()
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.006)
    assert noise.var().item() == pytest.approx(torch.pi**2 / 6, rel=0.01)
