"""Random numbers that depend on a request's seed, its output position and the token, and nothing else.

A counter-based generator has no state to carry: the same request draws the same numbers alone, in any
batch, after a preemption or on another replica. The mixing functions are SplitMix64's (Steele, Lea,
Flood 2014) for the keys and the low-bias 32-bit hash of C. Wellons for the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_MASK64 = (1 << 64) - 1


def _splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def row_keys(seeds: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    """Two 32-bit keys for each row, [N, 2] int32, from its seed and output position."""
    words = [
        _splitmix64(_splitmix64(seed & _MASK64) ^ position)
        for seed, position in zip(seeds, positions, strict=True)
    ]
    return torch.from_numpy(np.array(words, dtype=np.uint64).view(np.int32).reshape(-1, 2))


def gumbel(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise for `token_ids` [N, V] or [V] int32 under `keys` [N, 2]; float32 [N, V]."""
    bits = _mix32(_mix32(token_ids ^ keys[:, :1]) ^ keys[:, 1:])
    # 31 bits, so that the small values, which decide the races, keep their relative precision.
    # The factor is 2**-31 less one float32 step: the largest numbers round up, and 1 would give -inf.
    uniform = (bits & 0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31 - 2.0**-55)
    exponential = uniform.neg_().log1p_().neg_()
    return exponential.log_().neg_()


def _mix32(bits: torch.Tensor) -> torch.Tensor:
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits *= 0x7FEB352D
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= 0x846CA68B - (1 << 32)
    bits ^= (bits >> 16) & 0xFFFF
    return bits
