"""Text and raw JSON that the database and every provider accept, clipping of text, and CSV.

Input may hold lone surrogates, which the database driver rejects, and JSON escapes of them, which
make a stored row unreadable. Both become U+FFFD on the way in and again on the way to a model.
NUL is stored; only prompts replace it.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

Json = Raw | UnsetType

REPLACEMENT_CHAR: Final = "\ufffd"
_MAX_EMPTY_JSON_BYTES: Final = 64
_CSV_SPECIAL: Final = re.compile(r'[",\r\n]|^ | $')
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")

# An escape in JSON text: a surrogate pair, a lone surrogate, a NUL, or any other escape. The last
# alternative consumes `\\`, so that `\\ud800` (a backslash and five letters) is not replaced.
_ESCAPE: Final = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|(?P<nul>\\u0000)"
    r"|\\."
)


def replace_surrogates(text: str) -> str:
    """Join surrogate pairs by decoding as UTF-16; replace lone surrogates."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def decode_lenient(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def replace_json_surrogates(text: str) -> str:
    """Replace lone surrogates, escaped ones included. The text need not be valid JSON."""
    return _replace_escapes(replace_surrogates(text), nul=False)


def storable_json(raw: Json) -> Json:
    """Raw JSON without lone surrogates; the same object if it has none."""
    return _replace_raw_escapes(raw, nul=False)


def clip(text: str, limit: int) -> str:
    """The text in at most `limit` characters; an ellipsis marks what is missing."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


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
    replaced = _replace_escapes(decode_lenient(data), nul=nul).encode()
    return raw if replaced == data else Raw(replaced)


def _replace_escapes(text: str, *, nul: bool) -> str:
    if "\\u" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        is_refused = match["lone"] is not None or (nul and match["nul"] is not None)
        return r"\ufffd" if is_refused else match[0]

    return _ESCAPE.sub(replace, text)


def is_empty_json(raw: Json) -> bool:
    """Whether the JSON is absent, null or an empty object."""
    if raw is UNSET:
        return True
    data = bytes(raw)
    return len(data) <= _MAX_EMPTY_JSON_BYTES and data.strip() in (b"", b"null", b"{}")


def parse_json(raw: Json | str) -> object:
    """The decoded value; UNSET if the text is absent or not JSON (JSON's null is None)."""
    if raw is UNSET:
        return UNSET
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return UNSET


def utc_text(at: datetime, timespec: str = "auto") -> str:
    """As in all JSON of chatd: `2026-01-31T12:00:00Z`."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def csv_rows(rows: Iterable[Iterable[str]]) -> bytes:
    """Lines of CSV. A spreadsheet must not take a text for a formula: a cell that it could take
    for one begins with an apostrophe."""
    lines = (",".join(map(_csv_cell, row)) + "\r\n" for row in rows)
    return "".join(lines).encode(errors="replace")


def _csv_cell(text: str) -> str:
    safe = f"'{text}" if text.lstrip(" ").startswith(_FORMULA_STARTS) else text
    return '"' + safe.replace('"', '""') + '"' if _CSV_SPECIAL.search(safe) else safe
