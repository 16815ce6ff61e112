"""Greedy answers in five settings, which all have to equal what transformers' `generate` answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deployments.engine.engine import EngineStats
from tests.deployments.engine.engine_harness import (
    ForwardKind,
    Harness,
    LoadedModel,
    block_size_of,
    build_harness,
)
from tests.tiny_models import Kind

MakeCase = Callable[[Kind, bool], "ParityCase"]

_LONGEST_PROMPT = 150
_MOST_TOKENS = 16


@dataclass(frozen=True)
class ParityCase:
    """Prompts and the tokens that `generate` gives for each of them alone."""

    loaded: LoadedModel
    prompts: list[list[int]]
    expected: list[list[int]]

    @property
    def longest(self) -> int:
        return max(len(p) + len(e) for p, e in zip(self.prompts, self.expected, strict=True))


def make_parity_case(loaded: LoadedModel, prompts: list[list[int]], num_tokens: list[int]) -> ParityCase:
    expected = [loaded.generate(prompt, n) for prompt, n in zip(prompts, num_tokens, strict=True)]
    return ParityCase(loaded, prompts, expected)


def random_case(loaded: LoadedModel, num_prompts: int) -> ParityCase:
    """Prompts of 1 to 150 random tokens, the shortest and the longest included."""
    rng = random.Random(0)
    lengths = [1, 2, 8, 9, _LONGEST_PROMPT]
    lengths += [rng.randint(1, _LONGEST_PROMPT) for _ in range(num_prompts - len(lengths))]
    prompts = [[rng.randrange(loaded.info.vocab_size) for _ in range(length)] for length in lengths]
    return make_parity_case(loaded, prompts, [rng.randint(1, _MOST_TOKENS) for _ in prompts])


def _answer(harness: Harness, case: ParityCase, indices: list[int], tag: str) -> None:
    requests = [
        harness.request(f"{tag}-{i}", case.prompts[i], max_tokens=len(case.expected[i])) for i in indices
    ]
    harness.submit(*requests)


def _check(harness: Harness, case: ParityCase, tag: str) -> None:
    for i, expected in enumerate(case.expected):
        found = harness.outputs.tokens(f"{tag}-{i}")
        assert found == expected, f"prompt {i} of {len(case.prompts[i])} tokens"


def alone(harness: Harness, case: ParityCase) -> None:
    """One after another."""
    for i in range(len(case.prompts)):
        _answer(harness, case, [i], "alone")
        harness.drain()
    _check(harness, case, "alone")


def joining(harness: Harness, case: ParityCase) -> None:
    """Requests join at random steps, next to others that are cut off at random steps."""
    rng = random.Random(1)
    left = list(range(len(case.prompts)))
    rng.shuffle(left)
    strangers: list[str] = []
    while left or harness.busy:
        if left and (rng.random() < 0.3 or not harness.busy):
            group = [left.pop() for _ in range(min(len(left), rng.randint(1, 6)))]
            _answer(harness, case, group, "joining")
            prompt = rng.choice(case.prompts)
            harness.submit(harness.request(f"stranger-{len(left)}", prompt, max_tokens=50))
            strangers.append(f"stranger-{len(left)}")
        if strangers and rng.random() < 0.2:
            harness.engine.abort(strangers.pop(rng.randrange(len(strangers))))
        harness.step()
    harness.drain()
    _check(harness, case, "joining")


def crowded(harness: Harness, case: ParityCase) -> None:
    """All at once, the longest first, the shorter ones among strangers that grow for longer."""
    longest, *others = sorted(range(len(case.prompts)), key=lambda i: -len(case.prompts[i]))
    _answer(harness, case, [longest], "crowded")
    for place, i in enumerate(others):
        if place % 4 == 0:
            harness.submit(harness.request(f"stranger-{i}", case.prompts[i], max_tokens=50))
        _answer(harness, case, [i], "crowded")
    harness.drain()
    _check(harness, case, "crowded")


def repeated(harness: Harness, case: ParityCase) -> None:
    """Everything twice, so that the second time finds the blocks of the first."""
    for tag in ("first", "second"):
        _answer(harness, case, list(range(len(case.prompts))), tag)
        harness.drain()
        _check(harness, case, tag)


@dataclass(frozen=True)
class Setting:
    """How to drive the engine, its configuration, and what must have happened by the end."""

    run: Callable[[Harness, ParityCase], None]
    config: dict[str, Any]
    happened: Callable[[EngineStats], bool] = lambda stats: stats.num_steps > 0
    scarce: bool = False


SETTINGS = {
    "alone": Setting(alone, {"enable_prefix_caching": False}),
    "joining": Setting(joining, {"max_num_seqs": 16}),
    "chunked": Setting(joining, {"max_prefill_chunk": 7, "max_num_batched_tokens": 64}),
    "prefix hits": Setting(repeated, {}, lambda stats: stats.prefix_hits > 0),
    "preempted": Setting(crowded, {}, lambda stats: stats.num_preemptions > 0, scarce=True),
}


def assert_parity(case: ParityCase, setting: Setting, forward: ForwardKind) -> None:
    longest = case.longest + 50  # the strangers
    block_size = block_size_of(forward)
    num_blocks = -(-longest // block_size) + 2 if setting.scarce else 1024
    config: dict[str, Any] = {"block_size": block_size, "max_model_len": longest, **setting.config}
    harness = build_harness(case.loaded, num_blocks=num_blocks, forward=forward, **config)
    setting.run(harness, case)
    assert setting.happened(harness.engine.stats())
