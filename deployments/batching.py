"""What both `@serve.batch` methods share: items that carry their size in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Sized(NamedTuple, Generic[Item]):
    """An item and the tokens that it adds to a batch, known before Serve asks and never over its limit."""

    item: Item
    num_tokens: int


def sized(item: Item, num_tokens: int, limit: int) -> Sized[Item]:
    """Clamp the size: Serve fails an item that alone exceeds the limit, but it has to be served too."""
    return Sized(item, max(1, min(num_tokens, limit)))


def total_tokens(items: Sequence[Sized[Any]]) -> int:
    """`batch_size_fn`: it only adds numbers, since Serve's batching stops for ever if it raises."""
    return sum(item.num_tokens for item in items)
