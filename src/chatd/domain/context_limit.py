"""The size of a model's context, as far as a provider tells it with an answer.

Vendors and gateways put it anywhere, under many names, so the names are what is recognized:
a few exact ones, and any that says in words that it is a limit of the context.
"""

import re
from typing import Final

import msgspec

from chatd.domain.heal import parse
from chatd.domain.parts import Json

LARGEST: Final = 1_000_000_000
"""A number beyond it is something else: no model has such a context."""

_EXACT: Final = frozenset(
    {
        "contextlimit",
        "contextwindow",
        "contextlength",
        "maxcontext",
        "maxcontexttokens",
        "maxinputtokens",
        "maxinputtoken",
        "inputtokenlimit",
    }
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SIZES: Final = (
    frozenset({"limit"}),
    frozenset({"window", "size"}),
    frozenset({"window", "max"}),
    frozenset({"length", "max"}),
    frozenset({"token", "max"}),
    frozenset({"tokens", "max"}),
    frozenset({"token", "limit"}),
    frozenset({"tokens", "limit"}),
)
# Not how large it is, but what became of it.
_OTHER: Final = frozenset({"used", "usage", "remaining", "left", "exceeded", "version"})


def effective_limit(metadata: Json, configured: int | None) -> int | None:
    """What the provider said, else what is configured, else nothing."""
    found = reported_limit(metadata)
    if found is not None:
        return found
    return configured if configured is not None and configured > 0 else None


def reported_limit(metadata: Json) -> int | None:
    """The largest number under any name that means the context's size."""
    found = 0
    left: list[object] = [parse(metadata)]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left.extend(msgspec.convert(value, list[object]))
        elif isinstance(value, dict):
            for key, item in msgspec.convert(value, dict[str, object]).items():
                left.append(item)
                if _means_limit(key):
                    found = max(found, _number(item))
    return found or None


def _means_limit(key: str) -> bool:
    if re.sub(r"[^a-z0-9]", "", key.lower()) in _EXACT:
        return True
    words = {word.lower() for word in _WORD.findall(key)}
    sized = any(size <= words for size in _SIZES)
    return "context" in words and sized and not words & _OTHER


def _number(value: object) -> int:
    """0 for what is no size: not positive, not whole, not a number, or absurd."""
    match value:
        case bool():
            return 0
        case int():
            number = value
        case float():
            number = int(value) if value.is_integer() else 0
        case str():
            digits = value.strip()
            number = int(digits) if re.fullmatch(r"[0-9]{1,12}", digits) else 0
        case _:
            return 0
    return number if 0 < number <= LARGEST else 0
