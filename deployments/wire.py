"""What the deployments send each other: small tuples, cheap to pickle, no pydantic on the hot path."""

from __future__ import annotations

from typing import Any, NamedTuple

from .engine.model_info import ModelInfo
from .engine.request import SamplingParams


class Prompt(NamedTuple):
    """One prompt to encode: chat messages for the template, or raw text."""

    messages: list[dict[str, Any]] | None
    text: str | None = None
    template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool = True


class Encoded(NamedTuple):
    """Token ids, or the text that tells the client why its prompt could not be encoded."""

    token_ids: list[int]
    refusal: str | None = None


class GenerateRequest(NamedTuple):
    """One choice to generate."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    stop: tuple[str, ...] = ()
    priority: int = 0


class TextChunk(NamedTuple):
    """Text that became final since the last chunk, and how many tokens were generated for it.

    The last chunk of a request, and only that, has a finish reason. `refusal` comes with the reason
    `error` and tells what was wrong with the request; without it the server is to blame.
    """

    text: str
    num_tokens: int
    finish_reason: str | None = None
    num_cached: int = 0
    refusal: str | None = None


class ServedModel(NamedTuple):
    """The model behind the graph, and the longest prompt and output together that the engine accepts."""

    info: ModelInfo
    max_model_len: int
