"""Routes that upload, list, load, link and delete files.

A file is served so that a browser runs nothing in it: with the type that its bytes have, without
sniffing, in a sandbox, and a PDF only as a download.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import FILE_STORE_CODES, UPLOAD_CODES
from chatd.api.errors import RangeNotSatisfiable
from chatd.api.operations import REPLAYED, audit_file_read, audit_read
from chatd.api.pages import Paging, TimePosition, page_reply
from chatd.api.request import (
    NO_CONTENT,
    ApiCaller,
    ApiReply,
    ApiRequest,
    Scope,
    StreamedReply,
    read_query,
    read_uuid,
    reply,
)
from chatd.api.route import PREFIX, ApiRoute
from chatd.api.routes.uploads import FileUpload
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.schemas.messages import from_rows
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.description import CREATED_AT, FILE_ID, USER_ID, describe
from chatd.domain.errors import NotFound, Unavailable
from chatd.domain.files import (
    LINK_LIFETIME_S,
    ByteRange,
    DownloadLink,
    RangeOutside,
    StoredFile,
    content_disposition,
    open_link,
    select_range,
    sign_link,
)
from chatd.domain.ids import FileId, UserId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.media_types import PDF, is_text_type
from chatd.store import files
from chatd.store.account import credentials
from chatd.store.chat import chats
from chatd.store.database.sealed_columns import DOWNLOAD_LINKS, shared_key

# Queries and replies about files.

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
    return from_rows(FileReply, file)


SANDBOX: Final = "default-src 'none'; sandbox"
ACCESS_KINDS: Final = frozenset(
    {"user", "credential", "group", "share", "project", "project_access", "settings"}
)
"""Changes after which a user may have lost access to a file."""
_KEPT: Final = "private, max-age=31536000, immutable"


class FileRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._link_key: bytes | None = None
        self._access_changes = 0
        deps.accounts.changes.subscribe(self._on_change)

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /files",
                permission="files.write",
                summary="Upload a file: its bytes are the body",
                handle=self.upload_file,
                raw_body=True,
                replies={201: FileReply},
                errors=UPLOAD_CODES,
                keyed=True,
                starts_work=True,
            ),
            ApiRoute(
                endpoint="GET /files",
                permission="files.read",
                summary="List the caller's files, newest first",
                handle=self.list_files,
                query=ListQuery,
                replies={200: FilePage},
            ),
            ApiRoute(
                endpoint="GET /files/{file_id}",
                permission="files.read",
                summary="Get the name, type, size and digest of a file",
                handle=self.get_file,
                replies={200: FileReply},
            ),
            ApiRoute(
                endpoint="DELETE /files/{file_id}",
                permission="files.write",
                summary="Delete a file that no message names",
                handle=self.delete_file,
                replies={204: None},
                errors=("file_in_use",),
            ),
            ApiRoute(
                endpoint="GET /files/{file_id}/content",
                permission="files.read",
                summary="Load a file, or a part of it with a Range header",
                handle=self.load_content,
                replies={200: bytes, 206: bytes, 304: None},
                errors=("range_not_satisfiable", *FILE_STORE_CODES),
            ),
            ApiRoute(
                endpoint="POST /files/{file_id}/download-url",
                permission="files.read",
                summary="Make a link that loads the file for five minutes without a token",
                handle=self.make_download_url,
                replies={200: DownloadUrlReply},
            ),
            ApiRoute(
                endpoint="GET /files/{file_id}/download",
                permission="files.read",
                summary="Load a file by a link",
                handle=self.download_file,
                query=DownloadQuery,
                replies={200: bytes, 206: bytes},
                errors=("link_expired", "link_invalid", "range_not_satisfiable", *FILE_STORE_CODES),
                authenticate=self.authenticate_link,
            ),
        )

    async def upload_file(self, request: ApiRequest) -> ApiReply:
        stored = await FileUpload(self._deps, request).run()
        headers = {"location": f"{PREFIX}/files/{stored.file.id}"}
        if stored.is_replay:
            headers |= REPLAYED
        return reply(file_reply(stored.file), 201, headers)

    async def list_files(self, request: ApiRequest) -> ApiReply:
        deps, paging = self._deps, Paging(request, request.query(ListQuery), TimePosition)
        last = paging.position
        after = None if last is None else (last.at, FileId(last.id))
        found = await deps.read(
            files.list_own, request.caller.actor, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda file: TimePosition(file.created_at, file.id))
        return page_reply(FilePage, map(file_reply, shown), cursor)

    async def get_file(self, request: ApiRequest) -> ApiReply:
        return reply(file_reply(await self._get(request)))

    async def delete_file(self, request: ApiRequest) -> ApiReply:
        deps, file_id, actor = self._deps, request.file_id, request.caller.actor
        left = await deps.retry(lambda: files.delete_own(deps.pool, file_id, actor))
        with suppress(Unavailable):  # maintenance repeats it
            await deps.files.remove_bytes(deps.pool, left)
        return NO_CONTENT

    async def load_content(self, request: ApiRequest) -> ApiReply:
        file = await self._get(request)
        headers = {"cache-control": _KEPT, "etag": _etag(file)}
        if _is_known(request, file):
            return ApiReply(status=304, headers=headers)
        return self._content(request, file, headers)

    async def make_download_url(self, request: ApiRequest) -> ApiReply:
        file = await self._get(request)
        link = DownloadLink(
            file_id=file.id,
            user_id=request.caller.user_id,
            expires=int(self._deps.env.clock.now().timestamp()) + LINK_LIFETIME_S,
        )
        token = sign_link(await self._key(), link)
        return reply(
            from_rows(
                DownloadUrlReply,
                file,
                url=f"{PREFIX}/files/{file.id}/download?token={token}",
                expires_at=link.expires_at,
            )
        )

    async def authenticate_link(self, scope: Scope, path: Mapping[str, str]) -> ApiCaller:
        """The user who made the link. Raises Forbidden."""
        token = read_query(DownloadQuery, scope["query_string"]).token
        file_id = FileId(read_uuid("file_id", path["file_id"]))
        link = open_link(await self._key(), token, file_id, self._deps.env.clock.now())
        deps = self._deps
        actor = await deps.read(files.get_link_user, link.user_id)
        return ApiCaller(actor=actor)

    async def download_file(self, request: ApiRequest) -> ApiReply:
        """Whether the link's user may read the file is checked now, not only when it was made."""
        file = await self._get(request)
        return self._content(request, file, {"cache-control": "no-store", "etag": _etag(file)})

    def _content(self, request: ApiRequest, file: StoredFile, headers: dict[str, str]) -> ApiReply:
        part = _requested_part(request, file)
        is_part = part is not None
        part = part or ByteRange(0, file.size_bytes)
        # A browser would open a PDF in a viewer that can run scripts.
        kind = "attachment" if file.media_type == PDF else "inline"
        headers |= {
            "content-disposition": content_disposition(kind, file.name),
            "content-security-policy": SANDBOX,
            "cross-origin-resource-policy": "same-origin",
            "accept-ranges": "bytes",
        }
        if is_part:
            headers["content-range"] = f"bytes {part.start}-{part.end - 1}/{file.size_bytes}"
        charset = "; charset=utf-8" if is_text_type(file.media_type) else ""
        return StreamedReply(
            status=206 if is_part else 200,
            headers=headers,
            media_type=file.media_type + charset,
            pieces=self._while_readable(request, self._deps.files.of(file.store).read(file, part)),
            length=part.length,
        )

    async def _get(self, request: ApiRequest) -> StoredFile:
        deps, actor = self._deps, request.caller.actor
        file = await deps.read(files.get, request.file_id, actor)
        await audit_file_read(deps, request.caller, file)
        return file

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind in ACCESS_KINDS:
            self._access_changes += 1

    async def _while_readable(
        self, request: ApiRequest, pieces: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        """After a change of users, credentials or shares no piece is sent before the caller's
        access is checked again. A client that has lost it finds the body cut."""
        checked = self._access_changes
        async with aclosing(pieces):
            async for piece in pieces:
                if checked != self._access_changes:
                    checked = self._access_changes
                    await self._deps.retry(lambda: self._require_access(request))
                yield piece

    async def _require_access(self, request: ApiRequest) -> None:
        """Raises NotFound."""
        pool, caller = self._deps.pool, request.caller
        actor = await credentials.check(pool, caller.actor, caller.credential_id)
        if actor is None:
            raise NotFound("There is no such file.")
        await files.get(pool, request.file_id, actor)

    async def _key(self) -> bytes:
        """Never changes, so that it is read once."""
        if self._link_key is None:
            self._link_key = await self._deps.retry(
                lambda: shared_key(self._deps.pool, DOWNLOAD_LINKS)
            )
        return self._link_key


def _etag(file: StoredFile) -> str:
    return f'"{file.sha256}"'


def _is_known(request: ApiRequest, file: StoredFile) -> bool:
    """Whether the client says that it has the file already."""
    given = request.header("if-none-match") or ""
    tags = [tag.strip().removeprefix("W/") for tag in given.split(",")]
    return _etag(file) in tags or tags == ["*"]


def _requested_part(request: ApiRequest, file: StoredFile) -> ByteRange | None:
    """Raises RangeNotSatisfiable."""
    if request.header("if-range") not in (None, _etag(file)):
        return None
    try:
        return select_range(request.header("range"), file.size_bytes)
    except RangeOutside:
        raise RangeNotSatisfiable(file.size_bytes) from None


# The route that lists the files of a chat: those that its messages name and those that its tools
# made. `files` loads them.


class ChatFileRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/files",
                permission="chats.read",
                summary="List the files of a chat, newest first",
                description=(
                    "Files that messages name, and files that the model attached or proposed as a"
                    " plan."
                ),
                handle=self.list_chat_files,
                query=ListQuery,
                replies={200: FilePage},
            ),
        )

    async def list_chat_files(self, request: ApiRequest) -> ApiReply:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        paging = Paging(request, request.query(ListQuery), TimePosition)
        chat = require_chat(await deps.read(chats.get, actor, chat_id))
        await audit_read(deps, request.caller, chat)
        last = paging.position
        after = None if last is None else (last.at, FileId(last.id))
        found = await deps.read(
            files.list_page, actor, chat_id, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda file: TimePosition(file.created_at, file.id))
        return page_reply(FilePage, map(file_reply, shown), cursor)
