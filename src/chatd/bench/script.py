"""What the fake provider is asked to say, and what it says: words that can be counted.

A wish is the text of a message, so that it passes through any server unchanged.
"""

import re
from typing import Final

from msgspec import Struct

MARK: Final = b" tok"
"""Begins every token, and nothing else on any wire."""

_WISH: Final = re.compile(r"say (\d+) tokens(?: at (\d+)/s)?(?: after (\d+) calls)?")


class Wish(Struct, frozen=True, kw_only=True):
    """`per_s` 0 is as fast as it can; `calls` are rounds of a tool before the answer."""

    tokens: int
    per_s: int = 0
    calls: int = 0

    def __str__(self) -> str:
        pace = f" at {self.per_s}/s" if self.per_s else ""
        calls = f" after {self.calls} calls" if self.calls else ""
        return f"say {self.tokens} tokens{pace}{calls}"


def read_wish(text: str) -> Wish:
    """A text that is no wish gets a short answer: the server may ask things of its own."""
    found = _WISH.search(text)
    if found is None:
        return Wish(tokens=1)
    tokens, per_s, calls = (int(number or 0) for number in found.groups())
    return Wish(tokens=tokens, per_s=per_s, calls=calls)


def token(number: int) -> str:
    return f" tok{number % 10_000:04d}"


def answer(tokens: int) -> str:
    return "".join(map(token, range(tokens)))
