"""Requests builds for a chat's workspace, and waits for them and for the agent.

Each wait has a timeout. Cancelling a wait does not affect the build, which its worker continues.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ChatdError, ToolError, Unavailable
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.ports import Clock, Env, ProvisionResult, ToolContext, WorkspaceRequest
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.entities import (
    AgentHealth,
    AgentRow,
    Build,
    BuildId,
    FieldProblem,
    Template,
    TemplateSpec,
    VersionId,
    Workspace,
)
from chatd.domain.workspace.rules import (
    AmbiguousAgent,
    AwaitAgent,
    NoAgent,
    ReportAmbiguousAgent,
    WorkspaceSnapshot,
    choose_agent,
    start_version,
    workspace_ttl_s,
)
from chatd.domain.workspace.runners import explain_wait
from chatd.domain.workspace.templates import choose_name, generated_name, resolve_parameters
from chatd.store.database.conn import Conn
from chatd.store.workspace import builds, runners, templates, workspaces
from chatd.store.workspace.builds import NewBuild
from chatd.store.workspace.workspaces import CreatedWorkspace, NewWorkspace, WorkspaceNameTaken
from chatd.workspaces.templates import UsableTemplate

# Waits

Ping = Callable[[AgentRow], Awaitable[AgentHealth]]

FIRST_POLL_INTERVAL_S: Final = 0.05
MAX_POLL_INTERVAL_S: Final = 2.0
BUILD_TIMEOUT_S: Final = 600.0
AGENT_START_TIMEOUT_S: Final = 120.0
STARTUP_SCRIPT_TIMEOUT_S: Final = 600.0
AGENT_NOT_READY_TEXT: Final = (
    "The workspace has started, but cannot be used yet. Try a command in a moment; if that fails,"
    " call stop_workspace, then start_workspace."
)
SCRIPTS_UNFINISHED_TEXT: Final = (
    "The workspace can be used, but its start-up script did not succeed: something that it sets up"
    " may be missing."
)


class BuildTimeout(ChatdError):
    """The build still runs after the timeout of the wait."""

    code = "build_late"


class WaitTimeouts(Struct, frozen=True, kw_only=True):
    build_s: float = BUILD_TIMEOUT_S
    agent_s: float = AGENT_START_TIMEOUT_S
    scripts_s: float = STARTUP_SCRIPT_TIMEOUT_S


class PollBackoff:
    """Polls often at first, because most waits are short, then less often."""

    def __init__(self, clock: Clock, timeout_s: float, tag: str) -> None:
        self._clock = clock
        self._until = clock.monotonic() + timeout_s
        self._pause_s = FIRST_POLL_INTERVAL_S
        self._tag = tag

    @property
    def is_long(self) -> bool:
        """Whether the wait takes longer than most."""
        return self._pause_s >= MAX_POLL_INTERVAL_S

    async def more(self) -> bool:
        left = self._until - self._clock.monotonic()
        if left <= 0:
            return False
        await self._clock.sleep(min(self._pause_s, left), self._tag)
        self._pause_s = min(self._pause_s * 1.5, MAX_POLL_INTERVAL_S)
        return True


class BuildWaits:
    def __init__(self, conn: Conn, ping: Ping, clock: Clock, timeouts: WaitTimeouts) -> None:
        self._conn = conn
        self._ping = ping
        self._clock = clock
        self._timeouts = timeouts

    async def build(self, build_id: BuildId, wait_for: Callable[[str], Awaitable[None]]) -> Build:
        """The ended build. `wait_for` is told why it does not begin or go on: its runner is not
        connected, or none takes it. Raises BuildTimeout. Goes on while the database is
        unavailable, and then leaves what was told."""
        poll = PollBackoff(self._clock, self._timeouts.build_s, "build")
        while True:
            with contextlib.suppress(Unavailable):
                found = await builds.get(self._conn, WORKER, build_id)
                if found is not None and not found.active:
                    await wait_for("")
                    return found
                if poll.is_long:
                    await wait_for(await self._reason(build_id))
            if not await poll.more():
                raise BuildTimeout("The build has not ended in time; it is still running.")

    async def _reason(self, build_id: BuildId) -> str:
        waiting = await runners.list_waiting(
            self._conn, WORKER, builds=[build_id], also_taken=True, limit=1
        )
        if not waiting:
            return ""
        found, now = await runners.list_waited_for(self._conn, waiting)
        return explain_wait(waiting[0].needs, waiting[0].runner_id, found, now)

    async def agent(self, agent: AgentRow, result: ProvisionResult) -> ProvisionResult:
        """`result` with the agent's status added. A problem of the agent is not a failure of the
        build."""
        health = await self._wait_until_healthy(agent)
        if isinstance(health, AgentHealth):
            return await self._wait_for_scripts(agent, health, result)
        result = replace(result, agent_status="not_ready", agent_error=health.message)
        return _with_message(result, AGENT_NOT_READY_TEXT)

    async def is_healthy(self, agent: AgentRow) -> bool:
        """Ping the agent once."""
        try:
            await self._ping(agent)
        except (AgentUnreachable, AgentRefused):
            return False
        return True

    async def _wait_until_healthy(
        self, agent: AgentRow
    ) -> AgentHealth | AgentUnreachable | AgentRefused:
        poll = PollBackoff(self._clock, self._timeouts.agent_s, "agent")
        while True:
            try:
                return await self._ping(agent)
            except (AgentUnreachable, AgentRefused) as error:
                failure = error
            if not await poll.more():
                return failure

    async def _wait_for_scripts(
        self, agent: AgentRow, health: AgentHealth, result: ProvisionResult
    ) -> ProvisionResult:
        poll = PollBackoff(self._clock, self._timeouts.scripts_s, "scripts")
        while health.lifecycle in ("created", "starting"):
            if not await poll.more():
                scripts = "startup_scripts_timeout"
                result = replace(result, startup_scripts=scripts, lifecycle_state=health.lifecycle)
                return _with_message(result, SCRIPTS_UNFINISHED_TEXT)
            try:
                health = await self._ping(agent)
            except (AgentUnreachable, AgentRefused):
                continue
        match health.lifecycle:
            case "ready":
                return replace(result, directory=health.directory)
            case "start_error":
                scripts = "startup_scripts_failed"
            case "start_timeout":
                scripts = "startup_scripts_timeout"
            case _:
                scripts = "startup_scripts_unknown"
        result = replace(
            result,
            startup_scripts=scripts,
            lifecycle_state=health.lifecycle,
            directory=health.directory,
        )
        return _with_message(result, SCRIPTS_UNFINISHED_TEXT)


def _with_message(result: ProvisionResult, advice: str) -> ProvisionResult:
    return replace(result, message=f"{result.message} {advice}".strip())


# Requests

SEE_LOG_TEXT: Final = "The user can read the build's log for details."
HOW_TO_CREATE_TEXT: Final = "Call list_templates, then create_workspace."


class NewWorkspacePlaces(Protocol):
    """Where a new workspace is built. Satisfied by `services.runners.RunnerServices`."""

    def new_host(self, backend: str, spec: TemplateSpec) -> str | None:
        """None: the first runner that fits takes it."""
        ...

    async def find_problems(
        self, kind: str, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]: ...


class BuildRequests:
    def __init__(
        self,
        conn: Conn,
        waits: BuildWaits,
        places: NewWorkspacePlaces,
        env: Env,
        *,
        ttl_s: str | None,
        wake_worker: Callable[[], None],
        on_bound: Callable[[ChatId, WorkspaceId], Awaitable[None]],
    ) -> None:
        """`ttl_s`: how long an unused workspace may run, as the operator set it. `wake_worker`
        tells the build worker that there is a build; `on_bound` is called when the workspace of a
        chat has changed, and when it can be used."""
        self._conn = conn
        self._waits = waits
        self._places = places
        self._env = env
        self._ttl_s = ttl_s
        self._wake_worker = wake_worker
        self._on_bound = on_bound

    async def create(
        self, context: ToolContext, request: WorkspaceRequest, usable: UsableTemplate
    ) -> ProvisionResult:
        given = resolve_parameters(usable.version.parameters, request.parameters)
        problems = given.problems or await self._find_problems(usable, given.values)
        if problems:
            result = ProvisionResult(template_id=str(usable.template.id))
            return _refused(result, problems)
        new = self._new_workspace(context, request, usable, given.values)
        return await self.finish_creation(
            context, await self._insert(context, new, usable.template)
        )

    async def finish_creation(
        self, context: ToolContext, created: CreatedWorkspace
    ) -> ProvisionResult:
        """Wait for the first build of a workspace and for its agent."""
        self._wake_worker()
        await self._on_bound(context.chat.id, created.workspace.id)
        result = ProvisionResult(
            created=True,
            workspace_name=created.workspace.name,
            workspace_id=str(created.workspace.id),
            build_id=str(created.build.id),
        )
        return await self._finish(context, created.workspace.id, created.build.id, result)

    async def start(
        self, context: ToolContext, seen: WorkspaceSnapshot, after: int, given: Mapping[str, str]
    ) -> ProvisionResult | None:
        """None if another build was inserted first."""
        assert seen.workspace is not None
        template = await templates.get(self._conn, seen.workspace.template_id)
        if template is None:
            raise ToolError(f"The workspace's template is gone. {HOW_TO_CREATE_TEXT}")
        version_id, updated = start_version(template, seen.build)
        version = await templates.get_version(self._conn, version_id)
        if version is None:
            raise ToolError(f"The workspace's template is gone. {HOW_TO_CREATE_TEXT}")
        before = None if seen.build is None else seen.build.params
        values = resolve_parameters(version.parameters, given, before)
        if values.problems:
            return _refused(workspace_result(seen), values.problems)
        new = self._new_build(context, seen.workspace, after, version_id)
        build = await builds.insert(
            self._conn, WORKER, replace(new, transition="start", params=values.values)
        )
        if build is None:
            return None
        self._wake_worker()
        message = "It was updated to the active version of its template." if updated else ""
        result = replace(
            workspace_result(seen), started=True, build_id=str(build.id), message=message
        )
        return await self._finish(context, seen.workspace.id, build.id, result)

    async def stop(
        self, context: ToolContext, seen: WorkspaceSnapshot, after: int
    ) -> ProvisionResult | None:
        """None if another build was inserted first."""
        assert seen.workspace is not None
        if seen.build is None:
            return no_workspace_result(deleted=False)
        version = seen.build.template_version_id
        new = self._new_build(context, seen.workspace, after, version)
        build = await builds.insert(self._conn, WORKER, replace(new, params=seen.build.params))
        if build is None:
            return None
        self._wake_worker()
        result = replace(workspace_result(seen), stopped=True)
        failed = await self.wait_for_build(context, build.id, result, "stop_workspace")
        return failed or replace(result, build_id=str(build.id))

    async def find_answering_agent(self, seen: WorkspaceSnapshot) -> AgentRow | None:
        """The agent, if it answers although its row says that it is gone."""
        try:
            agent = choose_agent(seen.agents)
        except (NoAgent, AmbiguousAgent):
            return None
        return agent if await self._waits.is_healthy(agent) else None

    async def wait_for_build(
        self,
        context: ToolContext,
        build_id: BuildId,
        result: ProvisionResult,
        tool: str = "start_workspace",
    ) -> ProvisionResult | None:
        """None if the build succeeded, else the result to report. `tool` is the tool to call
        again."""
        result = replace(result, build_id=str(build_id))
        try:
            build = await self._waits.build(build_id, context.wait_for)
        except BuildTimeout as error:
            text = f"{error.message} Call {tool} later to wait for it."
            return _failure(result, text, code=error.code)
        if build.status == "succeeded":
            return None
        reason = build.error or (
            "It was cancelled." if build.status == "canceled" else "It failed."
        )
        text = f"The build failed: {reason} {SEE_LOG_TEXT} Call {tool} to try again."
        return _failure(result, text, code=build.error_code)

    async def wait_for_agent(
        self, chat: Chat, result: ProvisionResult, step: AwaitAgent | ReportAmbiguousAgent
    ) -> ProvisionResult:
        """Wait for the agent of a running workspace."""
        if isinstance(step, ReportAmbiguousAgent):
            return replace(result, agent_status="selection_error", agent_error=step.error)
        agent = step.agent
        result = replace(result, isolation=agent.isolation, directory=agent.directory)
        result = await self._waits.agent(agent, result)
        await self._on_bound(chat.id, agent.workspace_id)
        return result

    async def _finish(
        self,
        context: ToolContext,
        workspace_id: WorkspaceId,
        build_id: BuildId,
        result: ProvisionResult,
    ) -> ProvisionResult:
        """Wait for the build, then for the agent."""
        if (failed := await self.wait_for_build(context, build_id, result)) is not None:
            return failed
        snapshot = await workspaces.load_snapshot(self._conn, WORKER, workspace_id)
        agents = () if snapshot is None else snapshot.agents
        try:
            agent = choose_agent(agents)
        except NoAgent as error:
            return replace(result, agent_status="no_agent", agent_error=error.message)
        except AmbiguousAgent as error:
            return replace(result, agent_status="selection_error", agent_error=error.message)
        step = AwaitAgent(agent=agent, dial=True)
        return await self.wait_for_agent(context.chat, result, step)

    def _new_build(
        self, context: ToolContext, workspace: Workspace, after: int, version: VersionId
    ) -> NewBuild:
        return NewBuild(
            id=BuildId(self._env.new_id()),
            workspace_id=workspace.id,
            after=after,
            transition="stop",
            version_id=version,
            initiator_id=context.chat.owner_id,
            reason="tool",
            made_by=f"{context.call_key}:{after}",
        )

    async def _find_problems(
        self, usable: UsableTemplate, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        return await self._places.find_problems(
            usable.template.backend, usable.version.spec, values
        )

    def _new_workspace(
        self,
        context: ToolContext,
        request: WorkspaceRequest,
        usable: UsableTemplate,
        values: Mapping[str, str],
    ) -> NewWorkspace:
        workspace_id = self._env.new_id()
        return NewWorkspace(
            id=WorkspaceId(workspace_id),
            build_id=BuildId(self._env.new_id()),
            owner_id=context.chat.owner_id,
            template_id=usable.template.id,
            version_id=usable.version.id,
            name=choose_name(request.name, usable.template.name, workspace_id.bytes),
            host_id=self._places.new_host(usable.template.backend, usable.version.spec),
            ttl_s=workspace_ttl_s(self._ttl_s, usable.template),
            params=values,
            reason="tool",
            made_by=request.key,
        )

    async def _insert(
        self, context: ToolContext, new: NewWorkspace, template: Template
    ) -> CreatedWorkspace:
        """If the name is taken, try once more with a suffix from the random id."""
        chat = context.chat
        try:
            return await workspaces.create(
                self._conn, WORKER, new, chat_id=chat.id, fence=context.fence
            )
        except WorkspaceNameTaken:
            other = generated_name(new.name or template.name, new.id.bytes[2:])
            return await workspaces.create(
                self._conn, WORKER, replace(new, name=other), chat_id=chat.id, fence=context.fence
            )


def workspace_result(seen: WorkspaceSnapshot) -> ProvisionResult:
    if seen.workspace is None:
        return ProvisionResult()
    return ProvisionResult(workspace_name=seen.workspace.name, workspace_id=str(seen.workspace.id))


def no_workspace_result(*, deleted: bool) -> ProvisionResult:
    text = "The chat's workspace is deleted." if deleted else "This chat has no workspace."
    return ProvisionResult(error=f"{text} {HOW_TO_CREATE_TEXT}")


def _failure(result: ProvisionResult, error: str, *, code: str = "") -> ProvisionResult:
    return replace(
        result, created=False, started=False, stopped=False, error=error, error_code=code
    )


def _refused(result: ProvisionResult, problems: Sequence[FieldProblem]) -> ProvisionResult:
    listed = " ".join(f"{problem.field}: {problem.detail}" for problem in problems)
    text = f"The parameters do not fit: {listed} See read_template."
    return replace(_failure(result, text, code="parameters"), validations=tuple(problems))
