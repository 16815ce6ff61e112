"""Blocks: who owns them, who shares them, which go first, and that none is ever lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from deployments.engine.kv_cache import BlockPool, hash_block
from deployments.engine.request import Request, SamplingParams
from tests.deployments.engine.scheduler_driver import SchedulerDriver


def make_request(tokens: list[int]) -> Request:
    return Request("r", len(tokens), tokens, SamplingParams(max_tokens=1), 0, len(tokens) + 1)


def fill(pool: BlockPool, tokens: list[int]) -> Request:
    """A request whose tokens are all computed."""
    request = make_request(tokens)
    request.num_computed = pool.match_prefix(request)
    pool.grow(request, len(tokens))
    since, request.num_computed = request.num_computed, len(tokens)
    pool.publish(request, since)
    return request


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(num_blocks=6, block_size=4, enable_prefix_caching=True)


def test_a_request_gets_as_many_blocks_as_its_tokens_need(pool: BlockPool) -> None:
    request = make_request([1] * 9)
    for num_tokens, num_blocks in ((1, 1), (4, 1), (5, 2), (9, 3), (2, 3)):
        assert pool.can_grow(request, num_tokens)
        pool.grow(request, num_tokens)
        assert len(request.block_ids) == pool.num_owned == num_blocks
    assert pool.usage == 0.5
    assert len(set(request.block_ids)) == 3


def test_a_pool_says_when_it_is_full(pool: BlockPool) -> None:
    pool.grow(make_request([1]), 20)
    request = make_request([2] * 9)
    assert pool.can_grow(request, 4)
    assert not pool.can_grow(request, 5)


def test_full_blocks_are_shared_and_counted_once(pool: BlockPool) -> None:
    tokens = list(range(11))
    first = fill(pool, tokens)
    second = make_request(tokens)
    assert pool.match_prefix(second) == 8
    assert second.block_ids == first.block_ids[:2]
    assert pool.num_owned == 3
    pool.release(first)
    assert pool.num_owned == 2
    pool.check([second])
    pool.release(second)
    assert pool.num_owned == 0
    pool.check([])


@pytest.mark.parametrize(("length", "cached"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_at_least_one_token_is_left_to_compute(pool: BlockPool, length: int, cached: int) -> None:
    tokens = list(range(12))
    pool.release(fill(pool, tokens))
    assert pool.peek_prefix(tokens[:length]) == cached
    assert pool.match_prefix(make_request(tokens[:length])) == cached


def test_equal_blocks_after_different_beginnings_are_not_shared(pool: BlockPool) -> None:
    pool.release(fill(pool, [1, 1, 1, 1, 5, 5, 5, 5]))
    assert pool.match_prefix(make_request([2, 2, 2, 2, 5, 5, 5, 5, 0])) == 0
    assert pool.match_prefix(make_request([5, 5, 5, 5, 0])) == 0


def test_peeking_takes_nothing(pool: BlockPool) -> None:
    tokens = list(range(9))
    pool.release(fill(pool, tokens))
    assert pool.peek_prefix(tokens) == 8
    assert pool.num_owned == 0


def test_blocks_that_are_not_computed_yet_are_not_shared(pool: BlockPool) -> None:
    tokens = list(range(13))
    request = make_request(tokens)
    pool.grow(request, 13)
    request.num_computed = 7
    pool.publish(request, 0)
    assert pool.peek_prefix(tokens) == 4
    request.num_computed = 12
    pool.publish(request, 7)
    assert pool.peek_prefix(tokens) == 12


def test_the_same_block_computed_twice_at_once_is_kept_once(pool: BlockPool) -> None:
    tokens = list(range(5))
    requests = [make_request(list(tokens)) for _ in range(2)]
    for request in requests:
        pool.grow(request, 5)
        request.num_computed = 5
    for request in requests:
        pool.publish(request, 0)
        pool.check(requests)
    for request in requests:
        pool.release(request)
    pool.check([])
    assert pool.num_available == 6
    assert pool.match_prefix(make_request(tokens)) == 4


def test_the_least_recently_used_prefix_goes_first(pool: BlockPool) -> None:
    old, new = [1] * 9, [2] * 9
    pool.release(fill(pool, old))
    pool.release(fill(pool, new))
    pool.release(fill(pool, old))  # used again
    pool.grow(make_request([3]), 16)
    assert (pool.peek_prefix(old), pool.peek_prefix(new)) == (8, 0)


def test_the_end_of_a_prefix_goes_before_its_beginning(pool: BlockPool) -> None:
    tokens = list(range(13))
    pool.release(fill(pool, tokens))
    pool.grow(make_request([3]), 16)
    assert pool.peek_prefix(tokens) == 8


def test_free_blocks_are_used_before_cached_ones(pool: BlockPool) -> None:
    tokens = list(range(9))
    pool.release(fill(pool, tokens))
    pool.grow(make_request([3]), 16)
    assert pool.peek_prefix(tokens) == 8


def test_blocks_in_use_are_never_evicted(pool: BlockPool) -> None:
    tokens = list(range(9))
    request = fill(pool, tokens)
    other = make_request([3])
    pool.grow(other, 12)
    assert not pool.can_grow(make_request([4]), 1)
    pool.check([request, other])


def test_reset_forgets_prefixes_but_not_owners(pool: BlockPool) -> None:
    request = fill(pool, list(range(9)))
    pool.release(fill(pool, [7] * 9))
    pool.reset_prefix_cache()
    assert pool.peek_prefix(list(range(9))) == pool.peek_prefix([7] * 9) == 0
    pool.check([request])
    pool.release(request)
    pool.check([])
    assert pool.num_available == 6


def test_without_prefix_caching_nothing_is_shared() -> None:
    pool = BlockPool(6, 4, enable_prefix_caching=False)
    tokens = list(range(9))
    pool.release(fill(pool, tokens))
    assert pool.match_prefix(make_request(tokens)) == pool.peek_prefix(tokens) == 0


def test_hashes_chain_and_are_equal_in_every_process() -> None:
    first = hash_block(b"", [1, 2])
    assert first.hex() == "f59df9f51bfcb52f7ae49756810ec78b"
    assert len({first, hash_block(first, [1, 2]), hash_block(b"", [2, 1]), hash_block(b"", [1, 2, 0])}) == 4


def _lose(pool: BlockPool) -> Any:
    return pool._free.pop()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_lose, "a block is lost"),
        (lambda pool: pool._free.append(pool._free[0]), "a block is free twice"),
        (lambda pool: pool._free.append(0), "a block is in two states"),
        (lambda pool: pool._ref_counts.__setitem__(0, 2), "reference counts differ"),
        (lambda pool: pool._block_of.clear(), "hash tables disagree"),
        (lambda pool: pool._cached.__setitem__(pool._free.pop(), None), "a cached block has no hash"),
    ],
)
def test_check_finds_broken_books(pool: BlockPool, damage: Callable[[BlockPool], Any], message: str) -> None:
    request = fill(pool, list(range(6)))
    pool.check([request])
    damage(pool)
    with pytest.raises(RuntimeError, match=message):
        pool.check([request])


class EngineLife(RuleBasedStateMachine):
    """Random traffic on a small cache; SchedulerDriver checks the books and every read of the cache."""

    requests: Bundle[Request] = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.driver = SchedulerDriver(num_blocks=12, block_size=3, max_num_batched_tokens=9, max_num_seqs=5)
        self.added: list[Request] = []

    @rule(
        target=requests,
        prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), min_size=1, max_size=3),
        max_tokens=st.integers(1, 16),
        priority=st.integers(0, 2),
    )
    def add(self, prompts: list[list[int]], max_tokens: int, priority: int) -> Any:
        new = [self.driver.add(prompt, max_tokens, priority=priority) for prompt in prompts]
        self.added += new
        return multiple(*new)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    @rule(request=consumes(requests))
    def abort(self, request: Request) -> None:
        if request.finish_reason is None:
            self.driver.abort(request)

    @rule()
    def fail(self) -> None:
        self.driver.step(fails=True)

    @rule()
    def reset_prefixes(self) -> None:
        self.driver.pool.reset_prefix_cache()

    @invariant()
    def nothing_is_lost(self) -> None:
        self.driver.check()
        known = {request.request_id for request in self.driver.scheduler.requests()}
        assert known | set(self.driver.finished) == {request.request_id for request in self.added}
        assert len(self.driver.finished) == len(set(self.driver.finished))

    def teardown(self) -> None:
        self.driver.drain()
        self.nothing_is_lost()
        assert len(self.driver.finished) == len(self.added)


TestEngineLife = EngineLife.TestCase
TestEngineLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
