"""Token ids to text, piece by piece, so that the pieces joined are what decoding at once would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Decode = Callable[[list[int]], str]

_CONTEXT_TOKENS = 10
"""Prompt tokens decoded in front of the output, since a decoder may treat the first token specially.

Enough for one whole character between two that are cut, where each byte is a token."""
_MAX_PARTIAL = 3
"""A character of UTF-8 has at most four bytes, so at most three are waiting for the last one."""
_MAX_PENDING = 32
"""Tokens held back or not final before a sequence of broken bytes is taken as it is."""
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
    """Incremental decoder of one sequence; its text does not depend on how the tokens are grouped.

    Decodes a short window of ids and returns what is new in it. Bytes that may still become a character
    are held back; they show up as replacement characters at the window's end. A character that the
    sequence's end cuts off is left out.
    """

    _sent: str

    def __init__(self, decode: Decode, prompt_ids: Sequence[int]) -> None:
        self._decode = decode
        context, pending = _whole_characters(decode, prompt_ids[-_CONTEXT_TOKENS:])
        self._start_window(context, self._decode(list(context)))
        self._window.extend(pending)

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that became final with these tokens."""
        if len(token_ids) > 1:
            window = [*self._window, *token_ids]
            text = self._decode(window)
            if _REPLACEMENT not in text and text.startswith(self._sent):
                new = text[len(self._sent) :]
                self._move_on(window[self._num_context :])
                return new
        return "".join([self._push_one(token) for token in token_ids])

    def _push_one(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        stable = _without_partial_character(text)
        pending = self._window[self._num_context :]
        complete = len(stable) == len(text) or len(pending) > _MAX_PENDING
        if stable.startswith(self._sent):
            new = stable[len(self._sent) :]
            self._sent = stable
        elif complete:
            new = self._decode(pending)  # bytes that became no character make the context's look broken too
        else:
            return ""  # some decoders show a whole run of bytes as broken until its last character is there
        if complete:
            self._move_on(pending)
        return new

    def _move_on(self, tokens: list[int]) -> None:
        """Begin anew behind tokens that are sent: they are context enough for the next, if they show."""
        if text := self._decode(tokens):
            self._start_window(tokens, text)
        else:  # special tokens; behind them alone the next would be decoded like a text's first
            del self._window[self._num_context :]

    def _start_window(self, context: Sequence[int], text: str) -> None:
        self._window = list(context)
        self._num_context = len(self._window)
        self._sent = _without_partial_character(text)


def _whole_characters(decode: Decode, tail: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Split a prompt's last tokens into whole characters and the beginning of one that is still open.

    The rest of a character that was cut in front is dropped.
    """
    for end in range(len(tail), max(-1, len(tail) - _MAX_PARTIAL - 1), -1):
        for start in range(min(_MAX_PARTIAL, end) + 1):
            if _REPLACEMENT not in decode(list(tail[start:end])) and (start < end or end == 0):
                return tail[start:end], tail[end:]
    return tail, ()


def _without_partial_character(text: str) -> str:
    end = len(text)
    while end and len(text) - end < _MAX_PARTIAL and text[end - 1] == _REPLACEMENT:
        end -= 1
    return text[:end]
