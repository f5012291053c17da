"""What holds of a workspace, and what to do next about it: decisions over rows.

Owns the judgement behind creating, starting and stopping, who is the agent to talk to and how it
is. Takes all rows and the time as arguments; waiting, building and dialling are for others, who
ask again with fresh rows whenever something they waited for is over.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.errors import ChatdError
from chatd.domain.workspace.entities import (
    AgentRow,
    AgentStatus,
    Build,
    BuildId,
    Template,
    VersionId,
    Workspace,
)

AGENT_DISCONNECTED_AFTER_S: Final = 30.0
"""An agent unheard of for this long counts as disconnected."""
AGENT_LOST_AFTER_S: Final = 90.0
"""Disconnected for this long, and not to be dialled: no blip any more."""
CHAT_AGENT_SUFFIX: Final = "-chatd-chat"
"""The agent whose name ends so is the one for chats, wherever it stands in the order."""


class NoAgent(ChatdError):
    """The latest build has no agents: the workspace is stopped, or was never started."""

    code = "no_agent"


class AmbiguousAgent(ChatdError):
    code = "agent_selection"


def agent_status(
    agent: AgentRow, now: datetime, *, inactive_s: float = AGENT_DISCONNECTED_AFTER_S
) -> AgentStatus:
    """Judge all agents of a batch by one `now`."""
    gone = agent.disconnected_at
    if agent.last_connected_at is None:
        if gone is not None:
            return "disconnected"
        late = now - agent.created_at > timedelta(seconds=agent.connection_timeout_s)
        return "timeout" if agent.connection_timeout_s > 0 and late else "connecting"
    if gone is not None and gone >= agent.last_connected_at:
        return "disconnected"
    silent = now - agent.last_connected_at > timedelta(seconds=inactive_s)
    return "disconnected" if silent else "connected"


def choose_agent(agents: Iterable[AgentRow]) -> AgentRow:
    """The one a chat talks to. Raises NoAgent, or AgentUnclear if several claim to be it."""
    roots = [agent for agent in agents if agent.parent_id is None]
    if not roots:
        raise NoAgent("The workspace has no running agent. Start it with start_workspace.")
    claims = [agent for agent in roots if agent.name.lower().endswith(CHAT_AGENT_SUFFIX)]
    if len(claims) > 1:
        names = ", ".join(sorted(agent.name for agent in claims))
        text = f"Several agents of the workspace are named for chats ({names}); leave one of them."
        raise AmbiguousAgent(text)
    return claims[0] if claims else min(roots, key=_place)


def _place(agent: AgentRow) -> tuple[int, str, str, int]:
    return agent.display_order, agent.name.lower(), agent.name, agent.id.int


class WorkspaceSnapshot(Struct, frozen=True, kw_only=True):
    """All that is known of a chat's workspace, read in one moment. `agents` are those of the
    latest build."""

    workspace: Workspace | None = None
    build: Build | None = None
    agents: Sequence[AgentRow] = ()
    now: datetime


class CreateWorkspace(Struct, frozen=True, kw_only=True):
    """Create a workspace. `because` the chat has none, or one that is of no use any more."""

    because: Literal["none", "deleted", "failed", "unreachable"]


class AwaitBuild(Struct, frozen=True, kw_only=True):
    """Wait for this very build, read again, ask again."""

    build_id: BuildId


class AwaitAgent(Struct, frozen=True, kw_only=True):
    """It runs already. Without `dial` the agent is known to be there, only its start-up script
    has to be waited for."""

    agent: AgentRow
    dial: bool


class ReportAmbiguousAgent(Struct, frozen=True, kw_only=True):
    """It runs, and nobody can say which agent to talk to."""

    error: str


class AlreadyStopped(Struct, frozen=True, kw_only=True):
    build_id: BuildId


class NoWorkspace(Struct, frozen=True, kw_only=True):
    deleted: bool


class InsertBuild(Struct, frozen=True, kw_only=True):
    """Insert a build, if the latest is still the one that was seen."""

    after: int


def next_for_create(
    seen: WorkspaceSnapshot,
) -> CreateWorkspace | AwaitBuild | AlreadyStopped | AwaitAgent | ReportAmbiguousAgent:
    """Creating is idempotent: a chat whose workspace can be used gets no second one."""
    if seen.workspace is None:
        return CreateWorkspace(because="none")
    if seen.workspace.deleted:
        return CreateWorkspace(because="deleted")
    build = seen.build
    if build is None:
        return CreateWorkspace(because="failed")
    if build.active:
        return AwaitBuild(build_id=build.id)
    if build.status != "succeeded" or build.transition == "delete":
        return CreateWorkspace(because="failed")
    if build.transition == "stop":
        return AlreadyStopped(build_id=build.id)
    try:
        agent = choose_agent(seen.agents)
    except NoAgent:
        return CreateWorkspace(because="unreachable")
    except AmbiguousAgent as error:
        return ReportAmbiguousAgent(error=error.message)
    status = agent_status(agent, seen.now)
    if status in ("disconnected", "timeout"):
        return CreateWorkspace(because="unreachable")
    return AwaitAgent(agent=agent, dial=status == "connecting")


def next_for_start(
    seen: WorkspaceSnapshot,
) -> NoWorkspace | AwaitBuild | InsertBuild | AwaitAgent | ReportAmbiguousAgent:
    """A failed build is tried again; a running workspace is not built a second time."""
    if seen.workspace is None or seen.workspace.deleted:
        return NoWorkspace(deleted=seen.workspace is not None)
    build = seen.build
    if build is None:
        return InsertBuild(after=0)
    if build.active:
        return AwaitBuild(build_id=build.id)
    if build.status != "succeeded" or build.transition != "start":
        return InsertBuild(after=build.build_number)
    try:
        return AwaitAgent(agent=choose_agent(seen.agents), dial=True)
    except NoAgent:
        return InsertBuild(after=build.build_number)
    except AmbiguousAgent as error:
        return ReportAmbiguousAgent(error=error.message)


def next_for_stop(
    seen: WorkspaceSnapshot,
) -> NoWorkspace | AwaitBuild | InsertBuild | AlreadyStopped:
    """Only a stop that has succeeded is proof that nothing runs."""
    if seen.workspace is None or seen.workspace.deleted:
        return NoWorkspace(deleted=seen.workspace is not None)
    build = seen.build
    if build is None:
        return InsertBuild(after=0)
    if build.active:
        return AwaitBuild(build_id=build.id)
    if build.transition == "stop" and build.status == "succeeded":
        return AlreadyStopped(build_id=build.id)
    return InsertBuild(after=build.build_number)


def start_version(template: Template, last: Build | None) -> tuple[VersionId, bool]:
    """Which version to start, and whether that is an update the user did not ask for."""
    if last is None:
        return template.active_version_id, False
    if not template.require_active_version:
        return last.template_version_id, False
    return template.active_version_id, last.template_version_id != template.active_version_id


Remedy = Literal["restart", "retry"]


def remedy_after_timeout(agent: AgentRow, now: datetime) -> Remedy:
    """What to tell the model when the latest agent could not be dialled in time.

    A restart ends everything that runs, so it takes two signs: the dial that timed out, and an
    agent that never came or has been gone for long. One late heartbeat is not a sign.
    """
    status = agent_status(agent, now)
    if status == "timeout":
        return "restart"
    if status != "disconnected":
        return "retry"
    seen = agent.last_connected_at or agent.created_at
    gone = agent.disconnected_at
    since = gone if gone is not None and gone >= seen else seen
    return "restart" if now - since >= timedelta(seconds=AGENT_LOST_AFTER_S) else "retry"


def workspace_ttl_s(setting: str | None, template: Template) -> int:
    """How long a new workspace may run unused: the operator's word if it is one, else the
    template's."""
    try:
        seconds = int(setting or "")
    except ValueError:
        return template.default_ttl_s
    return seconds if seconds > 0 else template.default_ttl_s


_BUMP_AFTER: Final = 0.05


def bumped_deadline(
    deadline: datetime | None, max_deadline: datetime | None, *, bump_s: int, now: datetime
) -> datetime | None:
    """The deadline after some use, or None if it stays. It is never lowered, and not touched
    again for every little use."""
    if deadline is None or bump_s <= 0:
        return None
    bump = timedelta(seconds=bump_s)
    if deadline > now + bump * (1 - _BUMP_AFTER):
        return None
    later = now + bump
    if max_deadline is not None:
        later = min(later, max_deadline)
    return later if later > deadline else None
