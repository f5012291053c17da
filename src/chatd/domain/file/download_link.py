"""Signed download links: who may load which file until when, without a login.

All replicas sign with one key. A link gives no more than its user may read: the server checks that
again when the link is used.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.domain.errors import Forbidden
from chatd.domain.ids import FileId, UserId

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
