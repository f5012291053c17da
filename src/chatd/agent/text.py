"""Clip UTF-8 text without cutting a character in two."""

from __future__ import annotations

import codecs


def clip_utf8(data: bytes, max_bytes: int) -> bytes:
    """The first `max_bytes`, less an incomplete character at the end."""
    clipped = data[:max_bytes]
    return clipped[: len(clipped) - incomplete_bytes(clipped)]


def clip_text(text: str, max_bytes: int) -> str:
    return clip_utf8(text.encode("utf-8", "replace"), max_bytes).decode("utf-8")


def incomplete_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character that is not complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    return len(decoder.getstate()[0])
