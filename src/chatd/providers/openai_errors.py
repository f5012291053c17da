"""An error within a stream of OpenAI's wires, as facts.

Whoever speaks these wires writes errors in a form of its own: an object or plain words, a
status or a word for a code, any of it missing. None of that may hide what was said.
"""

from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.model.protocol import ProviderFault
from chatd.providers.faults import as_status

_MAX_BODY: Final = 2000
_MAX_MESSAGE: Final = 500


class Error(Struct, frozen=True, kw_only=True):
    """Nothing in it need be of the type that it should have."""

    message: object = None
    type: object = None
    code: object = None


def error_of(said: object) -> Error:
    """What stands under the name of an error, whatever it is."""
    return msgspec.convert(said, Error) if isinstance(said, dict) else Error(message=said)


def error_fault(error: Error, data: bytes | None = None, *, otherwise: str) -> ProviderFault:
    """`otherwise` is told of an error that says nothing of itself."""
    status = as_status(error.code)
    words = (None if status is not None else error.code, error.type)
    return ProviderFault(
        message=_text(error.message) or otherwise,
        status_code=status,
        type=next((word for word in words if isinstance(word, str) and word), None),
        body=None if data is None else data[:_MAX_BODY].decode("utf-8", "replace"),
    )


def _text(message: object) -> str:
    if isinstance(message, str):
        return message
    if message is None or isinstance(message, bool):
        return ""
    return msgspec.json.encode(message).decode()[:_MAX_MESSAGE]
