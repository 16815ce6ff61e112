"""Where the two API documents and OpenAI's differ; everything else is the same in every dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DialectName = Literal["pypto-serving", "mini-sglang", "openai"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """`None` as a default means: the server's generation config decides."""

    name: DialectName
    default_max_tokens: int | None
    default_temperature: float | None
    usage_ends_stream: bool
    """Whether a stream ends with a usage event when the request does not say."""
    chat_chunk_object: str
    chat_id_prefix: str
    role_on_every_delta: bool
    prompt_on_chat: bool
    completions_ignore_eos: bool
    openai_errors: bool
    """400 and OpenAI's error object; otherwise the framework's 422, and `{"object": "error"}` on refusal."""
    checks_model: bool
    """Whether a `model` that is not served is a 404; otherwise it is only a label."""


DIALECTS: dict[DialectName, Dialect] = {
    "pypto-serving": Dialect(
        name="pypto-serving",
        default_max_tokens=None,
        default_temperature=None,
        usage_ends_stream=True,
        chat_chunk_object="chat.completion.chunk",
        chat_id_prefix="chatcmpl-",
        role_on_every_delta=True,
        prompt_on_chat=True,
        completions_ignore_eos=True,
        openai_errors=False,
        checks_model=False,
    ),
    "mini-sglang": Dialect(
        name="mini-sglang",
        default_max_tokens=16,
        default_temperature=1.0,
        usage_ends_stream=False,
        chat_chunk_object="text_completion.chunk",
        chat_id_prefix="cmpl-",
        role_on_every_delta=False,
        prompt_on_chat=True,
        completions_ignore_eos=False,
        openai_errors=False,
        checks_model=False,
    ),
    "openai": Dialect(
        name="openai",
        default_max_tokens=None,
        default_temperature=1.0,
        usage_ends_stream=False,
        chat_chunk_object="chat.completion.chunk",
        chat_id_prefix="chatcmpl-",
        role_on_every_delta=False,
        prompt_on_chat=False,
        completions_ignore_eos=False,
        openai_errors=True,
        checks_model=True,
    ),
}
