"""Keys, kept out of everything that people read.

A `Secret` shows itself only to the code that puts it on the wire. `redacted`
takes keys out of text that others have written, who like to echo them.
"""

from collections.abc import Iterable
from typing import Final

from chatd.domain.model.failures import redact_urls

# What is shorter is no key, and would be found everywhere.
_SHORTEST: Final = 8


class Secret:
    """Says nothing in repr, in str, in a format string, in JSON or in a pickle."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reveal() == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not written down")


def redacted(text: str, secrets: Iterable[Secret]) -> str:
    """`text` without any of the secrets, and without what looks like somebody's."""
    for secret in secrets:
        value = secret.reveal().strip()
        # A header has the word of a scheme before its key, which is then repeated without it.
        for shown in (value, *value.split()):
            if len(shown) >= _SHORTEST:
                text = text.replace(shown, "[key]")
    return redact_urls(text)
