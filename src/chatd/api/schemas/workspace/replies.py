"""Convert rows of templates, workspaces and builds to replies. Pure."""

from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import DecodeError, Raw, Struct, convert

from chatd.api.schemas.workspace.templates import TemplateItem, TemplateReply
from chatd.api.schemas.workspace.workspaces import (
    AgentReply,
    BuildLogReply,
    BuildReply,
    ContextItem,
    ContextReply,
    WorkspaceMcpItem,
    WorkspaceReply,
)
from chatd.domain.workspace.agent_api import PinnedContext, WorkspaceMcpServer
from chatd.domain.workspace.entities import AgentRow, Build, BuildLog, Template, TemplateVersion
from chatd.domain.workspace.rules import (
    AmbiguousAgent,
    NoAgent,
    WorkspaceSnapshot,
    agent_status,
    choose_agent,
)

_FINE: Final = frozenset({"ok", "excluded"})


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


def build_reply(build: Build) -> BuildReply:
    return BuildReply(parameters=build.params, **_shared_fields(build, BuildReply))


def workspace_reply(seen: WorkspaceSnapshot) -> WorkspaceReply:
    """The status of every agent refers to the time at which the rows were read."""
    workspace, build = seen.workspace, seen.build
    assert workspace is not None
    agent = _for_chats(seen)
    return WorkspaceReply(
        **_shared_fields(workspace, WorkspaceReply),
        latest_build=None if build is None else build_reply(build),
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
    derived: dict[str, Any] = {"status": agent_status(agent, now), "directory": _directory(agent)}
    return AgentReply(**(_shared_fields(agent, AgentReply) | derived))


def build_log_reply(line: BuildLog) -> BuildLogReply:
    return BuildLogReply(created_at=line.at, **_shared_fields(line, BuildLogReply))


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


def _shared_fields(row: Struct, kind: type[Struct]) -> dict[str, Any]:
    """The fields of `kind` that the row has under the same name."""
    return {name: getattr(row, name) for name in kind.__struct_fields__ if hasattr(row, name)}
