"""Routes that read the files of a chat's workspace.

The files are whatever commands wrote there. They are served so that a browser runs nothing in them:
as plain text, as an image by its bytes or as unknown bytes, without sniffing and in a sandbox.
A share does not include them: the owner reads them, and roles that read all workspaces.
"""

from collections.abc import AsyncGenerator
from typing import Annotated, Final
from uuid import NAMESPACE_OID, uuid5

from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import BROWSE_CODES
from chatd.api.operations import audit_workspace_read
from chatd.api.pages import ItemPosition, Paging, cut_whole
from chatd.api.request import ApiReply, ApiRequest, StreamedReply, read_body, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.files import ACCESS_KINDS
from chatd.api.routes.workspace.builds import require_workspaces
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.description import describe
from chatd.domain.errors import ChatdError, Conflict, Forbidden, InvalidInput, NotFound
from chatd.domain.files import clean_file_name, content_disposition
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.media_types import IMAGE_TYPES, PLAIN_TEXT, detect_type
from chatd.domain.workspace.agent_api import (
    MAX_PIECE_BYTES,
    AgentRefused,
    DirectoryPath,
    FilePiece,
    HomePath,
    IsCut,
    SavedFile,
    StartPath,
    WorkspaceEntry,
    is_text,
)
from chatd.services.workspaces.people_access import AgentFiles
from chatd.store.account import credentials
from chatd.store.chat import chats

# Queries about the files of a chat's workspace.

MAX_PATH_CHARS: Final = 4096
MAX_FILE_OFFSET: Final = 1 << 48

WorkspacePath = Annotated[
    str,
    Meta(max_length=MAX_PATH_CHARS),
    describe("A path in the workspace, absolute or from its home directory.", "app/main.py"),
]


class DirectoryQuery(ListQuery, frozen=True, kw_only=True):
    path: Annotated[
        str,
        Meta(max_length=MAX_PATH_CHARS),
        describe("The directory, absolute or from the home directory; empty: that.", "app/src"),
    ] = ""


class DirectoryPage(ListPage[WorkspaceEntry], frozen=True, kw_only=True):
    """A page of a directory of a workspace: directories first, then by name."""

    path: DirectoryPath
    home: HomePath
    directory: StartPath
    entries: Annotated[
        tuple[WorkspaceEntry, ...],
        describe("All entries, on the first page, for clients of earlier versions. Use `items`."),
    ]
    is_cut: IsCut


class SaveQuery(Struct, frozen=True, kw_only=True):
    path: WorkspacePath
    version: Annotated[
        str,
        Meta(max_length=64),
        describe(
            "The version that was loaded, of `X-File-Version`. Empty: the file is a new one.",
            "1f3-18a2b-72a",
        ),
    ] = ""


class WorkspaceFileQuery(Struct, frozen=True, kw_only=True):
    path: WorkspacePath
    offset: Annotated[
        int, Meta(ge=0, le=MAX_FILE_OFFSET), describe("The first byte to load.", 0)
    ] = 0
    limit: Annotated[
        int,
        Meta(ge=1, le=MAX_PIECE_BYTES),
        describe("How many bytes to load at most. Ignored for a download.", 262_144),
    ] = MAX_PIECE_BYTES
    download: Annotated[bool, describe("Load the whole file, for a browser to save it.")] = False
    page: Annotated[
        bool,
        describe("Load text as an HTML page, for a frame: its scripts run in a sandbox."),
    ] = False


BINARY: Final = "application/octet-stream"
HTML_PAGE: Final = "text/html"
_FILE_TYPES: Final = (BINARY, *sorted(IMAGE_TYPES), HTML_PAGE, PLAIN_TEXT)
_PAGE_SANDBOX: Final = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval';"
    " style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data:;"
    " form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
