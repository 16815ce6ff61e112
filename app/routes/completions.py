"""POST /v1/completions."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from deployments.wire import Prompt

from ..generation import Generation, Generator
from ..protocol.completions import CompletionBody, completion_choice
from ..sse import Events, event_stream
from ..strict_json import JsonResponse, StrictRoute

_KIND = "text_completion"


def completions_router(generator: Generator) -> APIRouter:
    router = APIRouter(route_class=StrictRoute)

    @router.post("/v1/completions", summary="Continue a text")
    async def completions(body: CompletionBody) -> Response:
        ignore_eos = True if generator.dialect.completions_ignore_eos else body.ignore_eos
        prompts = [p if isinstance(p, list) else Prompt(None, p) for p in body.prompts()]
        generation = await generator.prepare(body, prompts, body.max_tokens, ignore_eos, "cmpl-")
        if body.stream:
            return await event_stream(_events(generation))
        return JsonResponse(await _whole(generation))

    return router


async def _whole(generation: Generation) -> dict[str, Any]:
    chunks = await generation.complete()
    choices = [completion_choice(i, chunk.text, chunk.finish_reason) for i, chunk in enumerate(chunks)]
    usage = generation.usage(sum(chunk.num_tokens for chunk in chunks))
    return {**generation.envelope(_KIND), "choices": choices, "usage": usage}


async def _events(generation: Generation) -> Events:
    envelope = generation.envelope(_KIND)
    num_tokens = 0
    async with aclosing(generation.stream()) as chunks:
        async for index, chunk in chunks:
            num_tokens += chunk.num_tokens
            yield {**envelope, "choices": [completion_choice(index, chunk.text, chunk.finish_reason)]}
    if generation.usage_ends_stream:
        yield {**envelope, "choices": [], "usage": generation.usage(num_tokens)}
