"""The CPU kernels against plain torch, in float64 or by the reference backend."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from deployments.engine.attention.backend import AttentionParams, KVTensors
from deployments.engine.attention.native import NativeContext
from deployments.engine.attention.reference import ReferencePlan
from deployments.engine.batch import PackedBatch
from deployments.engine.kernels import KernelsUnavailableError, build, load_kernels
from deployments.engine.model_cache import cache_folder
from deployments.engine.packed_linear import PackedLinear, quantize_rows

DTYPES = [torch.float32, torch.bfloat16]
_ATTENTION_ERROR = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    load_kernels(cache_folder(None))
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 12, 13, 40, 100])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (100, 32), (33, 30), (192, 576), (1, 2)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("int8", [True, False])
def test_linear(dtype: torch.dtype, rows: int, outputs: int, inputs: int, bias: bool, int8: bool) -> None:
    layer = torch.nn.Linear(inputs, outputs, bias=bias, dtype=dtype).requires_grad_(False)
    x = torch.randn(rows, inputs).to(dtype)
    weight = layer.weight.double()
    if int8:
        quantized, scales = quantize_rows(layer.weight)
        assert ((quantized * scales[:, None]).double() - weight).abs().max() <= scales.max() / 2 + 1e-6
        weight = quantized.double() * scales.double()[:, None]
    expected = x.double() @ weight.T + (layer.bias.double() if bias else 0)
    for float_output in (True, False):
        found = PackedLinear(layer, float_output, int8)(x)
        assert found.dtype is (torch.float32 if float_output else dtype)
        tolerance = 1e-5 if found.dtype is torch.float32 else 1e-2
        torch.testing.assert_close(found.double(), expected, atol=tolerance * 4, rtol=tolerance)


def _batch(tables: np.ndarray, block_size: int, queries: list[int], contexts: list[int]) -> PackedBatch:
    query_lens, context_lens = np.array(queries), np.array(contexts)
    rows = np.repeat(np.arange(len(queries)), query_lens)
    positions = np.concatenate([np.arange(c - q, c) for q, c in zip(queries, contexts, strict=True)])
    slots = tables[rows, positions // block_size] * block_size + positions % block_size
    nothing = np.zeros(0, dtype=np.int64)
    return PackedBatch(block_size, nothing, positions, slots, query_lens, context_lens, tables, nothing)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 32), (8, 1, 80), (4, 1, 256), (60, 1, 16)]
)
@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (20, None), (None, 2.0), (3, 2.0)])
@pytest.mark.parametrize(
    "lengths", [[(1, 1)], [(7, 7), (1, 300), (30, 130), (65, 65)], [(1, 1300), (3, 2300)]], ids=len
)
def test_attention(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    window: int | None,
    softcap: float | None,
    lengths: list[tuple[int, int]],
) -> None:
    """Contexts in one step, then new queries: in a cache of NaN, since what is stale must not count."""
    width = max(-(-context // block_size) for _, context in lengths)
    tables = torch.randperm(width * len(lengths)).reshape(len(lengths), width)
    shape = (len(tables.flatten()), block_size, kv_heads, dim)
    cache = torch.full((2, 2, *shape), float("nan"), dtype=dtype)
    reference = KVTensors(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))
    params = AttentionParams(0.13, window, softcap)
    for step in ([(c - q, c - q) for q, c in lengths], lengths):
        used = [index for index, (queries, _) in enumerate(step) if queries]
        if not used:
            continue
        batch = _batch(
            tables[used].numpy(), block_size, [step[i][0] for i in used], [step[i][1] for i in used]
        )
        num_tokens = int(batch.query_lens.sum())
        query = torch.randn(num_tokens, heads, dim).to(dtype)
        key, value = torch.randn(2, num_tokens, kv_heads, dim).to(dtype)
        slots = torch.from_numpy(batch.slots)
        context = NativeContext(
            cache,
            slots,
            torch.from_numpy(np.concatenate([[0], np.cumsum(batch.query_lens)])),
            torch.from_numpy(batch.context_lens),
            torch.from_numpy(batch.block_tables),
        )
        found = context.attend(1, query, key, value, params)
        reference.write(slots, key, value)
        expected = ReferencePlan(batch).attend(query, reference, params)
        torch.testing.assert_close(
            found.float(), expected.float(), atol=_ATTENTION_ERROR[dtype], rtol=_ATTENTION_ERROR[dtype]
        )
    assert cache[0].isnan().all(), "wrote to another layer"


def test_without_a_compiler_the_reason_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "is_loaded", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(KernelsUnavailableError, match=r"^there is no C\+\+ compiler"):
        load_kernels(tmp_path)


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "is_loaded", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    with pytest.raises(KernelsUnavailableError, match="/bin/false failed") as caught:
        load_kernels(tmp_path)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "kernels").glob("*"))
    assert not list((tmp_path / "tmp").glob("*"))
