"""What the routes need of the graph: encode prompts, generate choices, describe the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Protocol

from deployments.engine.request import FinishReason
from deployments.wire import Encoded, GenerateRequest, Prompt, TextChunk

from .dialects import Dialect
from .errors import InvalidRequest, ServerError
from .params import ServerDefaults


class Graph(Protocol):
    """The deployments behind the ingress. Raises ApiError for what they refuse or cannot do."""

    async def encode(self, prompt: Prompt) -> Encoded: ...

    async def complete(self, request: GenerateRequest) -> TextChunk: ...

    def stream(self, request: GenerateRequest) -> AsyncIterator[TextChunk]: ...

    async def is_ready(self) -> bool: ...

    async def served_model(self) -> ServedModel: ...


class ServedModel(Protocol):
    @property
    def name(self) -> str: ...
