"""Reading an event of a stream, even if it holds halves of characters.

A vendor may cut a stream between the two halves of one character, which JSON can
write and UTF-8 cannot hold. That must not cost the answer.
"""

from typing import TypeVar

import msgspec

from chatd.domain.heal import heal_bytes, heal_json

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What `read` raises for data that is not what the decoder expects."""

_T = TypeVar("_T")


def read(decoder: "msgspec.json.Decoder[_T]", data: bytes | msgspec.Raw) -> _T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decoder.decode(heal_json(heal_bytes(bytes(data))))
