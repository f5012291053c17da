"""Text and JSON that every neighbour can take.

Models, tools and clients send halves of characters, bytes that are not UTF-8 and NULs. A half
breaks the database driver, and a stored escape of one makes a row unreadable for ever, so both
are mended on the way in and again on the way to a model. A NUL is kept in history; only a
prompt goes without it. What cannot be mended is shown as U+FFFD.
"""

import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.text import Json

REPLACEMENT_CHAR: Final = "\ufffd"
_MAX_EMPTY_JSON_BYTES: Final = 64

# An escaped character in JSON text: a pair, a half, a NUL, or anything else that a backslash
# begins. The last keeps `\\ud800`, which is a backslash and five letters, from being mended.
_ESCAPE: Final = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|(?P<nul>\\u0000)"
    r"|\\."
)


def replace_surrogates(text: str) -> str:
    """Two halves of one character find each other by way of UTF-16; a single one is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def decode_lenient(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def replace_json_surrogates(text: str) -> str:
    """The same for halves that JSON text holds as escapes. It need not be valid JSON."""
    return _replace_escapes(replace_surrogates(text), nul=False)


def storable_json(raw: Json) -> Json:
    """Raw JSON that can be stored and read back. What is fine comes back as it is."""
    return _replace_raw_escapes(raw, nul=False)


def model_text(text: str) -> str:
    return replace_surrogates(text).replace("\0", REPLACEMENT_CHAR)


def model_json(raw: Json) -> Json:
    return _replace_raw_escapes(raw, nul=True)


def _replace_raw_escapes(raw: Json, *, nul: bool) -> Json:
    if raw is UNSET:
        return UNSET
    data = bytes(raw)
    if b"\\u" not in data and data.isascii():
        return raw
    mended = _replace_escapes(decode_lenient(data), nul=nul).encode()
    return raw if mended == data else Raw(mended)


def _replace_escapes(text: str, *, nul: bool) -> str:
    if "\\u" not in text:
        return text

    def mend(match: re.Match[str]) -> str:
        broken = match["half"] is not None or (nul and match["nul"] is not None)
        return r"\ufffd" if broken else match[0]

    return _ESCAPE.sub(mend, text)


def is_empty_json(raw: Json) -> bool:
    """Nothing, null, or an object without a field: no vendor means anything by it."""
    if raw is UNSET:
        return True
    data = bytes(raw)
    return len(data) <= _MAX_EMPTY_JSON_BYTES and data.strip() in (b"", b"null", b"{}")


def parse_json(raw: Json | str) -> object:
    """The JSON value, or UNSET for what is none (JSON's own null is None)."""
    if raw is UNSET:
        return UNSET
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return UNSET
