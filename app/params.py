"""From a request's fields, the dialect's defaults and the server's to the engine's SamplingParams."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from deployments.engine.model_info import ModelInfo
from deployments.engine.request import SamplingParams

from .dialects import Dialect
from .errors import InvalidRequest
from .protocol.base import GenerationBody

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Sampling:
    """A request's sampling parameters, its stop strings and the seed of its first choice."""

    params: SamplingParams
    stop: tuple[str, ...]
    seed: int | None

    def seeds(self) -> Iterator[int]:
        """A seed for each choice: numbered from the request's, or fresh ones."""
        choice = 0
        while True:
            yield self.seed + choice if self.seed is not None else secrets.randbits(63)
            choice += 1


def resolve_sampling(
    body: GenerationBody, max_tokens: int | None, ignore_eos: bool | None, dialect: Dialect, model: ModelInfo
) -> Sampling:
    """Request before dialect before server. Raises InvalidRequest naming the field."""
    defaults = model.generation
    given = body.model_fields_set
    limit = _first(max_tokens, dialect.default_max_tokens, defaults.max_new_tokens, 256)
    params = SamplingParams(
        max_tokens=limit,
        min_tokens=_min_tokens(body, limit),
        temperature=_first(body.temperature, dialect.default_temperature, defaults.temperature, 0.0),
        top_p=_first(body.top_p, defaults.top_p, 1.0),
        top_k=max(0, (body.top_k if "top_k" in given else defaults.top_k) or 0),
        min_p=_first(body.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body, model.vocab_size),
        ignore_eos=_first(ignore_eos, defaults.ignore_eos, False),
        stop_token_ids=_stop_token_ids(body, model.vocab_size),
    )
    stop = body.stop_strings if "stop" in given else tuple(defaults.stop or ())
    return Sampling(params, stop, body.seed if "seed" in given else defaults.seed)


def cap_to_context(params: SamplingParams, prompt_len: int, max_model_len: int) -> SamplingParams:
    """Lower `max_tokens` to the room left. Raises InvalidRequest if there is none for a single token."""
    room = max_model_len - prompt_len
    if room < 1:
        raise InvalidRequest(
            f"The prompt has {prompt_len} tokens, but this model's maximum context length is {max_model_len} "
            "tokens and at least one is needed for the output",
            code="context_length_exceeded",
        )
    if params.max_tokens <= room:
        return params
    return replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))


def _min_tokens(body: GenerationBody, max_tokens: int) -> int:
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens ({min_tokens}) is above the maximum of {max_tokens} tokens", param="min_tokens"
        )
    return min_tokens


def _logit_bias(body: GenerationBody, vocab_size: int) -> tuple[tuple[int, float], ...]:
    bias = []
    for key, value in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit()) or not _in_vocabulary(key, vocab_size):
            raise InvalidRequest(
                f"logit_bias: '{key[:32]}' is not a token id from 0 to {vocab_size - 1}", param="logit_bias"
            )
        bias.append((int(key), value))
    return tuple(bias)


def _in_vocabulary(digits: str, vocab_size: int) -> bool:
    return len(digits) < 12 and int(digits) < vocab_size


def _stop_token_ids(body: GenerationBody, vocab_size: int) -> tuple[int, ...]:
    ids = tuple(body.stop_token_ids or ())
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"stop_token_ids: {token} is not a token id from 0 to {vocab_size - 1}",
                param="stop_token_ids",
            )
    return ids


def _first(*values: Value | None) -> Value:
    """The first value that is given; the last one always is."""
    return next(value for value in values if value is not None)
