"""Turns a validated body into the engine's requests, and carries what its responses have in common."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from deployments.wire import GenerateRequest, Prompt, ServedModel, TextChunk

from .choices import Indexed, complete_all, stream_all
from .config import ApiConfig
from .dialects import DIALECTS, Dialect
from .errors import InvalidRequest, ModelNotFound
from .graph import Graph
from .params import Sampling, cap_to_context, resolve_sampling
from .protocol.base import GenerationBody

PromptInput = Prompt | list[int]


@dataclass(frozen=True, slots=True)
class Generation:
    """One HTTP request's choices, ready to run."""

    id: str
    created: int
    model: str
    num_prompt_tokens: int
    usage_ends_stream: bool
    requests: Sequence[GenerateRequest]
    graph: Graph

    def envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    async def complete(self) -> list[TextChunk]:
        return await complete_all(self.graph, self.requests)

    def stream(self) -> AsyncGenerator[Indexed, None]:
        return stream_all(self.graph, self.requests)

    def usage(self, num_completion_tokens: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + num_completion_tokens,
        }


class Generator:
    """Prepares generations: model name, sampling parameters, prompts, limits, in this order.

    All refusals happen here, before a response begins.
    """

    def __init__(self, graph: Graph, api: ApiConfig) -> None:
        self.graph = graph
        self.api = api
        self.dialect: Dialect = DIALECTS[api.dialect]

    async def prepare(
        self,
        body: GenerationBody,
        prompts: Sequence[PromptInput],
        max_tokens: int | None,
        ignore_eos: bool | None,
        id_prefix: str,
    ) -> Generation:
        """Raises InvalidRequest naming the field, or whatever the graph raises."""
        model = await self.graph.served_model()
        if field := body.unsupported():
            raise InvalidRequest(f"{field} is not supported by this server", param=field)
        sampling = resolve_sampling(body, max_tokens, ignore_eos, self.dialect, model.info)
        num_choices = body.n or 1
        if len(prompts) * num_choices > self.api.max_choices:
            raise InvalidRequest(
                f"{len(prompts)} prompts times n={num_choices} is more than {self.api.max_choices} choices",
                param="n",
            )
        encoded = await asyncio.gather(*(self._encode(prompt, model) for prompt in prompts))
        request_id = id_prefix + uuid.uuid4().hex
        return Generation(
            id=request_id,
            created=int(time.time()),
            model=self._label(body.model, model),
            num_prompt_tokens=sum(map(len, encoded)),
            usage_ends_stream=self._usage_ends_stream(body),
            requests=_choice_requests(request_id, body, sampling, encoded, num_choices, model),
            graph=self.graph,
        )

    async def _encode(self, prompt: PromptInput, model: ServedModel) -> list[int]:
        if isinstance(prompt, list):
            for token in (min(prompt), max(prompt)):
                if not 0 <= token < model.info.vocab_size:
                    raise InvalidRequest(
                        f"prompt: {token} is not a token id from 0 to {model.info.vocab_size - 1}",
                        param="prompt",
                    )
            return prompt
        encoded = await self.graph.encode(prompt)
        if encoded.refusal is not None:
            raise InvalidRequest(encoded.refusal, param="prompt" if prompt.messages is None else "messages")
        return encoded.token_ids

    def _label(self, requested: str | None, model: ServedModel) -> str:
        served = model.info.served_name
        if self.dialect.checks_model and requested is not None and requested != served:
            raise ModelNotFound(requested)
        return requested or served

    def _usage_ends_stream(self, body: GenerationBody) -> bool:
        asked = body.stream_options.include_usage if body.stream_options else None
        return self.dialect.usage_ends_stream if asked is None else asked


def _choice_requests(
    request_id: str,
    body: GenerationBody,
    sampling: Sampling,
    encoded: Sequence[list[int]],
    num_choices: int,
    model: ServedModel,
) -> list[GenerateRequest]:
    """Choices in the API's order: all of the first prompt, then all of the second."""
    requests: list[GenerateRequest] = []
    for prompt_ids in encoded:
        params = cap_to_context(sampling.params, len(prompt_ids), model.max_model_len)
        for seed in islice(sampling.seeds(), num_choices):
            choice_id = f"{request_id}-{len(requests)}"
            requests.append(
                GenerateRequest(choice_id, prompt_ids, params, seed, sampling.stop, body.priority or 0)
            )
    return requests
