"""POST /v1/completions: request body, response, stream events."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from .base import GenerationBody, Items

TokenIds = Annotated[Items[int], Field(min_length=1)]
PromptField = str | TokenIds | Annotated[Items[str] | Items[TokenIds], Field(min_length=1)]


class CompletionBody(GenerationBody):
    prompt: PromptField | None = Field("", description="text, token ids, or a list of either")
    echo: bool | None = Field(None, description="not supported yet")
    suffix: str | None = Field(None, description="not supported")
    best_of: int | None = Field(None, ge=1, description="only 1, or n, is supported")

    def unsupported(self) -> str | None:
        if self.echo:
            return "echo"
        if self.suffix:
            return "suffix"
        if self.best_of not in (None, 1, self.n):
            return "best_of"
        return super().unsupported()

    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one, in the order their choices are numbered."""
        prompt = self.prompt if self.prompt is not None else ""
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [prompt]  # a list of ids is one prompt
        return list(prompt)


def completion_choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": finish_reason}
