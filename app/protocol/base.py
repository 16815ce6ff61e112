"""Fields that both generation endpoints accept."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

INT64_MAX = 2**63 - 1
_MAX_BIASES = 1024

Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is wrong at its first wrong item: to report a hundred thousand would block the server."""

StopString = Annotated[str, Field(min_length=1, max_length=1024)]


def _not_too_many(value: object) -> object:
    """Pydantic itself counts only after it has checked every value."""
    if isinstance(value, dict) and len(value) > _MAX_BIASES:
        raise ValueError(f"at most {_MAX_BIASES} tokens may have a bias")
    return value


LogitBias = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_not_too_many)]


class Body(BaseModel):
    """Base of request bodies: types are not converted, unknown fields are ignored, NaN is refused."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class StreamOptions(Body):
    include_usage: bool | None = None


class GenerationBody(Body):
    """Sampling fields. A field that is absent or null takes the server's default, except that an explicit
    null or empty `stop`, and a null `top_k` or `seed`, switch a server default off."""

    model: Annotated[str, Field(max_length=1024)] | None = Field(None, description="label of the response")
    max_tokens: int | None = Field(None, gt=0, description="maximum new tokens")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT64_MAX, description="0 and -1 keep every token; 1 is greedy")
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-INT64_MAX - 1, le=INT64_MAX)
    stop: StopString | Annotated[Items[StopString], Field(max_length=64)] | None = None
    stop_token_ids: Annotated[Items[int], Field(max_length=256)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128, description="choices for each prompt")
    min_tokens: int | None = Field(None, ge=0, description="tokens before EOS may be sampled")
    ignore_eos: bool | None = None
    repetition_penalty: float | None = Field(None, gt=0, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: LogitBias | None = None
    user: str | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31, description="a lower number is served earlier")

    response_format: dict[str, Any] | None = Field(None, description="only type text is supported")
    structured_outputs: dict[str, Any] | None = Field(None, description="not supported yet")
    logprobs: bool | int | None = Field(None, description="not supported yet")
    prompt_logprobs: int | None = Field(None, description="not supported yet")

    def unsupported(self) -> str | None:
        """Name the field that asks for something this server cannot do yet."""
        if self.response_format is not None and self.response_format.get("type") != "text":
            return "response_format"
        if self.structured_outputs:
            return "structured_outputs"
        if self.logprobs is not None and self.logprobs is not False:
            return "logprobs"
        return "prompt_logprobs" if self.prompt_logprobs is not None else None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> GenerationBody:
        if self.stream_options is not None and self.stream_options.model_fields_set and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


FinishReasonText = Literal["stop", "length", "aborted", "error", "tool_calls"]
