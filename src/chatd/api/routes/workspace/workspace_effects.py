"""Routes by which a person stops a command of a chat's workspace, and reverts a file.

Only the owner does that, as with terminals. Both are in the audit log, before they act.
"""

from collections.abc import Mapping
from typing import Annotated, Final
from uuid import NAMESPACE_OID, uuid5

from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import BROWSE_CODES
from chatd.api.operations import audit_workspace_read
from chatd.api.pages import ItemPosition, Paging, cut_whole
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.builds import require_workspaces
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.routes.workspace.workspace_files import MAX_PATH_CHARS
from chatd.api.schemas.messages import from_rows
from chatd.api.schemas.workspaces import SCOPE_TEXT
from chatd.domain.access.permissions import Permission
from chatd.domain.chat.row import Chat
from chatd.domain.description import describe
from chatd.domain.errors import ChatdError, Conflict, InvalidInput, NotFound
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.workspace.agent_api import AgentRefused, DiffScope, ProcessInfo, ProcessSignal
from chatd.services.workspaces.workspaces import WorkspaceControl
from chatd.store.account import audit
from chatd.store.chat import chats
from chatd.store.workspace import bindings

# Commands of a chat's workspace, and what people do to them and to its files. Docstrings here are
# part of the OpenAPI document.

MAX_PROCESS_ID_CHARS: Final = 64

ProcessId = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_PROCESS_ID_CHARS, pattern="^[0-9A-Za-z_-]+$"),
    describe("The id of the command, as tools tell it.", "p7"),
]
_RelativePath = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_PATH_CHARS),
    describe("The path of the file, from the repository on.", "src/app.py"),
]


class ProcessItem(Struct, frozen=True, kw_only=True):
    """A command that the chat started in its workspace."""

    id: ProcessId
    command: Annotated[str, describe("The command.", "npm run dev")]
    background: Annotated[bool, describe("It was started to go on in the background.")]
    running: Annotated[bool, describe("It has not ended.")]
    exit_code: Annotated[int | None, describe("Its exit code, once it has ended.", 0)]


class ProcessPage(ListPage[ProcessItem], frozen=True, kw_only=True):
    """A page of the commands of a chat: running ones first, then the newest first."""

    processes: Annotated[
        tuple[ProcessItem, ...],
        describe("All commands, on the first page, for clients of earlier versions. Use `items`."),
    ]


class SignalBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal to a command and to all that it started."""

    process_id: ProcessId
    signal: Annotated[
        ProcessSignal,
        describe("`terminate` asks it to end, `kill` ends it at once.", "terminate"),
    ] = "terminate"


class RevertBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file to put back."""

    scope: Annotated[DiffScope, Meta(description=SCOPE_TEXT, examples=["turn"])]
    repo_root: Annotated[
        str,
        Meta(min_length=1, max_length=MAX_PATH_CHARS),
        describe("The path of the repository, as the diff names it.", "/home/dev/app"),
    ]
    path: _RelativePath
    old_path: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_PATH_CHARS)] | None,
        describe("The former name of a renamed file: it is put back too.", "src/main.py"),
    ] = None


_SIGNAL: Final = BodySpec(SignalBody)
_REVERT: Final = BodySpec(RevertBody)


class WorkspaceEffectRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/workspace/processes",
                permission="workspaces.read",
                summary="List the commands that a chat started in its workspace",
                handle=self.list_processes,
                query=ListQuery,
                replies={200: ProcessPage},
                errors=BROWSE_CODES,
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/workspace/processes/signal",
                permission="workspaces.write",
                summary="Stop a command that a chat started in its workspace",
                description="The reply has the command as it is shortly after the signal.",
                handle=self.signal_process,
                body_spec=_SIGNAL,
                replies={200: ProcessItem},
                errors=(*BROWSE_CODES, "not_running"),
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/workspace/revert",
                permission="workspaces.write",
                summary="Put one file back to its state before the turn, the chat or the changes",
                description=(
                    "Refused while the chat runs, or another chat in the same workspace, such as a"
                    " subagent. A file that was not there then is deleted. Of the"
                    " scope `git` the index is reset too."
                ),
                handle=self.revert_file,
                body_spec=_REVERT,
                replies={204: None},
                errors=(*BROWSE_CODES, "chat_busy", "not_reverted"),
            ),
        )

    async def list_processes(self, request: ApiRequest) -> ApiReply:
        chat, control = await self._open(request, "workspaces.read")
        await audit_workspace_read(self._deps, request.caller, chat)
        try:
            found = await (await control.effects(chat)).processes()
        except AgentRefused as error:
            raise _explain(error) from error
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        every = tuple(map(_item, found))
        shown, next_cursor = cut_whole(paging, every, lambda item: uuid5(NAMESPACE_OID, item.id))
        return reply(
            ProcessPage(
                items=tuple(shown),
                has_more=next_cursor is not None,
                next_cursor=next_cursor,
                processes=every if paging.position is None else (),
            )
        )

    async def signal_process(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_SIGNAL)
        chat, control = await self._open(request, "workspaces.write")
        detail = {"process_id": body.process_id, "signal": body.signal}
        await self._record(request, chat, "process.signal", detail)
        try:
            effects = await control.effects(chat)
            return reply(_item(await effects.signal(body.process_id, body.signal)))
        except AgentRefused as error:
            raise _explain(error) from error

    async def revert_file(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_REVERT)
        chat, control = await self._open(request, "workspaces.write")
        await self._require_idle(request, chat)
        detail = {"scope": body.scope, "repository": body.repo_root, "path": body.path}
        await self._record(request, chat, "file.revert", detail)
        paths = (body.path,) if body.old_path is None else (body.path, body.old_path)
        try:
            await (await control.effects(chat)).revert(body.scope, body.repo_root, paths)
        except AgentRefused as error:
            raise _explain(error) from error
        return NO_CONTENT

    async def _require_idle(self, request: ApiRequest, chat: Chat) -> None:
        """Neither the chat nor another of its workspace, such as a subagent, changes files now.

        Not locked: a turn that begins after this check meets the revert as it meets a command in
        the owner's terminal, and the file has in the end what one of both has written."""
        if chat.status not in ("waiting", "error"):
            raise Conflict(
                "The chat runs and may change the file. Stop it or wait for its end.",
                code="chat_busy",
            )
        deps, actor, workspace = self._deps, request.caller.actor, chat.workspace_id
        if workspace is None:
            return
        title = await deps.read(bindings.find_running, actor, workspace)
        if title is not None:
            raise Conflict(
                f"The chat «{title}» runs in the same workspace and may change the file. Stop it"
                " or wait for its end.",
                code="chat_busy",
            )

    async def _open(
        self, request: ApiRequest, permission: Permission
    ) -> tuple[Chat, WorkspaceControl]:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        chat = require_chat(await deps.read(chats.get_for_command, actor, chat_id, permission))
        return chat, require_workspaces(deps)

    async def _record(
        self, request: ApiRequest, chat: Chat, action: str, detail: Mapping[str, object]
    ) -> None:
        deps = self._deps
        if chat.workspace_id is None:
            raise Conflict("The chat has no workspace.", code="no_workspace")
        author = deps.author(request)
        await deps.retry(
            lambda: audit.record(
                deps.pool,
                author.actor,
                ip=author.ip,
                action=f"workspace.{action}",
                object_type="workspace",
                object_id=chat.workspace_id,
                detail={"chat_id": str(chat.id), **detail},
            )
        )


def _item(process: ProcessInfo) -> ProcessItem:
    return from_rows(ProcessItem, process)


def _explain(error: AgentRefused) -> ChatdError:
    if error.code in ("agent_outdated", "not_running", "not_reverted"):
        return Conflict(error.message, code=error.code)
    if error.status == 404:
        return NotFound(error.message)
    if error.status == 400:
        return InvalidInput("path", error.message)
    return Conflict(error.message, code="agent_refused")
