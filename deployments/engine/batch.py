"""Packs a step's chunks into flat arrays: T tokens of S sequences, one after another, no padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from .request import ScheduledChunk


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """`token_ids`, `positions` and `slots` (where a token's keys go in the flat cache) are [T] int64;
    `query_lens` and `context_lens` (cached and new tokens together) are [S] int64; `block_tables`
    [S, N] int64, rows padded with 0; `sample_rows` are the packed positions whose logits are needed."""

    block_size: int
    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    query_lens: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    sample_rows: np.ndarray


def pack(chunks: Sequence[ScheduledChunk], block_size: int) -> PackedBatch:
    query_lens = np.array([chunk.num_tokens for chunk in chunks], dtype=np.int64)
    computed = np.array([chunk.request.num_computed for chunk in chunks], dtype=np.int64)
    token_ids = np.fromiter(chain.from_iterable(map(_tokens, chunks)), np.int64, int(query_lens.sum()))
    rows = np.repeat(np.arange(len(chunks)), query_lens)
    ends = np.cumsum(query_lens)
    positions = np.arange(len(rows)) + np.repeat(computed - (ends - query_lens), query_lens)
    block_tables = _block_tables(chunks)
    slots = block_tables[rows, positions // block_size] * block_size + positions % block_size
    samples = np.array([chunk.samples for chunk in chunks], dtype=bool)
    return PackedBatch(
        block_size,
        token_ids,
        positions,
        slots,
        query_lens,
        computed + query_lens,
        block_tables,
        (ends - 1)[samples],
    )


def _tokens(chunk: ScheduledChunk) -> list[int]:
    start = chunk.request.num_computed
    return chunk.request.token_ids[start : start + chunk.num_tokens]


def _block_tables(chunks: Sequence[ScheduledChunk]) -> np.ndarray:
    width = max(len(chunk.request.block_ids) for chunk in chunks)
    tables = np.zeros((len(chunks), width), dtype=np.int64)
    for row, chunk in zip(tables, chunks, strict=True):
        row[: len(chunk.request.block_ids)] = chunk.request.block_ids
    return tables
