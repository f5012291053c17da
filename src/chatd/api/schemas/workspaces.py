"""Bodies, queries and replies about templates, workspaces and builds.

Replies never contain values of a template's environment, its script, or an agent's endpoint.
Docstrings here are part of the OpenAPI document.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal
from uuid import UUID

import msgspec
from msgspec import DecodeError, Meta, Raw, Struct, convert

from chatd.api.schemas.messages import Version, from_rows
from chatd.domain.chat_views.public_chat import PublicChat
from chatd.domain.description import (
    AGENT_ID,
    BUILD_ID,
    CHAT_ID,
    CREATED_AT,
    RUNNER_ID,
    TEMPLATE_ID,
    UPDATED_AT,
    USER_ID,
    VERSION_ID,
    WORKSPACE_ID,
    describe,
)
from chatd.domain.ids import ChatId, UserId, WorkspaceId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.workspace.agent_api import (
    DiffScope,
    PinnedContext,
    ScopedDiff,
    WorkspaceMcpServer,
)
from chatd.domain.workspace.entities import (
    AgentId,
    AgentLifecycle,
    AgentRow,
    AgentStatus,
    Build,
    BuildId,
    BuildLog,
    BuildReason,
    BuildStatus,
    BuildTransition,
    EffectiveLimits,
    LogLevel,
    Network,
    Parameter,
    ResourceLimits,
    Template,
    TemplateId,
    TemplateVersion,
    VersionId,
)
from chatd.domain.workspace.rules import (
    AmbiguousAgent,
    NoAgent,
    WorkspaceSnapshot,
    agent_status,
    choose_agent,
)

Name = Annotated[str, Meta(max_length=32, pattern=r"^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$")]
Values = Annotated[dict[str, str], Meta(max_length=100)]

# Bodies and queries


class NewWorkspaceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workspace to create; its template is given by name or by id. With `runner_id` and without a
    template it works in the directory for which that runner was started."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "template": "python",
        "name": "my-app",
        "parameters": {"python": "3.12"},
    }

    template: Annotated[str | None, describe("The template's name.", "python")] = None
    template_id: Annotated[
        UUID | None, describe("The template's id, instead of its name.", TEMPLATE_ID)
    ] = None
    name: Annotated[
        Name | None,
        describe("Its name, unique among yours. Without it one is generated.", "my-app"),
    ] = None
    parameters: Annotated[
        Values, describe("Values of the template's parameters.", {"python": "3.12"})
    ] = {}
    runner_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        describe(
            "A connected runner that you have started for yourself, which is to have it.", RUNNER_ID
        ),
    ] = None


class NewBuildBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A build to run."""

    transition: Annotated[BuildTransition, describe("What the build does.", "start")]
    parameters: Annotated[
        Values,
        describe(
            "New values of parameters, for a start. Those that are not given keep their values.",
            {"python": "3.12"},
        ),
    ] = {}


class LogsQuery(ListQuery, frozen=True, kw_only=True):
    """Lines with an id above `after_id`. With `follow`, or with `Accept: text/event-stream`, the
    reply is a stream that ends with the build."""

    after_id: Annotated[Version | None, describe("Only lines with a higher id.", 120)] = None
    follow: Annotated[
        bool, describe("Stream the log until the build ends, as `Accept: text/event-stream` does.")
    ] = False


class LatestChatsQuery(Struct, frozen=True, kw_only=True):
    """Up to 25 ids, separated by commas."""

    workspace_ids: Annotated[
        str, describe("Up to 25 ids of workspaces, separated by commas.", WORKSPACE_ID)
    ] = ""


# Replies


class BuildReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A build: one start, stop or deletion of a workspace."""

    id: Annotated[BuildId, describe("The build's id.", BUILD_ID)]
    workspace_id: Annotated[WorkspaceId, describe("Its workspace.", WORKSPACE_ID)]
    build_number: Annotated[int, describe("Counts the builds of the workspace from 1.", 1)]
    transition: Annotated[BuildTransition, describe("What it does.", "start")]
    status: Annotated[BuildStatus, describe("How far it is, or how it ended.", "succeeded")]
    template_version_id: Annotated[
        VersionId, describe("The version of the template that it uses.", VERSION_ID)
    ]
    parameters: Annotated[
        Mapping[str, str], describe("Values of the template's parameters.", {"python": "3.12"})
    ]
    initiator_id: Annotated[
        UserId, describe("The user who asked for it, or whose chat did.", USER_ID)
    ]
    reason: Annotated[BuildReason, describe("What asked for it.", "initiator")]
    attempt: Annotated[
        int, describe("How many build workers took it: 1, unless one of them died.", 1)
    ]
    created_at: Annotated[datetime, describe("When it was asked for.", CREATED_AT)]
    error: Annotated[
        str, describe("Why it failed, for people.", "The repository could not be cloned.")
    ] = ""
    error_code: Annotated[str, describe("Why it failed, for programs.", "build_failed")] = ""
    waiting_for: Annotated[
        str,
        describe(
            "Why no runner takes it, while it is pending; missing if one can take it at once.",
            "The runner build-1 is not connected since 2026-11-16 21:34 UTC.",
        ),
    ] = ""
    deadline: Annotated[
        datetime | None, describe("When the workspace stops if it is not used.", UPDATED_AT)
    ] = None
    max_deadline: Annotated[
        datetime | None, describe("When the workspace stops in any case.", UPDATED_AT)
    ] = None
    started_at: Annotated[datetime | None, describe("When a build worker took it.", CREATED_AT)] = (
        None
    )
    completed_at: Annotated[datetime | None, describe("When it ended.", UPDATED_AT)] = None


class BuildPage(ListPage[BuildReply], frozen=True, kw_only=True):
    """A page of builds."""


class AgentReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workspace agent: the program in the workspace that runs the tools."""

    id: Annotated[AgentId, describe("The agent's id.", AGENT_ID)]
    name: Annotated[str, describe("Its name.", "main")]
    status: Annotated[AgentStatus, describe("Whether the server reaches it.", "connected")]
    lifecycle: Annotated[AgentLifecycle, describe("How far its startup is.", "ready")]
    isolation: Annotated[str, describe("What keeps it apart from the host.", "bubblewrap")]
    directory: Annotated[str, describe("The directory in which tools start.", "/home/dev/app")]
    os: Annotated[str, describe("Its operating system.", "linux")]
    arch: Annotated[str, describe("Its processor.", "x86_64")]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    parent_id: Annotated[AgentId | None, describe("The agent that started it.", AGENT_ID)] = None
    first_connected_at: Annotated[
        datetime | None, describe("When the server first reached it.", CREATED_AT)
    ] = None
    last_connected_at: Annotated[
        datetime | None, describe("When the server last reached it.", UPDATED_AT)
    ] = None
    disconnected_at: Annotated[
        datetime | None, describe("When the server lost it.", UPDATED_AT)
    ] = None


class WorkspaceReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workspace. `isolation`, `network`, `limits` and `directory` are missing while it has no
    agent."""

    id: Annotated[WorkspaceId, describe("The workspace's id.", WORKSPACE_ID)]
    owner_id: Annotated[UserId, describe("The user it belongs to.", USER_ID)]
    template_id: Annotated[TemplateId, describe("Its template.", TEMPLATE_ID)]
    name: Annotated[str, describe("Its name.", "my-app")]
    deleted: Annotated[bool, describe("Whether it is deleted.")]
    ttl_s: Annotated[
        int, describe("How long it runs without use, in seconds; 0: without limit.", 28800)
    ]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    last_used_at: Annotated[datetime, describe("When a tool last acted in it.", UPDATED_AT)]
    latest_build: Annotated[BuildReply | None, describe("Its latest build.")]
    agents: Annotated[tuple[AgentReply, ...], describe("The agents of the latest build.")]
    isolation: Annotated[
        str | None,
        describe("What keeps the agent that chats use apart from the host.", "bubblewrap"),
    ] = None
    network: Annotated[
        Network | None,
        describe("What that agent reaches: nothing, named hosts only, or every host.", "none"),
    ] = None
    limits: Annotated[
        EffectiveLimits | None, describe("The limits that the host enforces on it; 0 is no limit.")
    ] = None
    directory: Annotated[
        str | None, describe("The directory in which tools start.", "/home/dev/app")
    ] = None
    deadline: Annotated[
        datetime | None, describe("When it stops if it is not used.", UPDATED_AT)
    ] = None


class WorkspacePage(ListPage[WorkspaceReply], frozen=True, kw_only=True):
    """A page of workspaces."""


class BuildLogReply(Struct, frozen=True, kw_only=True):
    """A line of a build's log."""

    id: Annotated[
        int, describe("Counts the lines of all builds; a later line has a higher id.", 121)
    ]
    created_at: Annotated[datetime, describe("When it was written.", CREATED_AT)]
    stage: Annotated[str, describe("The step of the build.", "seed")]
    level: Annotated[LogLevel, describe("How important it is.", "info")]
    output: Annotated[str, describe("The line.", "Cloning https://example.com/app.git")]


class BuildLogPage(ListPage[BuildLogReply], frozen=True, kw_only=True):
    """A page of a build's log, oldest first. The log is complete once `ended` is true and
    `has_more` is false. Until then, read on with the id of the last line as `after_id`."""

    ended: Annotated[
        bool, describe("Whether the build has ended, so that no lines come after those that exist.")
    ]


