"""The engine's vocabulary: what is asked for, how far it has come, and what one step gave it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"


class RequestRefused(ValueError):
    """The engine cannot serve this request; the text tells the client why."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the tokens of one request. Ranges are validated where requests enter the system."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5 or self.top_k == 1


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way through the engine.

    Invariant: `num_computed` (positions whose keys and values are in the cache) < `len(token_ids)`
    (prompt and output so far) <= `max_len`. The engine thread alone changes a request once submitted.
    """

    request_id: str
    prompt_len: int
    token_ids: list[int]
    params: SamplingParams
    seed: int
    max_len: int
    priority: int = 0
    arrival: int = 0
    num_computed: int = 0
    num_cached: int = 0
    """Prompt tokens that the prefix cache supplied when the request was first admitted."""
    num_preemptions: int = 0
    block_ids: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not yet computed: 1 while decoding, more while prefilling."""
        return len(self.token_ids) - self.num_computed

    @property
    def order(self) -> tuple[int, int]:
        """First come, first served within a priority; a lower number is served earlier."""
        return (self.priority, self.arrival)


class StepOutput(NamedTuple):
    """What one step, or the end of a request, has to tell the request's owner."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    num_cached: int
    error: str | None = None


class ScheduledChunk(NamedTuple):
    """The next `num_tokens` pending tokens of a request, to be computed in this step."""

    request: Request
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the chunk reaches the request's last token, so that the step yields a new one."""
        return self.num_tokens == self.request.num_pending
