"""A graph that answers from a script: real tokenizer and sessions, but no engine, no model and no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

from deployments.detokenizer import make_decode
from deployments.engine.config import GenerateConfig
from deployments.engine.request import FinishReason, StepOutput
from deployments.session import Session
from deployments.tokenizer import Tokenizer
from deployments.wire import Encoded, GenerateRequest, Prompt, ServedModel, TextChunk


@dataclass(frozen=True)
class Script:
    """What the engine does for one choice: some tokens, then an end.

    By itself the end is EOS, or the token limit where EOS is ignored.
    """

    tokens: Sequence[int]
    tokens_per_step: int = 1
    end: FinishReason | None = None
    raises: Exception | None = None
    hangs: bool = False
    refusal: str | None = None


@dataclass
class ScriptedGraph:
    """Choice i follows script i (they repeat when there are more choices). Records all it is asked."""

    tokenizer: Tokenizer
    scripts: Sequence[Script]
    generation: GenerateConfig | None = None
    ready: bool = True
    encode_error: Exception | None = None
    accept_error: Exception | None = None
    prompts: list[Prompt] = field(default_factory=list)
    requests: list[GenerateRequest] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    unfinished: list[str] = field(default_factory=list)
    """Requests whose caller went away, or that broke, before their end."""
    hung: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def served_model(self) -> ServedModel:
        model: ServedModel = await self.tokenizer.served_model()
        if self.generation is None:
            return model
        return model._replace(info=replace(model.info, generation=self.generation))

    async def is_ready(self) -> bool:
        return self.ready

    async def encode(self, prompt: Prompt) -> Encoded:
        if self.encode_error is not None:
            raise self.encode_error
        self.prompts.append(prompt)
        encoded: Encoded = self.tokenizer.encode_all([prompt])[0]
        return encoded

    async def complete(self, request: GenerateRequest) -> TextChunk:
        with self._open(request, stream=False) as session:
            async for _ in self._run(session):
                pass
            return await session.whole()

    async def stream(self, request: GenerateRequest) -> AsyncIterator[TextChunk]:
        with self._open(request, stream=True) as session:
            async for _ in self._run(session):
                yield await session.next_chunk()

    @contextmanager
    def _open(self, request: GenerateRequest, stream: bool) -> Iterator[Session]:
        if self.accept_error is not None:
            raise self.accept_error
        self.requests.append(request)
        session = Session(request, make_decode(self.tokenizer._tokenizer), stream)
        self.live.add(request.request_id)
        try:
            yield session
        finally:
            self.live.remove(request.request_id)
            if session.finish_reason is None:
                self.unfinished.append(request.request_id)

    async def _run(self, session: Session) -> AsyncIterator[None]:
        """Feed the session step by step until it is finished."""
        request = session.request
        choice = int(request.request_id.rsplit("-", 1)[1])
        script = self.scripts[choice % len(self.scripts)]
        if script.refusal is not None:
            session.refuse(script.refusal)
            yield
            return
        for output in self._outputs(request, script):
            session.receive(output)
            yield
            if session.finish_reason is not None:
                return
            await asyncio.sleep(0)
        if script.raises is not None:
            raise script.raises
        self.hung.put_nowait(request.request_id)
        await asyncio.Event().wait()

    def _outputs(self, request: GenerateRequest, script: Script) -> Iterator[StepOutput]:
        params, eos = request.params, self.tokenizer._tokenizer.eos_token_id
        tokens = iter(script.tokens)
        given = 0
        while step := tuple(islice(tokens, min(script.tokens_per_step, params.max_tokens - given))):
            given += len(step)
            reason = FinishReason.LENGTH if given == params.max_tokens else None
            if step[-1] in params.stop_token_ids:
                reason = FinishReason.STOP
            yield StepOutput(request.request_id, step, reason, 0)
        if script.raises is not None or script.hangs:
            return
        if script.end is not None:
            yield StepOutput(request.request_id, (), script.end, 0)
        elif params.ignore_eos:
            yield StepOutput(request.request_id, (), FinishReason.LENGTH, 0)
        else:
            yield StepOutput(request.request_id, (eos,), FinishReason.STOP, 0)
