"""Reading an event of a stream, even if it holds halves of characters.

A vendor may cut a stream between the two halves of one character, which JSON can
write and UTF-8 cannot hold. That must not cost the answer.
"""

from typing import TypeVar

import msgspec

from chatd.domain.text import decode_lenient, replace_json_surrogates

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What `read` raises for data that is not what the decoder expects."""

_T = TypeVar("_T")


def read(decoder: "msgspec.json.Decoder[_T]", data: bytes | msgspec.Raw) -> _T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decoder.decode(replace_json_surrogates(decode_lenient(bytes(data))))
