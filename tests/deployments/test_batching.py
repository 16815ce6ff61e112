"""Sizes of batch items stay in what Serve accepts."""

from __future__ import annotations

import pytest

from deployments.batching import sized, total_tokens


@pytest.mark.parametrize(
    ("num_tokens", "size"), [(-1, 1), (0, 1), (1, 1), (99, 99), (100, 100), (101, 100), (10**12, 100)]
)
def test_sizes_are_clamped_between_one_and_the_limit(num_tokens: int, size: int) -> None:
    item = sized("prompt", num_tokens, limit=100)
    assert item.item == "prompt"
    assert total_tokens([item]) == size


def test_a_batch_is_as_large_as_its_items_together() -> None:
    assert total_tokens([]) == 0
    assert total_tokens([sized("a", 3, 10), sized("b", 40, 10)]) == 13
