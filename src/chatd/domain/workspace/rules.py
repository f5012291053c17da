"""Decisions over workspace rows: the next step to create, start or stop, agent choice, deadlines.

Pure: the caller passes rows and the time, performs the step, and decides again on fresh rows.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.access.permissions import Permission
from chatd.domain.errors import ChatdError
from chatd.domain.workspace.entities import (
    AgentRow,
    AgentStatus,
    Build,
    BuildId,
    BuildTransition,
    Template,
    VersionId,
    Workspace,
)

AGENT_DISCONNECTED_AFTER_S: Final = 30.0
"""Age of the last contact at which an agent counts as disconnected."""
AGENT_LOST_AFTER_S: Final = 90.0
"""An agent disconnected for this long that also refuses connections is lost."""
CHAT_AGENT_SUFFIX: Final = "-chatd-chat"
"""An agent with this suffix is the one for chats, regardless of the display order."""


class NoAgent(ChatdError):
    """The latest build has no agents: the workspace is stopped, or was never started."""

    code = "no_agent"


class AmbiguousAgent(ChatdError):
    code = "agent_selection"


def agent_status(
    agent: AgentRow, now: datetime, *, inactive_s: float = AGENT_DISCONNECTED_AFTER_S
) -> AgentStatus:
    """Use one `now` for all agents of a batch."""
    disconnected_at = agent.disconnected_at
    if agent.last_connected_at is None:
        if disconnected_at is not None:
            return "disconnected"
        late = now - agent.created_at > timedelta(seconds=agent.connection_timeout_s)
        return "timeout" if agent.connection_timeout_s > 0 and late else "connecting"
    if disconnected_at is not None and disconnected_at >= agent.last_connected_at:
        return "disconnected"
    silent = now - agent.last_connected_at > timedelta(seconds=inactive_s)
    return "disconnected" if silent else "connected"


def choose_agent(agents: Iterable[AgentRow]) -> AgentRow:
    """The agent that a chat uses. Raises NoAgent, or AmbiguousAgent if several have the suffix."""
    roots = [agent for agent in agents if agent.parent_id is None]
    if not roots:
        raise NoAgent("The workspace has no running agent. Start it with start_workspace.")
    named = [agent for agent in roots if agent.name.lower().endswith(CHAT_AGENT_SUFFIX)]
    if len(named) > 1:
        names = ", ".join(sorted(agent.name for agent in named))
        text = f"Several agents of the workspace are named for chats ({names}); keep one of them."
        raise AmbiguousAgent(text)
    return named[0] if named else min(roots, key=_display_key)


def _display_key(agent: AgentRow) -> tuple[int, str, str, int]:
    return agent.display_order, agent.name.lower(), agent.name, agent.id.int


class WorkspaceSnapshot(Struct, frozen=True, kw_only=True):
    """A chat's workspace, its latest build and the agents of that build, in one read."""

    workspace: Workspace | None = None
    build: Build | None = None
    agents: Sequence[AgentRow] = ()
    now: datetime


class CreateWorkspace(Struct, frozen=True, kw_only=True):
    """Create a workspace, because the chat has none or only an unusable one."""

    because: Literal["none", "deleted", "failed", "unreachable"]


class AwaitBuild(Struct, frozen=True, kw_only=True):
    """Wait for this build, then read the rows and decide again."""

    build_id: BuildId


class AwaitAgent(Struct, frozen=True, kw_only=True):
    """The workspace runs. Without `dial` the agent is connected, and only its startup script may
    still run."""

    agent: AgentRow
    dial: bool


class ReportAmbiguousAgent(Struct, frozen=True, kw_only=True):
    """The workspace runs, but several agents are named for chats."""

    error: str


class AlreadyStopped(Struct, frozen=True, kw_only=True):
    build_id: BuildId


class NoWorkspace(Struct, frozen=True, kw_only=True):
    deleted: bool


class InsertBuild(Struct, frozen=True, kw_only=True):
    """Insert a build if the latest build number is still `after`."""

    after: int