"""The page has an origin of its own, which is none of a site: no cookie, no request, no storage."""
_SANDBOX: Final = "default-src 'none'; sandbox"
_FILE_TEXT: Final = (
    "At most `limit` bytes from `offset`. `X-File-Size` has the size of the whole file and"
    " `X-File-Version` a mark that changes with it. Text is `text/plain` if it is UTF-8, an image"
    " has its type by its bytes, anything else is `application/octet-stream`. With `download` the"
    " whole file comes as an attachment; if it changes meanwhile the reply is cut."
)

_SAVE_TEXT: Final = (
    "At most 1 MiB. The file must have the version that the client loaded, else nothing is saved"
    " (409 `file_changed`). Larger files: `PUT /workspaces/{id}/archive`."
)


class WorkspaceFileRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._access_changes = 0
        deps.accounts.changes.subscribe(self._on_change)

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/workspace/files",
                permission="workspaces.read",
                summary="List one directory of a chat's workspace",
                description="Links are shown, and followed only inside the home directory.",
                handle=self.list_workspace_directory,
                query=DirectoryQuery,
                replies={200: DirectoryPage},
                errors=BROWSE_CODES,
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/workspace/file",
                permission="workspaces.read",
                summary="Load a file of a chat's workspace, or a part of it",
                description=_FILE_TEXT,
                handle=self.load_workspace_file,
                query=WorkspaceFileQuery,
                replies={200: bytes},
                reply_types=_FILE_TYPES,
                errors=BROWSE_CODES,
            ),
            ApiRoute(
                endpoint="PUT /chats/{chat_id}/workspace/file",
                permission="workspaces.write",
                summary="Save a small file of a chat's workspace",
                description=_SAVE_TEXT,
                handle=self.save_workspace_file,
                raw_body=True,
                body_types=(PLAIN_TEXT, BINARY),
                query=SaveQuery,
                replies={200: SavedFile},
                errors=(*BROWSE_CODES, "file_changed", "too_large", "request_timeout"),
                starts_work=True,
            ),
        )

    async def list_workspace_directory(self, request: ApiRequest) -> ApiReply:
        query = request.query(DirectoryQuery)
        files = await self._open(request)
        paging = Paging(request, query, ItemPosition)
        try:
            found = await files.list_directory(check_path(query.path))
        except AgentRefused as error:
            raise explain_refusal(error) from error
        shown, next_cursor = cut_whole(
            paging, found.entries, lambda entry: uuid5(NAMESPACE_OID, entry.name)
        )
        return reply(
            DirectoryPage(
                items=tuple(shown),
                has_more=next_cursor is not None,
                next_cursor=next_cursor,
                path=found.path,
                home=found.home,
                directory=found.directory,
                entries=found.entries if paging.position is None else (),
                is_cut=found.is_cut,
            )
        )

    async def load_workspace_file(self, request: ApiRequest) -> ApiReply:
        query = request.query(WorkspaceFileQuery)
        path = check_path(query.path)
        files = await self._open(request)
        offset, limit = (0, MAX_PIECE_BYTES) if query.download else (query.offset, query.limit)
        try:
            piece = await files.read_piece(path, offset=offset, limit=limit)
        except AgentRefused as error:
            raise explain_refusal(error) from error
        if query.download:
            return StreamedReply(
                headers=_headers(piece, "attachment"),
                media_type=BINARY,
                pieces=self._rest(request, files, piece),
                length=piece.size,
            )
        kind = media_type(piece, offset)
        if query.page and kind == PLAIN_TEXT:
            headers = _headers(piece, "inline") | {"content-security-policy": _PAGE_SANDBOX}
            return ApiReply(
                body=piece.content, headers=headers, media_type=f"{HTML_PAGE}; charset=utf-8"
            )
        shown_as = "attachment" if kind == BINARY else "inline"
        charset = "; charset=utf-8" if kind == PLAIN_TEXT else ""
        headers = _headers(piece, shown_as)
        return ApiReply(body=piece.content, headers=headers, media_type=kind + charset)

    async def save_workspace_file(self, request: ApiRequest) -> ApiReply:
        deps, query = self._deps, request.query(SaveQuery)
        path = check_path(query.path)
        found = await deps.read(
            chats.get_for_command, request.caller.actor, request.chat_id, "workspaces.write"
        )
        chat = require_chat(found)
        control = require_workspaces(deps)
        content = await read_body(
            request.receive, request.header("content-length"), MAX_PIECE_BYTES
        )
        try:
            files = await control.files(chat)
            return reply(await files.save(path, content, version=query.version))
        except AgentRefused as error:
            raise explain_refusal(error) from error

    async def _rest(
        self, request: ApiRequest, files: AgentFiles, first: FilePiece
    ) -> AsyncGenerator[bytes]:
        """The whole file by pieces. After a change of users or credentials no piece is sent before
        the caller's access is checked again."""
        piece, sent, checked = first, 0, self._access_changes
        while True:
            content = piece.content[: first.size - sent]
            if checked != self._access_changes:
                checked = self._access_changes
                await self._deps.retry(lambda: self._require_access(request))
            sent += len(content)
            yield content
            if sent == first.size:
                return
            piece = await files.read_piece(first.path, offset=sent, limit=MAX_PIECE_BYTES)
            if piece.version != first.version or not piece.content:
                raise Conflict("The file changed while it was sent.")

    async def _open(self, request: ApiRequest) -> AgentFiles:
        chat = await self._deps.retry(lambda: self._readable(request, request.caller.actor))
        control = require_workspaces(self._deps)
        await audit_workspace_read(self._deps, request.caller, chat)
        try:
            return await control.files(chat)
        except AgentRefused as error:
            raise explain_refusal(error) from error

    async def _readable(self, request: ApiRequest, actor: UserActor) -> Chat:
        """Raises NotFound, and Forbidden for a reader by a share."""
        pool, chat_id = self._deps.pool, request.chat_id
        return require_chat(await chats.get_for_command(pool, actor, chat_id, "workspaces.read"))

    async def _require_access(self, request: ApiRequest) -> None:
        caller = request.caller
        actor = await credentials.check(self._deps.pool, caller.actor, caller.credential_id)
        if actor is None:
            raise NotFound("There is no such chat.")
        await self._readable(request, actor)

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind in ACCESS_KINDS:
            self._access_changes += 1


