"""Finds stop strings in streamed text, wherever its chunks are cut."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on until a stop string is complete; the stop string and what follows are dropped.

    Text that may be the beginning of a stop string is held back. Where several fit, the one that is
    complete first wins, so the result does not depend on how the text was cut into chunks.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be sent now, and whether a stop string was found."""
        if not self._stops:
            return text, False
        buffer = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := buffer.find(stop)) >= 0]
        if matches:
            self._held = ""
            return buffer[: min(matches)[1]], True
        cut = len(buffer) - max(_overlap(buffer, stop) for stop in self._stops)
        self._held = buffer[cut:]
        return buffer[:cut], False

    def flush(self) -> str:
        """What was held back, once no more text will come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
