"""Tokenizer: receives prompts, returns token ids. CPU only, scales out by itself.

Calls that arrive together are rendered and encoded as one batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ray import serve

from .batching import Sized, sized, total_tokens
from .config import TokenizerConfig
from .detokenizer import make_decode
from .engine.config import EngineConfig, ModelConfig
from .engine.model_info import resolve_max_model_len
from .wire import Encoded, Prompt, ServedModel

logger = logging.getLogger("ray.serve")

_INLINE_CHARACTERS = 20_000
"""Shorter batches are encoded on the event loop: a hop to a thread would take longer than the work."""
_CHARACTERS_PER_TOKEN = 4


class Tokenizer:
    def __init__(self, model: ModelConfig, engine: EngineConfig, config: TokenizerConfig) -> None:
        from .engine.loader import describe, load_tokenizer  # slow, and the builder needs only the class

        self._tokenizer = load_tokenizer(model)
        self._decode = make_decode(self._tokenizer)
        self._info = describe(model, self._tokenizer)
        self._max_model_len = resolve_max_model_len(engine, self._info.max_position_embeddings)
        vocabulary = self._tokenizer.get_vocab()
        self._longest_token = max(map(len, vocabulary))
        self._max_batch_tokens = config.max_batch_tokens
        self._encode_batch.set_max_batch_size(config.max_batch_tokens)
        self._encode_batch.set_batch_wait_timeout_s(config.batch_wait_timeout_s)

    async def served_model(self) -> ServedModel:
        return ServedModel(self._info, self._max_model_len)

    async def encode(self, prompt: Prompt) -> Encoded:
        estimate = _num_characters(prompt) // _CHARACTERS_PER_TOKEN
        encoded: Encoded = await self._encode_batch(sized(prompt, estimate, self._max_batch_tokens))
        return encoded

    async def check_health(self) -> None:
        if not await self._encode_batch._is_batching_task_alive():
            raise RuntimeError("the batching task of encode is dead")

    @serve.batch(batch_wait_timeout_s=0, max_concurrent_batches=2, batch_size_fn=total_tokens)
    async def _encode_batch(self, items: list[Sized[Prompt]]) -> list[Encoded]:
        prompts = [item.item for item in items]
        if sum(map(_num_characters, prompts)) <= _INLINE_CHARACTERS:
            return self.encode_all(prompts)
        return await asyncio.to_thread(self.encode_all, prompts)

    def encode_all(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        """Encode a batch; a prompt that cannot be encoded does not harm the others."""
        results = [self._render(prompt) for prompt in prompts]
        for special in (True, False):
            members = [i for i, prompt in enumerate(prompts) if prompt.add_special_tokens is special]
            texts = {i: text for i in members if isinstance(text := results[i], str)}
            if texts:
                encoded = self._tokenizer(list(texts.values()), add_special_tokens=special)["input_ids"]
                for i, ids in zip(texts, encoded, strict=True):
                    results[i] = self._finish(ids)
        return [result for result in results if isinstance(result, Encoded)]

    def _render(self, prompt: Prompt) -> str | Encoded:
        """The prompt's text, or the refusal of a prompt that cannot be rendered or must be too long."""
        text = prompt.text
        if text is None:
            try:
                text = self._apply_template(prompt)
            except Exception as error:
                return Encoded([], f"the chat template refused the messages: {_one_line(error)}")
        if len(text) > self._longest_token * self._max_model_len:
            return Encoded(
                [],
                f"the prompt has {len(text)} characters, at least {len(text) // self._longest_token} tokens, "
                f"but the maximum context length is {self._max_model_len} tokens",
            )
        return text

    def _apply_template(self, prompt: Prompt) -> str:
        if not self._tokenizer.chat_template:
            raise ValueError(
                "this model has no chat template; use /v1/completions or set model.chat_template"
            )
        rendered: str = self._tokenizer.apply_chat_template(
            prompt.messages, tokenize=False, add_generation_prompt=True, **(prompt.template_kwargs or {})
        )
        return rendered

    def _finish(self, token_ids: list[int]) -> Encoded:
        """An empty prompt becomes the model's first token, if it has one."""
        if token_ids:
            return Encoded(token_ids)
        if self._info.bos_token_id is None:
            return Encoded([], "the prompt is empty and this model has no token to begin with")
        return Encoded([self._info.bos_token_id])


def _num_characters(prompt: Prompt) -> int:
    return len(prompt.text or "") + sum(map(_content_length, prompt.messages or ()))


def _content_length(message: dict[str, Any]) -> int:
    content = message.get("content")
    return len(content) if isinstance(content, str) else 0


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
