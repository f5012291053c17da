"""Bodies, queries and replies about templates, workspaces and builds.

Replies never contain values of a template's environment, its script, or an agent's endpoint.
Docstrings here are part of the OpenAPI document.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from chatd.api.schemas.lists import ListPage, ListQuery
from chatd.api.schemas.values import Version
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
    EffectiveLimits,
    LogLevel,
    Network,
    TemplateId,
    VersionId,
)

Name = Annotated[str, Meta(max_length=32, pattern=r"^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$")]
Values = Annotated[dict[str, str], Meta(max_length=100)]

# Bodies and queries


class NewWorkspaceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The template by name or by id. Without a `name` one is generated."""

    template: str | None = None
    template_id: UUID | None = None
    name: Name | None = None
    parameters: Values = {}


class NewBuildBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`parameters` are for a start; parameters that are not given keep their values."""

    transition: BuildTransition
    parameters: Values = {}


class LogsQuery(ListQuery, frozen=True, kw_only=True):
    """Lines with an id above `after_id`. With `follow`, or with `Accept: text/event-stream`, the
    reply is a stream that ends with the build."""

    after_id: Version | None = None
    follow: bool = False


class LatestChatsQuery(Struct, frozen=True, kw_only=True):
    """Up to 25 ids, separated by commas."""

    workspace_ids: str = ""


# Replies


class BuildReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`attempt` counts the build workers that acquired it: 1, unless one of them died."""

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


class BuildPage(ListPage[BuildReply], frozen=True, kw_only=True):
    """A page of builds."""


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
    """`agents` are those of the latest build. `isolation`, `network`, `limits` and `directory` are
    those of the agent that chats use, and missing while there is none. `limits` are those that the
    host enforces; 0 is no limit."""

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
    network: Network | None = None
    limits: EffectiveLimits | None = None
    directory: str | None = None
    deadline: datetime | None = None


class WorkspacePage(ListPage[WorkspaceReply], frozen=True, kw_only=True):
    """A page of workspaces."""


class BuildLogReply(Struct, frozen=True, kw_only=True):
    id: int
    at: datetime
    stage: str
    level: LogLevel
    output: str


class BuildLogPage(ListPage[BuildLogReply], frozen=True, kw_only=True):
    """A page of a build's log, oldest first. The log is complete once `ended` is true and
    `has_more` is false. Until then, read on with the id of the last line as `after_id`."""

    ended: bool


# The workspace of a chat


class ContextItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    source: str
    status: str
    size: int
    name: str = ""
    error: str = ""


class ContextReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The pinned workspace context. `dirty`: the workspace's files differ from it by now. `error`
    lists what could not be read when it was pinned."""

    dirty: bool
    error: str | None
    resources: tuple[ContextItem, ...]
    pinned_at: datetime


class ChatReply(PublicChat, frozen=True, kw_only=True, omit_defaults=True):
    """A chat with its workspace binding, which may be stale, and its pinned context."""

    build_id: BuildId | None = None
    agent_id: AgentId | None = None
    context: ContextReply | None = None
