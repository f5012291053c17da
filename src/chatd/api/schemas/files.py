"""Queries and replies about files."""

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from chatd.domain.description import CREATED_AT, FILE_ID, USER_ID, describe
from chatd.domain.file.entities import StoredFile
from chatd.domain.ids import FileId, UserId
from chatd.domain.list_page import ListPage

_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_TOKEN = "AAAAAGkZ8wDEp9AAAABAAIAAAAAAAAAB"

Name = Annotated[
    str | None,
    describe("The name of the file, without directories; null: none.", "chart.png"),
]
MediaType = Annotated[str, describe("The media type of the content.", "image/png")]
SizeBytes = Annotated[int, describe("The size of the file in bytes.", 48_213)]
Sha256 = Annotated[str, describe("The SHA-256 of the content, in hexadecimal digits.", _SHA256)]


class FileReply(Struct, frozen=True, kw_only=True):
    """A file of a user or a chat. Its content never changes."""

    id: Annotated[FileId, describe("The id to name the file by in a message.", FILE_ID)]
    owner_id: Annotated[UserId, describe("The user to whom the file belongs.", USER_ID)]
    name: Name
    media_type: MediaType
    size_bytes: SizeBytes
    sha256: Sha256
    created_at: Annotated[datetime, describe("When the upload was complete.", CREATED_AT)]


class FilePage(ListPage[FileReply], frozen=True, kw_only=True):
    """A page of files."""


class DownloadUrlReply(Struct, frozen=True, kw_only=True):
    """A link that loads the file without a token."""

    url: Annotated[
        str,
        describe(
            "A path on this server, with a signature.",
            f"/api/v1/files/{FILE_ID}/download?token={_TOKEN}",
        ),
    ]
    expires_at: Annotated[datetime, describe("The link is refused from then on.", CREATED_AT)]
    name: Name
    media_type: MediaType
    size_bytes: SizeBytes
    sha256: Sha256


class DownloadQuery(Struct, frozen=True, kw_only=True):
    """The query of a download link."""

    token: Annotated[
        str,
        Meta(min_length=1, max_length=100),
        describe("The signature of the link, from `POST /files/{file_id}/download-url`.", _TOKEN),
    ]


def file_reply(file: StoredFile) -> FileReply:
    return FileReply(
        id=file.id,
        owner_id=file.owner_id,
        name=file.name,
        media_type=file.media_type,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        created_at=file.created_at,
    )