def next_for_create(
    snapshot: WorkspaceSnapshot,
) -> CreateWorkspace | AwaitBuild | AlreadyStopped | AwaitAgent | ReportAmbiguousAgent:
    """Idempotent: a chat with a usable workspace gets no second one."""
    if snapshot.workspace is None:
        return CreateWorkspace(because="none")
    if snapshot.workspace.deleted:
        return CreateWorkspace(because="deleted")
    build = snapshot.build
    if build is None:
        return CreateWorkspace(because="failed")
    if build.active:
        return AwaitBuild(build_id=build.id)
    if build.status != "succeeded" or build.transition == "delete":
        return CreateWorkspace(because="failed")
    if build.transition == "stop":
        return AlreadyStopped(build_id=build.id)
    try:
        agent = choose_agent(snapshot.agents)
    except NoAgent:
        return CreateWorkspace(because="unreachable")
    except AmbiguousAgent as error:
        return ReportAmbiguousAgent(error=error.message)
    status = agent_status(agent, snapshot.now)
    if status in ("disconnected", "timeout"):
        return CreateWorkspace(because="unreachable")
    return AwaitAgent(agent=agent, dial=status == "connecting")


def next_for_start(
    snapshot: WorkspaceSnapshot,
) -> NoWorkspace | AwaitBuild | InsertBuild | AwaitAgent | ReportAmbiguousAgent:
    """A failed build is retried; a running workspace is not built again."""
    if snapshot.workspace is None or snapshot.workspace.deleted:
        return NoWorkspace(deleted=snapshot.workspace is not None)
    build = snapshot.build
    if build is None:
        return InsertBuild(after=0)
    if build.active:
        return AwaitBuild(build_id=build.id)
    if build.status != "succeeded" or build.transition != "start":
        return InsertBuild(after=build.build_number)
    try:
        return AwaitAgent(agent=choose_agent(snapshot.agents), dial=True)
    except NoAgent:
        return InsertBuild(after=build.build_number)
    except AmbiguousAgent as error:
        return ReportAmbiguousAgent(error=error.message)


def next_for_stop(
    snapshot: WorkspaceSnapshot,
) -> NoWorkspace | AwaitBuild | InsertBuild | AlreadyStopped:
    """Only a successful stop build proves that nothing runs."""
    if snapshot.workspace is None or snapshot.workspace.deleted:
        return NoWorkspace(deleted=snapshot.workspace is not None)
    build = snapshot.build
    if build is None:
        return InsertBuild(after=0)
    if build.active:
        return AwaitBuild(build_id=build.id)
    if build.transition == "stop" and build.status == "succeeded":
        return AlreadyStopped(build_id=build.id)
    return InsertBuild(after=build.build_number)


def start_version(template: Template, last: Build | None) -> tuple[VersionId, bool]:
    """The version to start, and whether it is an update that the user did not request."""
    if last is None:
        return template.active_version_id, False
    if not template.require_active_version:
        return last.template_version_id, False
    return template.active_version_id, last.template_version_id != template.active_version_id


Remedy = Literal["restart", "retry"]


def remedy_after_timeout(agent: AgentRow, now: datetime) -> Remedy:
    """The advice to the model after connecting to the latest agent timed out.

    A restart ends all running processes, so it needs a second sign: the agent never connected, or
    it has been disconnected for long. One late health check is not enough.
    """
    status = agent_status(agent, now)
    if status == "timeout":
        return "restart"
    if status != "disconnected":
        return "retry"
    since = agent.last_connected_at or agent.created_at
    if agent.disconnected_at is not None:
        since = max(since, agent.disconnected_at)
    return "restart" if now - since >= timedelta(seconds=AGENT_LOST_AFTER_S) else "retry"


def build_permission(transition: BuildTransition) -> Permission:
    """An administrator may stop or delete another user's workspace, and not start it."""
    return "workspaces.write" if transition == "start" else "workspaces.control"


def workspace_ttl_s(setting: str | None, template: Template) -> int:
    """How long a new unused workspace runs: the operator's setting if valid, else the
    template's."""
    try:
        seconds = int(setting or "")
    except ValueError:
        return template.default_ttl_s
    return seconds if seconds > 0 else template.default_ttl_s


_MIN_BUMP_SHARE: Final = 0.05


def bumped_deadline(
    deadline: datetime | None, max_deadline: datetime | None, *, bump_s: int, now: datetime
) -> datetime | None:
    """The deadline after activity; None if unchanged. It never moves back, and only by at least 5 %
    of `bump_s`, so that not every activity writes the row."""
    if deadline is None or bump_s <= 0:
        return None
    bump = timedelta(seconds=bump_s)
    if deadline > now + bump * (1 - _MIN_BUMP_SHARE):
        return None
    later = now + bump
    if max_deadline is not None:
        later = min(later, max_deadline)
    return later if later > deadline else None
