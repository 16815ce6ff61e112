"""Chooses the next token of every row in one batched pass, each row with its own parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .logit_edits import apply_edits
from .noise import gumbel, row_keys
from .request import Request, SamplingParams

_TRUNCATION_WIDTH = 1024
"""Top-p and min-p look at this many leading tokens first; only if they reach further is the row sorted."""


class Sampler:
    def __init__(self, eos_token_ids: frozenset[int]) -> None:
        self._eos_token_ids = eos_token_ids

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
        """One token for each request from `logits` [N, V]; greedy rows take the first largest logit."""
        logits = logits.float()
        apply_edits(logits, requests, self._eos_token_ids)
        tokens = logits.argmax(dim=-1)
        random = [row for row, request in enumerate(requests) if not request.params.greedy]
        if random:
            tokens[random] = _sample_rows(logits[random], [requests[row] for row in random])
        return tokens.tolist()


def _sample_rows(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """Exact draws by the Gumbel-max trick (Gumbel 1954): argmax(logits + noise) is a softmax sample."""
    device = logits.device
    keys = row_keys([r.seed for r in requests], [r.num_outputs for r in requests]).to(device)
    logits /= _column([r.params.temperature for r in requests], device)
    params = [r.params for r in requests]
    truncated = [row for row, p in enumerate(params) if p.top_p < 1 or p.min_p > 0 or p.top_k > 0]
    tokens = torch.empty(len(requests), dtype=torch.int64, device=device)
    if truncated:
        rows = [params[row] for row in truncated]
        scores, candidates = _truncate(logits[truncated], rows)
        winners = (scores + gumbel(keys[truncated], candidates.int())).argmax(dim=-1, keepdim=True)
        tokens[truncated] = candidates.gather(1, winners).squeeze(1)
    whole = sorted(set(range(len(requests))).difference(truncated))
    if whole:
        vocabulary = torch.arange(logits.shape[1], dtype=torch.int32, device=device)
        tokens[whole] = (logits[whole] + gumbel(keys[whole], vocabulary)).argmax(dim=-1)
    return tokens


def _truncate(logits: torch.Tensor, params: Sequence[SamplingParams]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [N, W] in falling order, -inf where top-k, top-p or min-p leaves them out, and their tokens."""
    vocab_size = logits.shape[1]
    limits = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    open_width = max((min(limit, _TRUNCATION_WIDTH) for limit in limits), default=0)
    closed_width = max((p.top_k for p in params if 0 < p.top_k < vocab_size), default=0)
    width = min(max(open_width, closed_width), vocab_size)
    scores, candidates, complete = _truncate_to(logits, params, limits, width)
    if not complete:
        scores, candidates, _ = _truncate_to(logits, params, limits, vocab_size)
    return scores, candidates


def _truncate_to(
    logits: torch.Tensor, params: Sequence[SamplingParams], limits: Sequence[int], width: int
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Like `_truncate` among the `width` largest; the flag tells whether no row would have kept more."""
    device, vocab_size = logits.device, logits.shape[1]
    scores, candidates = logits.topk(width, dim=-1)
    limit = _column(limits, device)
    scores = scores.masked_fill(torch.arange(width, device=device) >= limit, -torch.inf)
    total = torch.where(
        limit < vocab_size, scores.logsumexp(-1, keepdim=True), logits.logsumexp(-1, keepdim=True)
    )
    probabilities = (scores - total).exp()
    before = probabilities.cumsum(-1) - probabilities
    keep = before < _column([p.top_p for p in params], device)
    keep &= probabilities >= probabilities[:, :1] * _column([p.min_p for p in params], device)
    keep[:, 0] = True
    complete = width == vocab_size or not bool((keep[:, -1:] & (limit > width)).any())
    return scores.masked_fill(~keep, -torch.inf), candidates, complete


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)
