"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from deployments.wire import Prompt, TextChunk

from ..dialects import Dialect
from ..errors import InvalidRequest
from ..generation import Generation, Generator
from ..protocol.chat import ChatBody, chat_choice, delta_choice
from ..sse import Events, event_stream
from ..strict_json import JsonResponse, StrictRoute

_RESERVED_TEMPLATE_KWARGS = {
    "tools",
    "messages",
    "conversation",
    "tokenize",
    "add_generation_prompt",
    "chat_template",
}


def chat_router(generator: Generator) -> APIRouter:
    router = APIRouter(route_class=StrictRoute)
    dialect = generator.dialect

    @router.post("/v1/chat/completions", summary="Answer a conversation")
    async def chat_completions(body: ChatBody) -> Response:
        prompt = _prompt(body, dialect)
        generation = await generator.prepare(
            body, [prompt], body.token_limit, body.ignore_eos, dialect.chat_id_prefix
        )
        if body.stream:
            return await event_stream(_events(generation, dialect))
        return JsonResponse(await _whole(generation))

    return router


def _prompt(body: ChatBody, dialect: Dialect) -> Prompt:
    """The conversation, or the raw prompt that stands in for it."""
    if body.prompt is not None and not dialect.prompt_on_chat:
        raise InvalidRequest("prompt is not supported on this route, use messages", param="prompt")
    if body.messages:
        return Prompt([m.for_template() for m in body.messages], None, _template_kwargs(body), False)
    if body.prompt is not None:
        return Prompt(None, body.prompt)
    alternative = " or prompt" if dialect.prompt_on_chat else ""
    raise InvalidRequest(f"messages{alternative} must be given and not be empty", param="messages")


def _template_kwargs(body: ChatBody) -> dict[str, Any] | None:
    kwargs = body.chat_template_kwargs
    if kwargs is None:
        return None
    if reserved := _RESERVED_TEMPLATE_KWARGS & kwargs.keys():
        raise InvalidRequest(
            f"chat_template_kwargs may not set {sorted(reserved)[0]}", param="chat_template_kwargs"
        )
    return kwargs


async def _whole(generation: Generation) -> dict[str, Any]:
    chunks = await generation.complete()
    choices = [chat_choice(i, chunk.text, chunk.finish_reason) for i, chunk in enumerate(chunks)]
    usage = generation.usage(sum(chunk.num_tokens for chunk in chunks))
    return {**generation.envelope("chat.completion"), "choices": choices, "usage": usage}


async def _events(generation: Generation, dialect: Dialect) -> Events:
    envelope = generation.envelope(dialect.chat_chunk_object)
    num_tokens = 0
    begun: set[int] = set()
    deltas = _with_role if dialect.role_on_every_delta else _role_first
    async with aclosing(generation.stream()) as chunks:
        async for index, chunk in chunks:
            num_tokens += chunk.num_tokens
            for choice in deltas(index, chunk, begun):
                yield {**envelope, "choices": [choice]}
    if generation.usage_ends_stream:
        yield {**envelope, "choices": [], "usage": generation.usage(num_tokens)}


def _with_role(index: int, chunk: TextChunk, _begun: set[int]) -> Iterator[dict[str, Any]]:
    yield delta_choice(index, {"role": "assistant", "content": chunk.text}, chunk.finish_reason)


def _role_first(index: int, chunk: TextChunk, begun: set[int]) -> Iterator[dict[str, Any]]:
    """A delta with the role alone, deltas with text alone, an empty one with the finish reason."""
    if index not in begun:
        begun.add(index)
        yield delta_choice(index, {"role": "assistant"}, None)
    if chunk.text:
        yield delta_choice(index, {"content": chunk.text}, None)
    if chunk.finish_reason is not None:
        yield delta_choice(index, {}, chunk.finish_reason)
