"""The engine's greedy tokens equal transformers' `generate`, token for token, whatever runs beside them."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch

from deployments.engine.batch import PackedBatch
from deployments.engine.config import ModelConfig
from deployments.engine.request import FinishReason
from tests.deployments.engine.engine_harness import (
    ForwardKind,
    LoadedModel,
    LoadTiny,
    build_harness,
    load_twice,
)
from tests.deployments.engine.parity import SETTINGS, MakeCase, ParityCase, assert_parity
from tests.tiny_models import KINDS, Kind, build_model

_MODELS: list[tuple[Kind, bool]] = [*((kind, False) for kind in KINDS), ("llama", True), ("gemma3", True)]


@pytest.mark.parametrize("forward", get_args(ForwardKind))
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("kind", "tied"), _MODELS, ids=[f"{k}-tied" if t else k for k, t in _MODELS])
def test_tokens_equal_generate(
    make_case: MakeCase, kind: Kind, tied: bool, setting: str, forward: ForwardKind
) -> None:
    assert_parity(make_case(kind, tied), SETTINGS[setting], forward)


def test_prompts_differ_enough_to_tell_answers_apart(llama_case: ParityCase) -> None:
    assert len(llama_case.prompts) == 50
    assert {len(prompt) for prompt in llama_case.prompts} >= {1, 2, 8, 9, 150}
    answers = {tuple(answer) for answer in llama_case.expected}
    assert len(answers) > 45
    assert any(len(set(answer)) > 10 for answer in answers)


def test_prompts_that_share_a_beginning_reuse_it(llama: LoadedModel, llama_case: ParityCase) -> None:
    long = llama_case.prompts[4]
    harness = build_harness(llama)
    harness.answers(harness.request("whole", long))
    branches = [[*long[:cut], 7, cut] for cut in (1, 8, 63, 64, 65, 150)]
    requests = [harness.request(f"branch-{len(prompt)}", prompt) for prompt in branches]
    answers = harness.answers(*requests)
    assert answers == [llama.generate(prompt, 8) for prompt in branches]
    assert [request.num_cached for request in requests] == [0, 8, 56, 64, 64, 144]


def test_a_whole_prompt_in_the_cache_still_computes_its_last_block(llama: LoadedModel) -> None:
    prompt = list(range(3, 67))
    harness = build_harness(llama)
    first, second = harness.request("first", prompt), harness.request("second", prompt)
    assert harness.answers(first) == harness.answers(second) == [llama.generate(prompt, 8)]
    assert (first.num_cached, second.num_cached) == (0, 56)


def test_an_answer_is_a_prefix_for_the_next_turn(llama: LoadedModel) -> None:
    prompt = list(range(3, 40))
    harness = build_harness(llama)
    (answer,) = harness.answers(harness.request("turn-1", prompt, max_tokens=20))
    follow_up = [*prompt, *answer, 5, 6]
    second = harness.request("turn-2", follow_up)
    assert harness.answers(second) == [llama.generate(follow_up, 8)]
    assert second.num_cached == 56


def test_an_answer_ends_with_eos_where_generate_does(llama: LoadedModel, llama_case: ParityCase) -> None:
    eos = llama_case.expected[0][-1]
    info = dataclasses.replace(llama.info, eos_token_ids=frozenset({eos}))
    harness = build_harness(llama, info=info)
    requests = [
        harness.request(f"r{i}", prompt, max_tokens=60, ignore_eos=False)
        for i, prompt in enumerate(llama_case.prompts[:20])
    ]
    expected = [llama.generate(prompt, 60, eos) for prompt in llama_case.prompts[:20]]
    assert harness.answers(*requests) == expected
    reasons = [harness.outputs.reason(request.request_id) for request in requests]
    assert reasons == [FinishReason.STOP if e[-1] == eos else FinishReason.LENGTH for e in expected]
    assert set(reasons) == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("forward", ["sdpa", "reference", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_runs_and_is_finite(
    tmp_path_factory: pytest.TempPathFactory,
    kind: Kind,
    forward: ForwardKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("bfloat16")
    build_model(folder, kind)
    loaded = load_twice(ModelConfig(source=str(folder)), torch.bfloat16)
    harness = build_harness(loaded, forward=forward, max_prefill_chunk=16)
    compute = harness.engine._runner._forward
    seen: list[torch.Tensor] = []

    def spy(batch: PackedBatch, cache: torch.Tensor) -> torch.Tensor:
        seen.append(compute(batch, cache).clone())
        return seen[-1]

    monkeypatch.setattr(harness.engine._runner, "_forward", spy)
    requests = [harness.request(f"r{n}", list(range(3, 3 + n)), max_tokens=5) for n in (1, 20, 50)]
    assert [len(answer) for answer in harness.answers(*requests)] == [5, 5, 5]
    assert {logits.dtype for logits in seen} == {torch.float32 if forward == "native" else torch.bfloat16}
    assert all(logits.isfinite().all() for logits in seen)
    assert harness.engine._runner._cache.dtype is torch.bfloat16


def test_gemma_logits_depend_on_the_sliding_window(load_tiny: LoadTiny) -> None:
    """Guards the parity tests themselves: with the window ignored, the answers would differ."""
    loaded = load_tiny("gemma3", False)
    prompt = list(range(3, 60))
    harness = build_harness(loaded)
    (sliding,) = harness.answers(harness.request("sliding", prompt, max_tokens=20))
    windows = [layer.self_attn for layer in loaded.paged.model.layers if layer.self_attn.sliding_window]
    assert len(windows) == 2
    with pytest.MonkeyPatch.context() as patch:
        for attention in windows:
            patch.setattr(attention, "sliding_window", None)
        harness = build_harness(loaded)
        (full,) = harness.answers(harness.request("full", prompt, max_tokens=20))
    assert sliding == loaded.generate(prompt, 20) != full
