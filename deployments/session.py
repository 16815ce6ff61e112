"""One request inside a replica: tokens come in from the engine, text goes out to the caller."""

from __future__ import annotations

import asyncio

from .detokenizer import Decode, Detokenizer
from .engine.request import FinishReason, StepOutput
from .stop_strings import StopStrings
from .wire import GenerateRequest, TextChunk


class Session:
    """Mailbox between the engine's outputs and one caller, both on the replica's event loop.

    Everything that arrives before the caller looks again leaves as one chunk.
    """

    def __init__(self, request: GenerateRequest, decode: Decode, stream: bool) -> None:
        self.request = request
        self.closed = False
        self.finish_reason: FinishReason | None = None
        self._detokenizer = Detokenizer(decode, request.prompt_ids)
        self._stops = StopStrings(request.stop)
        self._min_tokens = request.params.min_tokens
        self._ready = asyncio.Event()
        self._text: list[str] = []
        self._num_tokens = 0
        self._num_unread = 0
        self._num_cached = 0
        self._refusal: str | None = None
        # Nobody looks at the text before the end unless it is streamed or may hold a stop string.
        self._decode_at_end = not stream and not request.stop
        self._undecoded: list[int] = []

    def receive(self, output: StepOutput) -> bool:
        """Take a step's output; True if a stop string ended the request, so that the engine must stop."""
        if self.finish_reason is not None:
            return False
        self._num_tokens += len(output.token_ids)
        self._num_unread += len(output.token_ids)
        self._num_cached = output.num_cached
        # The token that ended the request (EOS or a stop id) is counted but has no text.
        visible = output.token_ids[:-1] if output.finish_reason is FinishReason.STOP else output.token_ids
        self._undecoded.extend(visible)
        if self._decode_at_end and output.finish_reason is None:
            return False
        stopped = self._append(self._decode_new())
        self.finish_reason = FinishReason.STOP if stopped else output.finish_reason
        if self.finish_reason is not None and not stopped:
            self._text.append(self._stops.flush())
        self._ready.set()
        return stopped and output.finish_reason is None

    def refuse(self, reason: str) -> None:
        self._refusal = reason
        self.finish_reason = FinishReason.ERROR
        self._ready.set()

    async def next_chunk(self) -> TextChunk:
        """Everything since the last call, as soon as there is anything."""
        await self._ready.wait()
        self._ready.clear()
        return self._take()

    async def whole(self) -> TextChunk:
        """The finished request as one chunk."""
        while self.finish_reason is None:
            await self._ready.wait()
            self._ready.clear()
        return self._take()

    def _decode_new(self) -> str:
        token_ids, self._undecoded = self._undecoded, []
        return self._detokenizer.push(token_ids) if token_ids else ""

    def _append(self, text: str) -> bool:
        """Pass text through the stop strings, which do not end a request before its `min_tokens`."""
        if self._num_tokens < self._min_tokens:
            self._text.append(text)
            return False
        text, stopped = self._stops.push(text)
        self._text.append(text)
        return stopped

    def _take(self) -> TextChunk:
        text, self._text = "".join(self._text), []
        num_tokens, self._num_unread = self._num_unread, 0
        reason = self.finish_reason
        return TextChunk(text, num_tokens, reason and reason.value, self._num_cached, self._refusal)
