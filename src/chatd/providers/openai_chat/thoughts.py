"""Thoughts out of an answer's text, as Gemini's compatible endpoints mix them in.

They are marked piece by piece, and mostly stand between tags as well: the
closing one comes at the head of the answer proper, and either may be cut in two.
"""

from typing import Final

OPEN: Final = "<thought>"
CLOSE: Final = "</thought>"


class ThoughtSplitter:
    """`feed` returns pieces: whether it is thought, and the text. `flush` what was held back."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False
        self._inside = False
        self._tagged = False

    def feed(self, text: str, *, marked: bool) -> list[tuple[bool, str]]:
        text = self._held + text
        self._held = ""
        if not self._inside and (marked or not self._begun):
            text = self._opened(text, marked=marked)
        if not text:
            return []
        self._begun = True
        if not self._inside:
            return [(False, text)]
        if not marked and not self._tagged:
            self._inside = False
            return [(False, text)]
        return self._closed(text)

    def flush(self) -> list[tuple[bool, str]]:
        held, self._held = self._held, ""
        return [(self._inside, held)] if held else []

    def _opened(self, text: str, *, marked: bool) -> str:
        """Past the opening tag, if it is there; nothing, if it may yet be."""
        if text.startswith(OPEN):
            self._inside = self._tagged = True
            return text[len(OPEN) :]
        if OPEN.startswith(text):
            self._held = text
            return ""
        if marked:
            self._inside, self._tagged = True, False
        return text

    def _closed(self, text: str) -> list[tuple[bool, str]]:
        thought, tag, rest = text.partition(CLOSE)
        if not tag:
            cut = next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
            self._held = text[len(text) - cut :]
            thought = text[: len(text) - cut]
        else:
            self._inside = self._tagged = False
        return [piece for piece in ((True, thought), (False, rest)) if piece[1]]
