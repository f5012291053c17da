"""Routes that copy the files of a workspace out and in, as a tar archive.

Only the owner of the workspace may. The bytes pass through in pieces: no replica holds an archive.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated, Final

from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import ARCHIVE_CODES
from chatd.api.errors import RequestTimeout, TooLarge
from chatd.api.request import ApiReply, ApiRequest, Message, Receive, StreamedReply, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.files import ACCESS_KINDS
from chatd.api.routes.uploads import read_chunks
from chatd.api.routes.workspace.builds import require_workspace, require_workspaces
from chatd.api.routes.workspace.workspace_files import (
    MAX_PATH_CHARS,
    check_path,
    explain_refusal,
)
from chatd.domain.access.permissions import UserActor
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.description import describe
from chatd.domain.errors import ChatdError, Conflict, InvalidInput, NotFound
from chatd.domain.files import clean_file_name, content_disposition
from chatd.domain.workspace.agent_api import (
    MAX_ARCHIVE_BYTES,
    MAX_PIECE_BYTES,
    AgentRefused,
    ArchiveFacts,
    UnpackedFiles,
)
from chatd.services.workspaces.people_access import AgentFiles
from chatd.store.account import credentials
from chatd.store.workspace import workspaces

MAX_ARCHIVE_BODY_BYTES: Final = MAX_ARCHIVE_BYTES + (512 << 20)
"""With the headers between the files."""
ARCHIVE_TIMEOUT_S: Final = 3600.0
MAX_DRAINED_BYTES: Final = 64 << 20

TAR: Final = "application/x-tar"
GZIP: Final = "application/gzip"
_GIB: Final = MAX_ARCHIVE_BYTES >> 30
_GET_TEXT: Final = (
    f"The directory is packed while it is sent: at most {_GIB} GiB and 200,000 entries, else the"
    " reply is 413. Links stay links. Pipes, sockets and devices are left out; `X-Archive-Skipped`"
    " counts them and `X-Archive-Unreadable` the files that cannot be read. `X-Archive-Files` and"
    " `X-Archive-Bytes` have what was counted before. A reply that breaks off is not complete: a"
    " file became shorter, the workspace stopped, or the client read nothing for 20 seconds."
)
_PUT_TEXT: Final = (
    "The body is a tar archive, also with gzip, with files of at most"
    f" {_GIB} GiB together. Files are replaced, others stay; missing directories are made. Names"
    " that are absolute or have `..` are refused, and what leads through a link. Links that lead"
    " out of the directory, pipes, sockets and devices are left out, and setuid bits are dropped. A"
    " file appears when it is whole; after an error, those that came before it are there."
)


class ArchivePathQuery(Struct, frozen=True, kw_only=True):
    path: Annotated[
        str,
        Meta(max_length=MAX_PATH_CHARS),
        describe("The directory, absolute or from the home directory; empty: that.", "app"),
    ] = ""


class ArchiveQuery(ArchivePathQuery, frozen=True, kw_only=True):
    gzip: Annotated[bool, describe("Compress the archive.")] = False


class WorkspaceArchiveRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._access_changes = 0
        deps.accounts.changes.subscribe(self._on_change)

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /workspaces/{workspace_id}/archive",
                permission="workspaces.write",
                summary="Load a directory of a workspace as a tar archive",
                description=_GET_TEXT,
                handle=self.load_archive,
                query=ArchiveQuery,
                replies={200: bytes},
                reply_types=(TAR, GZIP),
                errors=ARCHIVE_CODES,
            ),
            ApiRoute(
                endpoint="PUT /workspaces/{workspace_id}/archive",
                permission="workspaces.write",
                summary="Unpack a tar archive into a directory of a workspace",
                description=_PUT_TEXT,
                handle=self.unpack_archive,
                raw_body=True,
                body_types=(TAR, GZIP, "application/octet-stream"),
                query=ArchivePathQuery,
                replies={200: UnpackedFiles},
                errors=(*ARCHIVE_CODES, "bad_archive", "too_large", "request_timeout"),
                starts_work=True,
            ),
        )

    async def load_archive(self, request: ApiRequest) -> ApiReply:
        query = request.query(ArchiveQuery)
        path = check_path(query.path)
        files = await self._open(request)
        try:
            facts, pieces = await files.archive(path, gzip=query.gzip)
        except AgentRefused as error:
            raise explain_archive(error) from error
        return StreamedReply(
            headers=_headers(facts, "tar.gz" if query.gzip else "tar"),
            media_type=GZIP if query.gzip else TAR,
            pieces=self._while_allowed(request, pieces),
            length=None,
        )

    async def unpack_archive(self, request: ApiRequest) -> ApiReply:
        path = check_path(request.query(ArchivePathQuery).path)
        announced = request.header("content-length") or ""
        if announced.isdecimal() and int(announced[:19]) > MAX_ARCHIVE_BODY_BYTES:
            raise TooLarge(MAX_ARCHIVE_BODY_BYTES)
        files = await self._open(request)
        body = _ArchiveBody(request.receive)
        try:
            async with asyncio.timeout(ARCHIVE_TIMEOUT_S):
                return reply(await files.unpack(path, self._while_allowed(request, body.pieces())))
        except AgentRefused as error:
            await body.drain()
            raise explain_archive(error) from error
        except TimeoutError:
            text = f"The archive did not arrive within {ARCHIVE_TIMEOUT_S:.0f} seconds."
            raise RequestTimeout(text) from None

    async def _open(self, request: ApiRequest) -> AgentFiles:
        await self._deps.retry(lambda: self._require_owned(request, request.caller.actor))
        control = require_workspaces(self._deps)
        try:
            return await control.workspace_files(request.workspace_id)
        except AgentRefused as error:
            raise explain_archive(error) from error

    async def _require_owned(self, request: ApiRequest, actor: UserActor) -> None:
        """Raises NotFound, and Forbidden for one who may only read it."""
        found = await workspaces.load_snapshot(
            self._deps.pool, actor, request.workspace_id, "workspaces.write"
        )
        require_workspace(found)

    async def _while_allowed(
        self, request: ApiRequest, pieces: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        """After a change of users or credentials no piece passes before the caller's access is
        checked again."""
        checked = self._access_changes
        async with aclosing(pieces):
            async for piece in pieces:
                if checked != self._access_changes:
                    checked = self._access_changes
                    await self._deps.retry(lambda: self._require_access(request))
                yield piece

    async def _require_access(self, request: ApiRequest) -> None:
        caller = request.caller
        actor = await credentials.check(self._deps.pool, caller.actor, caller.credential_id)
        if actor is None:
            raise NotFound("There is no such workspace.")
        await self._require_owned(request, actor)

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind in ACCESS_KINDS:
            self._access_changes += 1


class _ArchiveBody:
    """The body of a request."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_read = False

    def pieces(self, max_bytes: int = MAX_ARCHIVE_BODY_BYTES) -> AsyncGenerator[bytes]:
        return read_chunks(self._next, max_bytes=max_bytes, chunk_bytes=MAX_PIECE_BYTES)

    async def drain(self) -> None:
        """A client that is still sending would lose a reply that comes before its end."""
        if self._is_read:
            return
        with suppress(ChatdError):
            async with aclosing(self.pieces(MAX_DRAINED_BYTES)) as rest:
                async for _ in rest:
                    pass

    async def _next(self) -> Message:
        event = await self._receive()
        self._is_read = not event.get("more_body", False)
        return event


def _headers(facts: ArchiveFacts, suffix: str) -> dict[str, str]:
    name = clean_file_name(facts.name) or "workspace"
    return {
        "content-disposition": content_disposition("attachment", f"{name}.{suffix}"),
        "cache-control": "no-store",
        "x-archive-files": str(facts.files),
        "x-archive-bytes": str(facts.bytes),
        "x-archive-skipped": str(facts.skipped),
        "x-archive-unreadable": str(facts.unreadable_count),
    }


def explain_archive(error: AgentRefused) -> ChatdError:
    match error.code:
        case "archive_too_large" | "copies_busy":
            return Conflict(error.message, code=error.code)
        case "bad_archive":
            return InvalidInput("archive", error.message, code="bad_archive")
        case _:
            return explain_refusal(error)
