"""Templates, workspaces and builds as clients send and get them.

Owns what of a row is shown: never the values of a template's environment, its script, or how an
agent is dialled.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct

from chatd.api.wire import MAX_INT32, PageSize, Version
from chatd.domain.chat.public_chat import PublicChat
from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.workspace.entities import (
    AgentId,
    AgentLifecycle,
    AgentStatus,
    BuildId,
    BuildReason,
    BuildStatus,
    BuildTransition,
    LogLevel,
    Parameter,
    ResourceLimits,
    TemplateId,
    VersionId,
)

Name = Annotated[str, Meta(max_length=32, pattern=r"^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$")]
Values = Annotated[dict[str, str], Meta(max_length=100)]

# Bodies and queries


class NewWorkspaceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The template by name or by id. Without a `name` one is made up."""

    template: str | None = None
    template_id: UUID | None = None
    name: Name | None = None
    parameters: Values = {}


class NewBuildBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`parameters` are for a start; those that are not named stay as they were."""

    transition: BuildTransition
    parameters: Values = {}


class WorkspacesQuery(Struct, frozen=True, kw_only=True):
    """`after_id` is the last workspace of the page before."""

    limit: PageSize = 50
    after_id: UUID | None = None


class BuildsQuery(Struct, frozen=True, kw_only=True):
    """`before` is the number of the last build of the page before."""

    limit: PageSize = 50
    before: Annotated[int, Meta(ge=1, le=MAX_INT32)] | None = None


class LogsQuery(Struct, frozen=True, kw_only=True):
    """Lines whose id is above `after`. With `follow`, or if `text/event-stream` is accepted, they
    come as a stream, which ends when the build has."""

    after: Version | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    follow: bool = False


class ByWorkspaceQuery(Struct, frozen=True, kw_only=True):
    """Ids with commas between them, 25 at most."""

    workspace_ids: str = ""


# Answers


class TemplateItem(Struct, frozen=True, kw_only=True):
    """`agents_allowed`: chats may make workspaces of it by themselves. One that is `deprecated`
    makes no new ones."""

    id: TemplateId
    name: str
    display_name: str
    description: str
    icon: str
    backend: str
    origin: Literal["builtin", "settings", "user"]
    active_version_id: VersionId
    agents_allowed: bool
    deprecated: bool
    default_ttl_s: int
    activity_bump_s: int
    created_at: datetime
    updated_at: datetime


class TemplateReply(TemplateItem, frozen=True, kw_only=True):
    """`env` are names only. A limit of 0 is none of ours."""

    readme: str
    parameters: tuple[Parameter, ...]
    seed: Literal["empty", "git", "directory", "demo"]
    network: Literal["none", "full"]
    limits: ResourceLimits
    env: tuple[str, ...]
    has_startup_script: bool
    startup_timeout_s: float
    directory: str


class BuildReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`attempt` counts how often a worker has taken it up: once, unless one of them died."""

    id: BuildId
    workspace_id: WorkspaceId
    build_number: int
    transition: BuildTransition
    status: BuildStatus
    template_version_id: VersionId
    parameters: Mapping[str, str]
    initiator_id: UserId
    reason: BuildReason
    attempt: int
    created_at: datetime
    error: str = ""
    error_code: str = ""
    deadline: datetime | None = None
    max_deadline: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None


class AgentReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: AgentId
    name: str
    status: AgentStatus
    lifecycle: AgentLifecycle
    isolation: str
    directory: str
    os: str
    arch: str
    created_at: datetime
    parent_id: AgentId | None = None
    first_connected_at: datetime | None = None
    last_connected_at: datetime | None = None
    disconnected_at: datetime | None = None


class WorkspaceReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`agents` are those of the latest build. `isolation` and `directory` are those of the agent
    that chats talk to, and missing while there is none."""

    id: WorkspaceId
    owner_id: UserId
    template_id: TemplateId
    name: str
    deleted: bool
    ttl_s: int
    created_at: datetime
    last_used_at: datetime
    latest_build: BuildReply | None
    agents: tuple[AgentReply, ...]
    isolation: str | None = None
    directory: str | None = None
    deadline: datetime | None = None


class LogLine(Struct, frozen=True, kw_only=True):
    id: int
    at: datetime
    stage: str
    level: LogLevel
    output: str


class LogPage(Struct, frozen=True, kw_only=True):
    """`next_after` is what to ask `after` next. Once it has `ended` and `has_more` is false, no
    more will come."""

    logs: tuple[LogLine, ...]
    next_after: int
    has_more: bool
    ended: bool


# What a chat shows of its workspace


class ContextItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    source: str
    status: str
    size: int
    name: str = ""
    error: str = ""


class ContextReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the chat goes by. `dirty`: something else is in the workspace by now; `error` says
    what could not be read when this was pinned."""

    dirty: bool
    error: str | None
    resources: tuple[ContextItem, ...]
    pinned_at: datetime


class ChatReply(PublicChat, frozen=True, kw_only=True, omit_defaults=True):
    """A chat and what it remembers of its workspace. The build and the agent may be of old."""

    build_id: BuildId | None = None
    agent_id: AgentId | None = None
    context: ContextReply | None = None
