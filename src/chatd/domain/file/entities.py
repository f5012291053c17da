"""Files that users have uploaded, and the limits on them."""

from datetime import datetime
from typing import Final

from msgspec import Struct

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
