"""Changes to single logits: penalties, biases and bans. Only the tokens concerned are touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from .request import Request

_Edit = tuple[int, np.ndarray, np.ndarray]
"""A row, the tokens to edit in it, and a number for each."""


def apply_edits(logits: torch.Tensor, requests: Sequence[Request], eos_token_ids: Iterable[int]) -> None:
    """Edit `logits` [N, V] float32 in place, one row for each request.

    Repetition penalty as in transformers (Keskar et al. 2019), over prompt and output; presence and
    frequency penalty as in OpenAI's API, over the output; then biases; then EOS and stop ids are banned
    until `min_tokens` were generated.
    """
    _penalize_repetition(logits, requests)
    additions = [*_penalties(requests), *_biases(requests), *_bans(requests, eos_token_ids)]
    if additions:
        rows, tokens, values = _flatten(additions, logits.device)
        logits.index_put_((rows, tokens), values, accumulate=True)


def _penalize_repetition(logits: torch.Tensor, requests: Sequence[Request]) -> None:
    edits: list[_Edit] = []
    for row, request in enumerate(requests):
        penalty = request.params.repetition_penalty
        if penalty != 1.0:
            seen = np.unique(request.token_ids)
            edits.append((row, seen, np.full(len(seen), penalty)))
    if edits:
        rows, tokens, penalties = _flatten(edits, logits.device)
        old = logits[rows, tokens]
        logits[rows, tokens] = torch.where(old < 0, old * penalties, old / penalties)


def _penalties(requests: Sequence[Request]) -> Iterable[_Edit]:
    for row, request in enumerate(requests):
        params = request.params
        if request.num_outputs and (params.presence_penalty or params.frequency_penalty):
            tokens, counts = np.unique(request.token_ids[request.prompt_len :], return_counts=True)
            yield row, tokens, -(params.presence_penalty + params.frequency_penalty * counts)


def _biases(requests: Sequence[Request]) -> Iterable[_Edit]:
    for row, request in enumerate(requests):
        if request.params.logit_bias:
            tokens, values = zip(*request.params.logit_bias, strict=True)
            yield row, np.array(tokens), np.array(values)


def _bans(requests: Sequence[Request], eos_token_ids: Iterable[int]) -> Iterable[_Edit]:
    for row, request in enumerate(requests):
        if request.num_outputs < request.params.min_tokens:
            tokens = np.array([*{*eos_token_ids, *request.params.stop_token_ids}], dtype=np.int64)
            yield row, tokens, np.full(len(tokens), -np.inf)


def _flatten(edits: Sequence[_Edit], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = np.repeat([row for row, _, _ in edits], [len(tokens) for _, tokens, _ in edits])
    tokens = np.concatenate([tokens for _, tokens, _ in edits]).astype(np.int64)
    values = np.concatenate([values for _, _, values in edits]).astype(np.float32)
    return (
        torch.from_numpy(rows).to(device),
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(values).to(device),
    )
