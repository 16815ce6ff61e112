"""POST /v1/chat/completions: request body, response, stream events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .base import Body, GenerationBody, Items


class TextPart(Body):
    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _no_other_kind(cls, part: Any) -> Any:
        """Name what was sent; pydantic itself would only say what it expected."""
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"content of type '{kind[:32]}' is not supported, only text")
        return part


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[Items[TextPart], Field(min_length=1)] | None = None
    reasoning: str | None = None
    tool_calls: Items[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _content_where_required(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"content is required in a message of role {self.role}")
        return self

    def for_template(self) -> dict[str, Any]:
        """What the chat template gets: text parts joined by line breaks, `developer` as `system`."""
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": content, **({"name": self.name} if self.name else {})}


class ChatBody(GenerationBody):
    messages: Items[Message] | None = Field(None, description="chat history; required unless prompt is given")
    prompt: str | None = Field(None, description="raw text, used when there are no messages")
    max_completion_tokens: int | None = Field(None, gt=0, description="takes precedence over max_tokens")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = True
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Items[dict[str, Any]] | None = Field(None, description="not supported yet")
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    top_logprobs: int | None = Field(None, description="not supported yet")

    def unsupported(self) -> str | None:
        if self.tools:
            return "tools"
        if self.tool_choice not in (None, "none", "auto"):
            return "tool_choice"
        if any(message.tool_calls or message.role in ("tool", "function") for message in self.messages or ()):
            return "tool_calls"
        if self.reasoning_effort not in (None, "none"):
            return "reasoning_effort"
        if self.top_logprobs is not None:
            return "top_logprobs"
        return super().unsupported()

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


def chat_choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"index": index, "message": message, "finish_reason": finish_reason}


def delta_choice(index: int, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish_reason}