def media_type(piece: FilePiece, offset: int) -> str:
    """By the bytes alone: a name may lie."""
    found = detect_type(piece.content) if offset == 0 else None
    if found in IMAGE_TYPES:
        return found
    is_end = offset + len(piece.content) >= piece.size
    is_plain = is_text(piece.content, is_beginning=offset == 0, is_end=is_end)
    return PLAIN_TEXT if is_plain else BINARY


def _headers(piece: FilePiece, kind: str) -> dict[str, str]:
    return {
        "content-disposition": content_disposition(kind, clean_file_name(piece.path)),
        "content-security-policy": _SANDBOX,
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
        "x-file-size": str(piece.size),
        "x-file-version": clean_version(piece.version),
    }


def clean_version(text: str) -> str:
    """The agent is not trusted: only what its own versions consist of may be in a header."""
    return "".join(char for char in text if char.isascii() and (char.isalnum() or char == "-"))[:64]


def check_path(path: str) -> str:
    if "\0" in path:
        raise InvalidInput("path", "must not contain a NUL character")
    return path


def explain_refusal(error: AgentRefused) -> ChatdError:
    if error.code in ("agent_outdated", "file_changed"):
        return Conflict(error.message, code=error.code)
    if error.code == "outside_workspace":
        return Forbidden(error.message, code="outside_workspace")
    if error.status == 404:
        return NotFound(error.message)
    if error.status == 400:
        return InvalidInput("path", error.message)
    return Conflict(error.message, code="agent_refused")
