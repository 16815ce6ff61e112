"""The engine in its own thread: cancellation under load, health, stop."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from deployments.engine.request import FinishReason, Request, StepOutput
from tests.deployments.engine.engine_harness import Harness, LoadedModel, build_harness
from tests.deployments.engine.parity import ParityCase

_REQUESTS = 1000
_CANCELLED = 300


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Steps wait until it is set; set at the end, so that a failing test leaves no thread behind."""
    event = threading.Event()
    yield event
    event.set()


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.002)


def hold_steps(harness: Harness, gate: threading.Event) -> threading.Event:
    """Make each forward pass wait for `gate`; the event that is returned tells that one is waiting."""
    execute, entered = harness.engine._runner.execute, threading.Event()

    def wait(chunks: Sequence[object]) -> list[int]:
        entered.set()
        gate.wait(60)
        return execute(chunks)  # type: ignore[arg-type]

    harness.engine._runner.execute = wait  # type: ignore[method-assign]
    return entered


class Canceller:
    """Aborts requests at random points of their life, and notes in which they were."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.phases: dict[str, str] = {}
        self._victims: list[Request] = []
        self._rng = random.Random(2)
        self._finish = harness.engine._scheduler.finish
        harness.engine._scheduler.finish = self._note_phase  # type: ignore[method-assign]
        harness.outputs.on_publish = self._cancel_some

    def add(self, victims: Sequence[Request]) -> None:
        self._victims += victims

    def _cancel_some(self, _: Sequence[StepOutput]) -> None:
        """In the engine's thread, after a step."""
        for victim in self._rng.sample(self._victims, min(len(self._victims), 4)):
            if victim.num_computed or self._rng.random() < 0.2:
                self._victims.remove(victim)
                self.harness.engine.abort(victim.request_id)

    def _note_phase(self, request: Request, reason: FinishReason) -> None:
        if reason is FinishReason.ABORTED:
            computed, outputs = request.num_computed, request.num_outputs
            self.phases[request.request_id] = "decode" if outputs else "prefill" if computed else "waiting"
        self._finish(request, reason)


def test_cancelling_300_of_1000_requests_leaves_nothing_behind(
    llama: LoadedModel, llama_case: ParityCase
) -> None:
    harness = build_harness(
        llama,
        num_blocks=160,
        max_model_len=300,
        max_num_seqs=32,
        max_num_batched_tokens=256,
        max_prefill_chunk=24,
    )
    canceller, rng = Canceller(harness), random.Random(3)
    order = ["victim"] * _CANCELLED + ["survivor"] * (_REQUESTS - _CANCELLED)
    rng.shuffle(order)
    prompts: dict[str, int] = {}
    harness.engine.start()
    for start in range(0, _REQUESTS, 20):
        group = []
        for number in range(start, start + 20):
            name, index = f"{order[number]}-{number}", number % len(llama_case.prompts)
            prompts[name] = index
            expected = llama_case.expected[index]
            # A victim would run for long, so that none is done before it is cancelled.
            num_tokens = len(expected) if order[number] == "survivor" else 140
            group.append(harness.request(name, llama_case.prompts[index], max_tokens=num_tokens))
        harness.submit(*group)
        victims = [request for request in group if request.request_id.startswith("victim")]
        for request in victims[::5]:
            harness.engine.abort(request.request_id)
        canceller.add([request for request in victims if request not in victims[::5]])
        harness.engine.check_health()
    harness.outputs.wait_until_ended(harness.submitted)
    harness.engine.stop()
    harness.assert_idle_and_complete()
    for name, index in prompts.items():
        expected, found = llama_case.expected[index], harness.outputs.tokens(name)
        if name.startswith("survivor"):
            assert harness.outputs.reason(name) is FinishReason.LENGTH
            assert found == expected
        else:
            assert harness.outputs.reason(name) is FinishReason.ABORTED
            assert found[: len(expected)] == expected[: len(found)]
    assert len(canceller.phases) == _CANCELLED
    assert set(canceller.phases.values()) == {"waiting", "prefill", "decode"}


