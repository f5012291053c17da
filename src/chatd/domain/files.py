"""Uploaded files as values: their names in headers, ranges of bytes, signed download links."""

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.domain.errors import Forbidden
from chatd.domain.ids import FileId, UserId

_MIB: Final = 1024 * 1024
MAX_FILE_BYTES: Final = 100 * _MIB
"""No setting allows a larger file."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """A complete file. Its bytes never change. `store` names where they are, in pieces of
    `chunk_bytes`; `sha256` is in hexadecimal digits."""

    id: FileId
    owner_id: UserId
    name: str | None
    media_type: str
    size_bytes: int
    sha256: str
    store: str
    chunk_bytes: int
    created_at: datetime


class NewFile(Struct, frozen=True, kw_only=True):
    """What is known of an upload when its last byte has arrived."""

    name: str | None
    media_type: str
    size_bytes: int
    sha256: str
    request_key: str | None = None


class FileLimits(Struct, frozen=True, kw_only=True):
    """`max_bytes` is of one file; the others are of all files of one user."""

    max_bytes: int = 20 * _MIB
    user_bytes: int = 1024 * _MIB
    user_files: int = 1000


# File names: read from a Content-Disposition header, and written into one.

MAX_NAME_BYTES: Final = 255

_EXTENDED: Final = re.compile(r"filename\*\s*=\s*(utf-8|iso-8859-1)'[^']*'([^\s;]+)", re.IGNORECASE)
_QUOTED: Final = re.compile(r'filename\s*=\s*"((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_BARE: Final = re.compile(r"filename\s*=\s*([^\s;\"]+)", re.IGNORECASE)
_PERCENT: Final = re.compile(rb"%([0-9a-fA-F]{2})")


def read_file_name(disposition: str | None) -> str | None:
    """The name in a Content-Disposition header, without directories; None if it has none."""
    if disposition is None:
        return None
    if (extended := _EXTENDED.search(disposition)) is not None:
        data = _PERCENT.sub(_byte, extended[2].encode("latin-1", "replace"))
        return clean_file_name(data.decode(extended[1].lower(), "replace"))
    if (quoted := _QUOTED.search(disposition)) is not None:
        return clean_file_name(_decoded_name(re.sub(r"\\([\"\\])", r"\1", quoted[1])))
    bare = _BARE.search(disposition)
    return None if bare is None else clean_file_name(_decoded_name(bare[1]))


def clean_file_name(name: str) -> str | None:
    """The last piece of a path, without control characters, cut to MAX_NAME_BYTES."""
    last = re.split(r"[/\\]", name)[-1]
    shown = "".join(char for char in last if char.isprintable()).strip()
    cut = shown.encode("utf-8", "replace")[:MAX_NAME_BYTES].decode("utf-8", "ignore")
    return None if cut in ("", ".", "..") else cut


def content_disposition(kind: str, name: str | None) -> str:
    """`kind` is inline or attachment. An old client reads the name in ASCII."""
    if name is None:
        return kind
    plain = re.sub(r'[^ -~]|["\\%;]', "_", name)
    encoded = "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or chr(byte) in "-._~" else f"%{byte:02X}"
        for byte in name.encode()
    )
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{encoded}"


def _decoded_name(text: str) -> str:
    """A header is read as Latin-1; clients send UTF-8."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes.fromhex(found[1].decode())


# The part of a file that a Range header asks for.

_RANGE: Final = re.compile(r"\s*bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*")


class ByteRange(Struct, frozen=True):
    """From `start` up to, but without, `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class RangeOutside(Exception):
    """The range begins after the end of the file."""


def select_range(header: str | None, size: int) -> ByteRange | None:
    """None for the whole file: there is no header, or one that a server may ignore, such as one
    with several ranges. Raises RangeOutside."""
    found = None if header is None else _RANGE.fullmatch(header)
    if found is None or found[1] == found[2] == "":
        return None
    if not found[1]:
        length = min(int(found[2]), size)
        if length == 0:
            raise RangeOutside
        return ByteRange(size - length, size)
    start = int(found[1])
    last = int(found[2]) if found[2] else size - 1
    if found[2] and last < start:
        return None
    if start >= size:
        raise RangeOutside
    return ByteRange(start, min(last + 1, size))


# Signed download links: who may load which file until when, without a login.
#
# All replicas sign with one key. A link gives no more than its user may read: the server checks
# that again when the link is used.

LINK_LIFETIME_S: Final = 300
KEY_BYTES: Final = 32

_PURPOSE: Final = b"chatd download link 1"
_TIME_BYTES: Final = 8
_ID_BYTES: Final = 16
_TOKEN_BYTES: Final = _TIME_BYTES + _ID_BYTES + hashlib.sha256().digest_size
_MAX_TOKEN_CHARS: Final = 100


class DownloadLink(Struct, frozen=True, kw_only=True):
    """`expires` is in seconds since 1970."""

    file_id: FileId
    user_id: UserId
    expires: int

    @property
    def expires_at(self) -> datetime:
        return datetime.fromtimestamp(self.expires, UTC)


def sign_link(key: bytes, link: DownloadLink) -> str:
    signed = link.expires.to_bytes(_TIME_BYTES, "big") + link.user_id.bytes
    token = urlsafe_b64encode(signed + _signature(key, link.file_id, signed))
    return token.decode().rstrip("=")


def open_link(key: bytes, token: str, file_id: FileId, now: datetime) -> DownloadLink:
    """Raises Forbidden: `link_invalid` for a token that this key has not signed for this file,
    `link_expired`."""
    data = _decode(token)
    if len(data) != _TOKEN_BYTES:
        raise _invalid()
    signed = data[: _TIME_BYTES + _ID_BYTES]
    if not hmac.compare_digest(data[len(signed) :], _signature(key, file_id, signed)):
        raise _invalid()
    expires = int.from_bytes(signed[:_TIME_BYTES], "big")
    if expires <= now.timestamp():
        raise Forbidden("The link has expired. Request a new one.", code="link_expired")
    user_id = UserId(UUID(bytes=signed[_TIME_BYTES:]))
    return DownloadLink(file_id=file_id, user_id=user_id, expires=expires)


def _signature(key: bytes, file_id: UUID, signed: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + file_id.bytes + signed, "sha256")


def _decode(token: str) -> bytes:
    if len(token) > _MAX_TOKEN_CHARS or not token.isascii():
        return b""
    try:
        data = urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        return b""
    # Several texts decode to the same bytes; only one of them was issued.
    return data if urlsafe_b64encode(data).decode().rstrip("=") == token else b""


def _invalid() -> Forbidden:
    return Forbidden("The link is not valid for this file.", code="link_invalid")
