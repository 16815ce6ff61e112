"""Token ids to text, piece by piece, so that the pieces joined are what decoding at once would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

Decode = Callable[[list[int]], str]

_CONTEXT_TOKENS = 6
"""Prompt tokens decoded in front of the output, since a decoder may treat the first token specially."""
_MAX_PARTIAL = 3
"""A character of UTF-8 has at most four bytes, so at most three are waiting for the last one."""
_REPLACEMENT = "\ufffd"


def make_decode(tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool = True) -> Decode:
    """The tokenizer's decode function without clean-up, taken from the Rust backend where there is one."""
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        return lambda ids: backend.decode(ids, skip_special_tokens=skip_special_tokens)
    return lambda ids: tokenizer.decode(
        ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )


class Detokenizer:
    """Incremental decoder of one sequence.

    Decodes a short window of ids and returns what is new in it. Bytes that may still become a character
    are held back; they show up as replacement characters at the window's end. A character that the
    sequence's end cuts off is left out.
    """

    def __init__(self, decode: Decode, prompt_ids: Sequence[int]) -> None:
        self._decode = decode
        self._window = list(prompt_ids[-_CONTEXT_TOKENS:])
        self._num_context = len(self._window)
        self._sent = _without_partial_character(decode(self._window))

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that became final with these tokens."""
        self._window.extend(token_ids)
        text = self._decode(self._window)
        stable = _without_partial_character(text)
        complete = len(stable) == len(text)
        if not complete and not stable.startswith(self._sent):
            return ""  # the decoder shows a whole run of bytes as invalid until its last character is there
        new = stable[len(self._sent) :]
        self._sent = stable
        if complete:
            self._slide_window()
        return new

    def _slide_window(self) -> None:
        """Keep only the tokens since the last complete text: they are context enough for the next."""
        self._window = self._window[self._num_context :] or self._window
        self._num_context = len(self._window)
        self._sent = self._decode(self._window)


def _without_partial_character(text: str) -> str:
    end = len(text)
    while end and len(text) - end < _MAX_PARTIAL and text[end - 1] == _REPLACEMENT:
        end -= 1
    return text[:end]