def test_threads_may_submit_at_the_same_time(llama: LoadedModel, llama_case: ParityCase) -> None:
    harness = build_harness(llama, warmup=True)
    harness.engine.start()

    def submit(part: int) -> None:
        for index in range(part, 48, 4):
            expected = llama_case.expected[index]
            request = harness.request(f"r{index}", llama_case.prompts[index], max_tokens=len(expected))
            harness.submit(request)

    threads = [threading.Thread(target=submit, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    harness.outputs.wait_until_ended(f"r{index}" for index in range(48))
    harness.engine.stop()
    harness.assert_idle_and_complete()
    assert [harness.outputs.tokens(f"r{index}") for index in range(48)] == llama_case.expected[:48]


def test_stop_ends_everything_unfinished_as_aborted(llama: LoadedModel, gate: threading.Event) -> None:
    harness = build_harness(llama, max_num_seqs=2)
    entered = hold_steps(harness, gate)
    harness.engine.start()
    harness.submit(*[harness.request(f"r{i}", [5, 6, 7 + i], max_tokens=400) for i in range(4)])
    assert entered.wait(60)
    harness.submit(harness.request("still in the inbox", [9]))
    stopper = threading.Thread(target=harness.engine.stop)
    stopper.start()
    until(lambda: harness.engine._stopping)
    gate.set()
    stopper.join()
    harness.assert_idle_and_complete()
    reasons = {harness.outputs.reason(name) for name in harness.submitted}
    assert reasons == {FinishReason.ABORTED}


def test_a_stopped_engine_refuses_requests_and_ignores_aborts(llama: LoadedModel) -> None:
    harness = build_harness(llama)
    harness.engine.start()
    harness.engine.stop()
    with pytest.raises(RuntimeError, match="stopping"):
        harness.engine.submit([harness.request("late", [5])])
    harness.engine.abort("late")
    assert harness.engine.stats().num_waiting == 0


def test_health_needs_a_living_thread(llama: LoadedModel) -> None:
    harness = build_harness(llama)
    with pytest.raises(RuntimeError, match="not running"):
        harness.engine.check_health()
    harness.engine.start()
    harness.engine.check_health()
    harness.engine.stop()
    with pytest.raises(RuntimeError, match="not running"):
        harness.engine.check_health()


@pytest.mark.parametrize("failures", [1, 2, 3, 4])
def test_health_fails_after_three_failed_steps_in_a_row(llama: LoadedModel, failures: int) -> None:
    harness = build_harness(llama)
    execute, left = harness.engine._runner.execute, [None] * failures

    def fail(chunks: Sequence[object]) -> list[int]:
        if left:
            left.pop()
            raise ValueError
        return execute(chunks)  # type: ignore[arg-type]

    harness.engine._runner.execute = fail  # type: ignore[method-assign]
    harness.engine.start()
    for number in range(failures):
        harness.submit(harness.request(f"r{number}", [5, 6]))
        harness.outputs.wait_until_ended([f"r{number}"])
        assert harness.outputs.reason(f"r{number}") is FinishReason.ERROR
    if failures < 3:
        harness.engine.check_health()
    else:
        with pytest.raises(RuntimeError, match=f"the last {failures} engine steps failed"):
            harness.engine.check_health()
    harness.submit(harness.request("good", [5, 6]))
    harness.outputs.wait_until_ended(["good"])
    harness.engine.check_health()
    harness.engine.stop()
    harness.assert_idle_and_complete()


def test_health_fails_while_a_step_is_stuck(llama: LoadedModel, gate: threading.Event) -> None:
    harness = build_harness(llama, step_timeout_s=0.05)
    entered = hold_steps(harness, gate)
    harness.engine.start()
    harness.engine.check_health()
    harness.submit(harness.request("r", [5, 6], max_tokens=1))
    assert entered.wait(60)

    def is_stuck() -> bool:
        try:
            harness.engine.check_health()
        except RuntimeError as error:
            return "longer than 0.05 seconds" in str(error)
        return False

    until(is_stuck)
    gate.set()
    harness.outputs.wait_until_ended(["r"])
    harness.engine.check_health()
    harness.engine.stop()
