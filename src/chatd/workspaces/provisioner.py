"""Creates, starts and stops the workspace of a chat on behalf of its owner.

Each step reads the rows, lets `domain.workspace.rules` decide, acts and repeats: another replica or
user may act on the same workspace at the same time.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError
from chatd.domain.ports import ProvisionResult, ToolContext, WorkspaceRequest
from chatd.domain.workspace.rules import (
    AlreadyStopped,
    AwaitAgent,
    AwaitBuild,
    CreateWorkspace,
    InsertBuild,
    NoWorkspace,
    ReportAmbiguousAgent,
    WorkspaceSnapshot,
    next_for_create,
    next_for_start,
    next_for_stop,
)
from chatd.store.chat import chats
from chatd.store.database.conn import Conn
from chatd.store.workspace import workspaces
from chatd.workspaces.build_requests import BuildRequests, no_workspace_result, workspace_result
from chatd.workspaces.templates import TemplateCatalog

MAX_PROVISION_ATTEMPTS: Final = 5
"""How often a step is repeated if another build of the workspace ran or was inserted first."""


class WorkspaceProvisioner:
    """Creates, starts and stops workspaces for the chat's owner. Raises ToolError for invalid
    requests. All waits are bounded; after a cancel the build worker completes the build."""

    def __init__(self, conn: Conn, catalog: TemplateCatalog, requests: BuildRequests) -> None:
        self._conn = conn
        self._catalog = catalog
        self._requests = requests

    async def list_templates(self, chat: Chat, *, query: str, page: int) -> Struct:
        return await self._catalog.list_page(
            chat.owner_id, query=query, page=page, project_id=chat.project_id
        )

    async def read_template(self, chat: Chat, template: str) -> Struct:
        """`template` is an id or a name."""
        return await self._catalog.read(chat.owner_id, template)

    async def create(self, context: ToolContext, request: WorkspaceRequest) -> ProvisionResult:
        created = await workspaces.find_by_request_key(self._conn, WORKER, request.key)
        if created is not None:
            # A worker that is gone ran this call before: its workspace is the result.
            return await self._requests.finish_creation(context, created)
        usable = await self._catalog.get_usable(context.chat.owner_id, request.template)
        for _ in range(MAX_PROVISION_ATTEMPTS):
            seen = await self._load_snapshot(context.chat)
            result = workspace_result(seen)
            match next_for_create(seen):
                case AwaitBuild(build_id=build_id):
                    if (
                        failed := await self._requests.wait_for_build(context, build_id, result)
                    ) is not None:
                        return failed
                case AlreadyStopped():
                    text = "The chat's workspace is stopped. Start it with start_workspace."
                    return replace(result, already_exists=True, no_build=True, message=text)
                case AwaitAgent() | ReportAmbiguousAgent() as step:
                    result = replace(result, already_exists=True, no_build=True)
                    return await self._requests.wait_for_agent(context.chat, result, step)
                case CreateWorkspace(because="unreachable"):
                    # Rows may be late: ping the agent before a workspace with a chat's files is
                    # replaced.
                    if (agent := await self._requests.find_answering_agent(seen)) is None:
                        return await self._requests.create(context, request, usable)
                    result = replace(result, already_exists=True, no_build=True)
                    step = AwaitAgent(agent=agent, dial=True)
                    return await self._requests.wait_for_agent(context.chat, result, step)
                case CreateWorkspace():
                    return await self._requests.create(context, request, usable)
        raise _busy()

    async def start(self, context: ToolContext, parameters: Mapping[str, str]) -> ProvisionResult:
        for _ in range(MAX_PROVISION_ATTEMPTS):
            seen = await self._load_snapshot(context.chat)
            result = workspace_result(seen)
            match next_for_start(seen):
                case NoWorkspace(deleted=deleted):
                    return no_workspace_result(deleted=deleted)
                case AwaitBuild(build_id=build_id):
                    if (
                        failed := await self._requests.wait_for_build(context, build_id, result)
                    ) is not None:
                        return failed
                case AwaitAgent() | ReportAmbiguousAgent() as step:
                    result = replace(result, started=True, no_build=True)
                    return await self._requests.wait_for_agent(context.chat, result, step)
                case InsertBuild(after=after):
                    done = await self._requests.start(context, seen, after, parameters)
                    if done is not None:
                        return done
        raise _busy()

    async def stop(self, context: ToolContext) -> ProvisionResult:
        for _ in range(MAX_PROVISION_ATTEMPTS):
            seen = await self._load_snapshot(context.chat)
            result = workspace_result(seen)
            match next_for_stop(seen):
                case NoWorkspace(deleted=deleted):
                    return no_workspace_result(deleted=deleted)
                case AwaitBuild(build_id=build_id):
                    # Whether it succeeds or not, the rows afterwards decide.
                    late = await self._requests.wait_for_build(
                        context, build_id, result, "stop_workspace"
                    )
                    if late is not None and late.error_code == "build_late":
                        return late
                case AlreadyStopped():
                    return replace(result, stopped=True, no_build=True)
                case InsertBuild(after=after):
                    done = await self._requests.stop(context, seen, after)
                    if done is not None:
                        return done
        raise _busy()

    async def _load_snapshot(self, chat: Chat) -> WorkspaceSnapshot:
        """Read again: the workspace may have changed since the turn began."""
        row = await chats.get(self._conn, WORKER, chat.id)
        found = None
        if row is not None and row.workspace_id is not None:
            found = await workspaces.load_snapshot(self._conn, WORKER, row.workspace_id)
        # A chat never uses another owner's workspace, even if its row names one.
        if found is None or found.workspace is None or found.workspace.owner_id != chat.owner_id:
            return WorkspaceSnapshot(now=chat.updated_at)
        return found


def _busy() -> ToolError:
    return ToolError("Other builds of this workspace keep starting. Try again later.")
