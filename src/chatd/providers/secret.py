"""Secrets that no log, message or file contains.

Only code that sends a `Secret` reveals it. `redact_secrets` removes keys from a provider's error
text, because some providers repeat the key there.
"""

from collections.abc import Iterable
from typing import Final

from chatd.domain.model.failures import redact_urls

# Shorter values are not keys, and replacing them would damage ordinary text.
_MIN_SECRET_CHARS: Final = 8


class Secret:
    """Hidden in repr, str, format strings and JSON; cannot be pickled."""

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
        raise TypeError("a secret cannot be pickled")


def redact_secrets(text: str, secrets: Iterable[Secret]) -> str:
    """Replace the secrets in `text`, and credentials in its URLs."""
    for secret in secrets:
        value = secret.reveal().strip()
        # A header value is "Bearer KEY"; providers repeat the key without the scheme.
        for word in (value, *value.split()):
            if len(word) >= _MIN_SECRET_CHARS:
                text = text.replace(word, "[key]")
    return redact_urls(text)
