"""What a step computes: order, budget, chunks, admission, preemption."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deployments.engine.request import FinishReason, ScheduledChunk
from tests.deployments.engine.scheduler_driver import SchedulerDriver


def sizes(chunks: list[ScheduledChunk]) -> list[tuple[str, int]]:
    return [(chunk.request.request_id, chunk.num_tokens) for chunk in chunks]


def test_requests_that_arrive_together_are_prefilled_in_one_step() -> None:
    driver = SchedulerDriver()
    driver.add(5)
    driver.add(3)
    assert sizes(driver.step()) == [("r1", 5), ("r2", 3)]


def test_running_streams_come_before_prompts() -> None:
    driver = SchedulerDriver(max_num_batched_tokens=10)
    driver.add(4, max_tokens=5)
    driver.step()
    driver.add(30)
    assert sizes(driver.step()) == [("r1", 1), ("r2", 9)]


def test_a_long_prompt_does_not_stall_running_streams() -> None:
    driver = SchedulerDriver(max_num_batched_tokens=8, num_blocks=128)
    streams = [driver.add(2, max_tokens=50) for _ in range(3)]
    driver.step()
    long = driver.add(200)
    while long.num_computed < 200 and long.finish_reason is None:
        before = [stream.num_outputs for stream in streams]
        driver.step()
        assert [stream.num_outputs - old for stream, old in zip(streams, before, strict=True)] == [1, 1, 1]
    assert long.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("budget", "chunk", "expected"),
    [
        (64, None, [20]),
        (8, None, [8, 8, 4]),
        (64, 7, [7, 7, 6]),
        (5, 7, [5, 5, 5, 5]),
        (64, 20, [20]),
        (64, 1, [1] * 20),
    ],
)
def test_a_prompt_is_cut_into_chunks(budget: int, chunk: int | None, expected: list[int]) -> None:
    driver = SchedulerDriver(max_num_batched_tokens=budget, max_prefill_chunk=chunk)
    driver.add(20)
    seen = []
    while driver.scheduler.has_work:
        seen += [chunk.num_tokens for chunk in driver.step()]
    assert seen == expected


def test_the_budget_is_shared_by_prompts_in_order() -> None:
    driver = SchedulerDriver(max_num_batched_tokens=10, max_prefill_chunk=6)
    for length in (9, 9, 9):
        driver.add(length)
    assert sizes(driver.step()) == [("r1", 6), ("r2", 4)]
    assert sizes(driver.step()) == [("r1", 3), ("r2", 5), ("r3", 2)]


def test_a_prompt_in_progress_comes_before_one_that_waits() -> None:
    driver = SchedulerDriver(max_num_batched_tokens=8)
    driver.add(20)
    driver.add(2)
    order = [sizes(driver.step()) for _ in range(3)]
    assert order == [[("r1", 8)], [("r1", 8)], [("r1", 4), ("r2", 2)]]


def test_waiting_requests_start_in_order_of_priority_then_arrival() -> None:
    driver = SchedulerDriver(max_num_seqs=1)
    for name, priority in (("low", 5), ("b", 0), ("high", -1), ("c", 0)):
        driver.add(3, priority=priority, name=name)
    driver.drain()
    assert driver.finished == ["high", "b", "c", "low"]


def test_no_more_requests_run_than_allowed() -> None:
    driver = SchedulerDriver(max_num_seqs=2)
    for _ in range(5):
        driver.add(3, max_tokens=4)
    assert len(driver.step()) == 2
    driver.drain()
    assert len(driver.finished) == 5


def test_budget_smaller_than_the_number_of_requests_serves_everyone() -> None:
    driver = SchedulerDriver(max_num_batched_tokens=2, max_num_seqs=16)
    for _ in range(10):
        driver.add(5, max_tokens=6)
    driver.drain()
    assert driver.finished == [f"r{i}" for i in range(1, 11)]


def test_admission_waits_for_room_for_the_whole_prompt() -> None:
    driver = SchedulerDriver(num_blocks=8, block_size=4, max_num_batched_tokens=8)
    first = driver.add(20, max_tokens=3)
    second = driver.add(16, max_tokens=3)
    while first.finish_reason is None:
        driver.step()
        assert second.num_computed == 0
    driver.drain()
    assert driver.finished == ["r1", "r2"]
    assert driver.scheduler.num_preemptions == 0


def test_a_small_request_does_not_overtake_one_that_waits_for_room() -> None:
    driver = SchedulerDriver(num_blocks=8, block_size=4)
    driver.add(16, max_tokens=8)
    driver.add(24, max_tokens=1)
    driver.add(1, max_tokens=1)
    driver.drain()
    assert driver.finished == ["r1", "r2", "r3"]


def test_admission_holds_back_one_block_for_each_running_stream() -> None:
    driver = SchedulerDriver(num_blocks=3, block_size=4)
    driver.add(4, max_tokens=5)
    driver.step()
    waiting = driver.add(8, max_tokens=1)
    driver.step()
    assert waiting in driver.scheduler.waiting
    driver.drain()
    assert driver.scheduler.num_preemptions == 0


def test_small_requests_that_keep_coming_do_not_overtake_a_prompt_in_progress() -> None:
    """They must not be admitted into the blocks that the rest of the prompt needs."""
    driver = SchedulerDriver(num_blocks=40, block_size=4, max_num_batched_tokens=64, max_prefill_chunk=32)
    long = driver.add(150)
    while long.finish_reason is None:
        assert len(driver.finished) == 0, "a later request overtook the prompt"
        for _ in range(3):
            driver.add(3, max_tokens=9)
        driver.step()
    driver.drain()


def test_the_latest_request_gives_way_and_is_computed_again() -> None:
    driver = SchedulerDriver(num_blocks=6, block_size=4, prefix_caching=False)
    first = driver.add(7, max_tokens=12)
    second = driver.add(7, max_tokens=12)
    while not driver.scheduler.num_preemptions:
        driver.step()
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)
    assert second.num_computed == 0
    assert second.num_outputs > 0
    known = len(second.token_ids)
    while second.num_computed == 0:
        chunks = driver.step()
    assert (second.request_id, known) in sizes(chunks)
    driver.drain()
    assert driver.finished == ["r1", "r2"]


def test_the_least_urgent_request_gives_way_whenever_it_came() -> None:
    driver = SchedulerDriver(num_blocks=6, block_size=4)
    unimportant = driver.add(7, max_tokens=12, priority=1)
    important = driver.add(7, max_tokens=12, priority=0)
    driver.drain()
    assert unimportant.num_preemptions > 0
    assert important.num_preemptions == 0


def test_a_preempted_request_starts_before_later_arrivals() -> None:
    driver = SchedulerDriver(num_blocks=6, block_size=4)
    driver.add(7, max_tokens=12)
    second = driver.add(7, max_tokens=12)
    while not second.num_preemptions:
        driver.step()
    third = driver.add(1)
    while second.num_computed == 0:
        assert third in driver.scheduler.waiting
        driver.step()
    driver.drain()


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    driver = SchedulerDriver(num_blocks=8, block_size=4)
    driver.add(4, max_tokens=16)
    second = driver.add(13, max_tokens=12)
    while not second.num_preemptions:
        driver.step()
    driver.drain()
    assert driver.scheduler.prefix_hits > 0
    assert second.num_cached == 0, "what a client is told was cached must not count its own recomputation"


def test_two_prompts_that_both_wait_for_blocks_do_not_block_each_other() -> None:
    driver = SchedulerDriver(num_blocks=10, block_size=4, max_prefill_chunk=4, max_num_batched_tokens=8)
    driver.add(1, max_tokens=30)
    driver.step()
    driver.add(24, max_tokens=8)
    driver.add(24, max_tokens=8)
    driver.drain()
    assert sorted(driver.finished) == ["r1", "r2", "r3"]


@pytest.mark.parametrize("when", ["waiting", "prefilling", "decoding", "preempted"])
def test_a_request_can_leave_at_any_time(when: str) -> None:
    driver = SchedulerDriver(num_blocks=6, block_size=4, max_prefill_chunk=4)
    if when == "preempted":
        driver.add(7, max_tokens=12)
    request = driver.add(7, max_tokens=12)
    reached: dict[str, Callable[[], bool]] = {
        "waiting": lambda: True,
        "prefilling": lambda: 0 < request.num_computed < 7,
        "decoding": lambda: request.num_outputs > 1,
        "preempted": lambda: request.num_preemptions > 0,
    }
    while not reached[when]():
        driver.step()
    driver.abort(request)
    assert request not in list(driver.scheduler.requests())
    assert request.finish_reason is FinishReason.ABORTED
    driver.drain()


def test_requests_of_a_failed_step_leave_and_the_others_stay() -> None:
    driver = SchedulerDriver(max_num_seqs=2)
    for _ in range(4):
        driver.add(5, max_tokens=3)
    driver.step(fails=True)
    assert driver.finished == ["r1", "r2"]
    driver.drain()
    assert driver.finished == ["r1", "r2", "r3", "r4"]