# The workspace of a chat


class ContextItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the context."""

    kind: Annotated[str, describe("What it is.", "instruction")]
    source: Annotated[str, describe("Where it comes from.", "/home/dev/AGENTS.md")]
    status: Annotated[str, describe("Whether it was read.", "ok")]
    size: Annotated[int, describe("Its size in bytes.", 1204)]
    name: Annotated[str, describe("Its name.", "AGENTS.md")] = ""
    error: Annotated[str, describe("Why it was not read.", "too large")] = ""


class WorkspaceMcpItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An MCP server that the workspace declares in its `.mcp.json`."""

    name: Annotated[str, describe("Its name in the file.", "linear")]
    tools: Annotated[int, describe("How many tools it offers; 0 with an `error`.", 12)]
    error: Annotated[
        str,
        describe(
            "Why it cannot be used now. The workspace tries it again by itself.",
            "the command npx was not found",
        ),
    ] = ""


class ContextReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The context that a chat has pinned."""

    dirty: Annotated[bool, describe("The workspace's files differ from it by now.")]
    error: Annotated[
        str | None,
        describe(
            "What could not be read when it was pinned; null if all could.",
            "/home/dev/AGENTS.md: too large",
        ),
    ]
    resources: Annotated[tuple[ContextItem, ...], describe("What it consists of.")]
    pinned_at: Annotated[datetime, describe("When it was pinned.", CREATED_AT)]


LatestChats = Annotated[
    dict[WorkspaceId, ChatId],
    describe("The latest chat by workspace.", {WORKSPACE_ID: CHAT_ID}),
]


class ChatReply(PublicChat, frozen=True, kw_only=True, omit_defaults=True):
    """A chat with its workspace binding, which may be stale, and its pinned context."""

    build_id: Annotated[
        BuildId | None, describe("The build of the workspace that the chat last used.", BUILD_ID)
    ] = None
    agent_id: Annotated[
        AgentId | None, describe("The workspace agent that the chat last used.", AGENT_ID)
    ] = None
    context: Annotated[
        ContextReply | None,
        describe("The instructions and skills of the workspace that the model has."),
    ] = None
    workspace_mcp_servers: Annotated[
        tuple[WorkspaceMcpItem, ...],
        describe("The MCP servers of the running workspace, as they are now."),
    ] = ()


# Replies about templates.
#
# They never contain values of a template's environment, or its script. Docstrings and descriptions
# here are part of the OpenAPI document.


class TemplateItem(Struct, frozen=True, kw_only=True):
    """A template in a list."""

    id: Annotated[TemplateId, describe("The template's id.", TEMPLATE_ID)]
    name: Annotated[str, describe("Its name.", "python")]
    display_name: Annotated[str, describe("Its name for people.", "Python")]
    description: Annotated[str, describe("What it is for.", "Python with pytest")]
    icon: Annotated[str, describe("The address of its icon.", "/icon/python.svg")]
    backend: Annotated[str, describe("What builds its workspaces.", "sandbox")]
    origin: Annotated[
        Literal["builtin", "settings", "user"], describe("Where it comes from.", "settings")
    ]
    active_version_id: Annotated[
        VersionId, describe("The version that new workspaces get.", VERSION_ID)
    ]
    agents_allowed: Annotated[bool, describe("Whether chats may create workspaces from it.")]
    deprecated: Annotated[bool, describe("Whether it can no longer be used for new workspaces.")]
    default_ttl_s: Annotated[
        int, describe("How long an unused workspace runs, in seconds; 0: without limit.", 28800)
    ]
    activity_bump_s: Annotated[int, describe("By how many seconds use extends that.", 3600)]
    max_ttl_s: Annotated[
        int, describe("The longest run, in seconds, whatever the use; 0: without limit.", 0)
    ]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]


class TemplatePage(ListPage[TemplateItem], frozen=True, kw_only=True):
    """A page of templates."""


class TemplateReply(TemplateItem, frozen=True, kw_only=True):
    """A template with its parameters."""

    readme: Annotated[str, describe("Its documentation, in Markdown.", "# Python")]
    parameters: Annotated[tuple[Parameter, ...], describe("What a workspace can choose.")]
    seed: Annotated[
        Literal["empty", "git", "directory", "demo"],
        describe("What the home directory starts with.", "git"),
    ]
    network: Annotated[
        Network,
        describe(
            "Whether its workspaces reach the network: not, named hosts only, or all.", "none"
        ),
    ]
    limits: Annotated[ResourceLimits, describe("The limits of its workspaces; 0 is no limit.")]
    env: Annotated[
        tuple[str, ...],
        describe("The names of its environment variables, never their values.", ["PIP_INDEX_URL"]),
    ]
    has_startup_script: Annotated[bool, describe("Whether a script runs at each start.")]
    startup_timeout_s: Annotated[
        float, describe("How long that script may run, in seconds.", 300.0)
    ]
    directory: Annotated[str, describe("The directory in which tools start.", "~/app")]


# Convert rows of templates, workspaces and builds to replies. Pure.

_FINE: Final = frozenset({"ok", "excluded"})
NO_WAITS: Final[Mapping[BuildId, str]] = {}


def template_item(row: Template) -> TemplateItem:
    return convert(row, TemplateItem, from_attributes=True)


def template_reply(row: Template, version: TemplateVersion) -> TemplateReply:
    spec = version.spec
    seed = msgspec.to_builtins(spec.seed)
    return TemplateReply(
        **msgspec.structs.asdict(template_item(row)),
        readme=version.readme,
        parameters=version.parameters,
        seed=seed["kind"],
        network=spec.network,
        limits=spec.limits,
        env=tuple(sorted(spec.env)),
        has_startup_script=bool(spec.startup_script),
        startup_timeout_s=spec.startup_timeout_s,
        directory=spec.directory,
    )


def build_reply(build: Build, waits: Mapping[BuildId, str] = NO_WAITS) -> BuildReply:
    waiting_for = waits.get(build.id, "")
    return from_rows(BuildReply, build, parameters=build.params, waiting_for=waiting_for)


def workspace_reply(
    seen: WorkspaceSnapshot, waits: Mapping[BuildId, str] = NO_WAITS
) -> WorkspaceReply:
    """The status of every agent refers to the time at which the rows were read. `waits` says why
    builds wait for a runner."""
    workspace, build = seen.workspace, seen.build
    assert workspace is not None
    agent = _for_chats(seen)
    return from_rows(
        WorkspaceReply,
        workspace,
        latest_build=None if build is None else build_reply(build, waits),
        agents=tuple(_agent(each, seen.now) for each in seen.agents),
        isolation=None if agent is None else agent.isolation,
        network=None if agent is None else agent.network,
        limits=None if agent is None else agent.limits,
        directory=None if agent is None else _directory(agent),
        deadline=None if build is None else build.deadline,
    )


def _for_chats(seen: WorkspaceSnapshot) -> AgentRow | None:
    try:
        return choose_agent(seen.agents)
    except (NoAgent, AmbiguousAgent):
        return None


def _directory(agent: AgentRow) -> str:
    return agent.expanded_directory or agent.directory


def _agent(agent: AgentRow, now: datetime) -> AgentReply:
    return from_rows(
        AgentReply, agent, status=agent_status(agent, now), directory=_directory(agent)
    )


def build_log_reply(line: BuildLog) -> BuildLogReply:
    return from_rows(BuildLogReply, line, created_at=line.at)


def context_reply(pinned: PinnedContext) -> ContextReply:
    items = convert(pinned.context.resources, tuple[ContextItem, ...], from_attributes=True)
    wrong = [f"{item.source}: {item.error or item.status}" for item in items if _is_wrong(item)]
    return ContextReply(
        dirty=pinned.dirty,
        error="; ".join(wrong) or None,
        resources=items,
        pinned_at=pinned.pinned_at,
    )


def mcp_server_reply(server: WorkspaceMcpServer) -> WorkspaceMcpItem:
    tools = list[Raw]()
    if server.tools:
        with suppress(DecodeError):  # of an agent, which is not trusted
            tools = msgspec.json.decode(server.tools, type=list[Raw])
    return WorkspaceMcpItem(name=server.name, tools=len(tools), error=server.error)


def _is_wrong(item: ContextItem) -> bool:
    return item.status not in _FINE or bool(item.error)


# Diffs of a chat. Docstrings here are part of the OpenAPI document.

SCOPE_TEXT: Final = (
    "`turn`: what the current or last turn changed. `chat`: what changed since the chat first"
    " changed the repository. `git`: everything since the last commit."
)


class DiffQuery(Struct, frozen=True, kw_only=True):
    scope: Annotated[DiffScope, Meta(description=SCOPE_TEXT, examples=["turn"])] = "git"


class ChatDiffReply(Struct, frozen=True, kw_only=True):
    """The changes in the repositories of a chat."""

    scope: Annotated[DiffScope, Meta(description=SCOPE_TEXT, examples=["turn"])]
    repositories: Annotated[
        tuple[ScopedDiff, ...],
        Meta(description="The repositories that the chat has touched, with their changes."),
    ]
