"""Rows of workspaces made into what clients see of them. Pure."""

from datetime import datetime
from typing import Final

import msgspec

from chatd.api.workspace_wire import (
    AgentReply,
    BuildReply,
    ContextItem,
    ContextReply,
    LogLine,
    TemplateItem,
    TemplateReply,
    WorkspaceReply,
)
from chatd.domain.workspace.agent_api import PinnedContext
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
    return TemplateItem(
        id=row.id,
        name=row.name,
        display_name=row.display_name,
        description=row.description,
        icon=row.icon,
        backend=row.backend,
        origin=row.origin,
        active_version_id=row.active_version_id,
        agents_allowed=row.agents_allowed,
        deprecated=row.deprecated,
        default_ttl_s=row.default_ttl_s,
        activity_bump_s=row.activity_bump_s,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


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
    return BuildReply(
        id=build.id,
        workspace_id=build.workspace_id,
        build_number=build.build_number,
        transition=build.transition,
        status=build.status,
        template_version_id=build.template_version_id,
        parameters=build.params,
        initiator_id=build.initiator_id,
        reason=build.reason,
        attempt=build.attempt,
        created_at=build.created_at,
        error=build.error,
        error_code=build.error_code,
        deadline=build.deadline,
        max_deadline=build.max_deadline,
        started_at=build.started_at,
        completed_at=build.completed_at,
    )


def workspace_reply(seen: WorkspaceSnapshot) -> WorkspaceReply:
    """All agents are judged by the one moment in which the rows were read."""
    workspace, build = seen.workspace, seen.build
    assert workspace is not None
    agent = _for_chats(seen)
    return WorkspaceReply(
        id=workspace.id,
        owner_id=workspace.owner_id,
        template_id=workspace.template_id,
        name=workspace.name,
        deleted=workspace.deleted,
        ttl_s=workspace.ttl_s,
        created_at=workspace.created_at,
        last_used_at=workspace.last_used_at,
        latest_build=None if build is None else build_reply(build),
        agents=tuple(_agent(each, seen.now) for each in seen.agents),
        isolation=None if agent is None else agent.isolation,
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
    return AgentReply(
        id=agent.id,
        name=agent.name,
        status=agent_status(agent, now),
        lifecycle=agent.lifecycle,
        isolation=agent.isolation,
        directory=_directory(agent),
        os=agent.os,
        arch=agent.arch,
        created_at=agent.created_at,
        parent_id=agent.parent_id,
        first_connected_at=agent.first_connected_at,
        last_connected_at=agent.last_connected_at,
        disconnected_at=agent.disconnected_at,
    )


def log_line(line: BuildLog) -> LogLine:
    return LogLine(id=line.id, at=line.at, stage=line.stage, level=line.level, output=line.output)


def context_reply(pinned: PinnedContext) -> ContextReply:
    items = tuple(
        ContextItem(
            kind=each.kind,
            source=each.source,
            status=each.status,
            size=each.size,
            name=each.name,
            error=each.error,
        )
        for each in pinned.context.resources
    )
    wrong = [f"{item.source}: {item.error or item.status}" for item in items if _is_wrong(item)]
    return ContextReply(
        dirty=pinned.dirty,
        error="; ".join(wrong) or None,
        resources=items,
        pinned_at=pinned.pinned_at,
    )


def _is_wrong(item: ContextItem) -> bool:
    return item.status not in _FINE or bool(item.error)
