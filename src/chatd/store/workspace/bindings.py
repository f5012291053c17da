"""The binding of a chat to a workspace, build and agent, and the workspace context pinned to it.

The workspace is an unversioned column of the chat. Build and agent are a cache next to it, valid
while they belong to that workspace. A workspace of another owner counts as none.
"""

from collections.abc import Sequence
from typing import Final, LiteralString

import msgspec

from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.chat.row import Fence
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId, UserId, WorkspaceId
from chatd.domain.workspace.agent_api import (
    ContextResource,
    PinnedContext,
    WorkspaceBinding,
    WorkspaceContext,
    WorkspaceMcpServer,
)
from chatd.domain.workspace.entities import AgentId, BuildId, TemplateSpec
from chatd.store.database.conn import (
    Conn,
    MissingReference,
    Row,
    json_text,
    named_statement,
    strip_unstorable,
)
from chatd.store.database.row_access import chat_condition, chat_reach
from chatd.store.workspace import workspaces

GET: Final[LiteralString] = f"""
    SELECT c.id AS chat_id, w.id AS workspace_id, b.build_id, b.agent_id
    FROM chats c
    LEFT JOIN workspaces w ON w.id = c.workspace_id AND w.owner_id = c.owner_id
    LEFT JOIN chat_bindings b ON b.chat_id = c.id AND b.workspace_id = w.id
    WHERE c.id = $1 AND {chat_condition("$2", "$3")}"""

GET_SPEC: Final[LiteralString] = f"""
    SELECT v.spec FROM chats c
    JOIN workspaces w ON w.id = c.workspace_id AND w.owner_id = c.owner_id
    JOIN workspace_builds b ON b.workspace_id = w.id AND b.build_number = w.latest_build
    JOIN template_versions v ON v.id = b.template_version_id
    WHERE c.id = $1 AND {chat_condition("$2", "$3")}"""

# Compare and set on the expected workspace. A pinned context stays until another is pinned.
BIND: Final[LiteralString] = f"""
    WITH chat AS (
        UPDATE chats c SET workspace_id = $3
        WHERE c.id = $1 AND c.workspace_id IS NOT DISTINCT FROM $2
          AND {chat_condition("$5", "$6")} RETURNING c.id),
    bound AS (
        INSERT INTO chat_bindings (chat_id, workspace_id, build_id)
        SELECT id, $3, $4 FROM chat WHERE $3::uuid IS NOT NULL
        ON CONFLICT (chat_id) DO UPDATE SET
            workspace_id = excluded.workspace_id, build_id = excluded.build_id,
            agent_id = NULL, bound_at = now())
    SELECT EXISTS (SELECT FROM chat)"""

SAVE_BOUND_AGENT: Final[LiteralString] = f"""
    INSERT INTO chat_bindings (chat_id, workspace_id, build_id, agent_id)
    SELECT c.id, w.id, $3, $4
    FROM chats c JOIN workspaces w ON w.id = c.workspace_id AND w.owner_id = c.owner_id
    WHERE c.id = $1 AND w.id = $2 AND {chat_condition("$5", "$6")}
    ON CONFLICT (chat_id) DO UPDATE SET
        workspace_id = excluded.workspace_id, build_id = excluded.build_id,
        agent_id = excluded.agent_id, bound_at = now()
    RETURNING true"""

IS_OWNER: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM chats WHERE id = $1 AND worker_id = $2 AND epoch = $3)"""

LATEST_CHAT_PER_WORKSPACE: Final[LiteralString] = """
    SELECT DISTINCT ON (workspace_id) workspace_id, id FROM chats
    WHERE owner_id = $1 AND NOT archived AND workspace_id = ANY ($2::uuid[])
    ORDER BY workspace_id, updated_at DESC, id DESC"""

FIND_RUNNING: Final[LiteralString] = f"""
    SELECT coalesce(nullif(c.title, ''), c.id::text) FROM chats c
    WHERE c.workspace_id = $1 AND c.status IN ('running', 'interrupting') AND NOT c.archived
      AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}
    ORDER BY c.updated_at DESC, c.id LIMIT 1"""


async def get(conn: Conn, actor: Actor, chat_id: ChatId) -> WorkspaceBinding | None:
    """None if there is no such chat, or the actor may not read it."""
    row = await conn.fetchrow(GET, chat_id, *chat_reach(actor, "chats.read"))
    return None if row is None else WorkspaceBinding(**dict(row))


async def get_spec(conn: Conn, actor: Actor, chat_id: ChatId) -> TemplateSpec | None:
    """How the chat's workspace is built, by its latest build. None without a workspace."""
    raw = await conn.fetchval(GET_SPEC, chat_id, *chat_reach(actor, "chats.read"))
    return None if raw is None else msgspec.json.decode(raw, type=TemplateSpec)


async def is_owner(conn: Conn, chat_id: ChatId, fence: Fence) -> bool:
    return await conn.fetchval(IS_OWNER, chat_id, fence.worker_id, fence.epoch)


async def bind(
    conn: Conn,
    actor: Actor,
    chat_id: ChatId,
    *,
    expected: WorkspaceId | None,
    workspace_id: WorkspaceId | None,
    build_id: BuildId | None = None,
) -> bool:
    """Bind the chat to another workspace, or to none. False if its workspace is not `expected`."""
    reach = chat_reach(actor, "chats.write")
    return bool(await conn.fetchval(BIND, chat_id, expected, workspace_id, build_id, *reach))


async def save_bound_agent(
    conn: Conn,
    actor: Actor,
    chat_id: ChatId,
    workspace_id: WorkspaceId,
    *,
    build_id: BuildId | None,
    agent_id: AgentId | None,
) -> bool:
    """Store the agent for the next turn. False if the chat has another workspace by now."""
    reach = chat_reach(actor, "chats.write")
    values = (chat_id, workspace_id, build_id, agent_id, *reach)
    return bool(await conn.fetchval(SAVE_BOUND_AGENT, *values))


async def require_usable_workspace(
    conn: Conn, actor: Actor, workspace_id: WorkspaceId, owner: UserId
) -> None:
    """Raises InvalidInput, with one message for missing and for other owners' workspaces."""
    found = await workspaces.get(conn, actor, workspace_id, "workspaces.write")
    if found is None or found.owner_id != owner:
        raise InvalidInput("workspace_id", "there is no such workspace")
    if found.deleted:
        raise InvalidInput("workspace_id", "the workspace is deleted")


async def find_running(conn: Conn, actor: Actor, workspace_id: WorkspaceId) -> str | None:
    """The title of a chat that runs in the workspace, or its id if it has none."""
    reach = chat_reach(actor, "chats.read")
    return await conn.fetchval(FIND_RUNNING, workspace_id, *reach)


async def latest_chat_per_workspace(
    conn: Conn, actor: UserActor, workspace_ids: Sequence[WorkspaceId]
) -> dict[WorkspaceId, ChatId]:
    """The user's own most recently updated chat per workspace, without archived chats."""
    require_permission(actor, "chats.read")
    rows = await conn.fetch(LATEST_CHAT_PER_WORKSPACE, actor.user_id, list(workspace_ids))
    return {row["workspace_id"]: row["id"] for row in rows}


_RESOURCES: Final = msgspec.json.Decoder(tuple[ContextResource, ...])

# Overwrites rows by position and deletes the surplus: one statement cannot delete and insert the
# same key.
SAVE_CONTEXT: Final = named_statement("""
    WITH put AS (
        INSERT INTO agent_context_snapshots AS s (agent_id, version, hash, directory, os)
        VALUES (:agent_id, :version, :hash, :directory, :os)
        ON CONFLICT (agent_id) DO UPDATE SET
            version = excluded.version, hash = excluded.hash, directory = excluded.directory,
            os = excluded.os, received_at = now()
        WHERE :initial OR s.version < excluded.version
        RETURNING agent_id),
    resources AS (
        INSERT INTO agent_context_resources AS r (agent_id, position, kind, source, status,
            content, hash, size, error, name, description)
        SELECT put.agent_id, p.* FROM put, json_to_recordset(:resources) AS p (
            position integer, kind text, source text, status text, content text, hash text,
            size bigint, error text, name text, description text)
        ON CONFLICT (agent_id, position) DO UPDATE SET
            kind = excluded.kind, source = excluded.source, status = excluded.status,
            content = excluded.content, hash = excluded.hash, size = excluded.size,
            error = excluded.error, name = excluded.name, description = excluded.description),
    cut AS (
        DELETE FROM agent_context_resources r USING put
        WHERE r.agent_id = put.agent_id AND r.position >= :count)
    SELECT EXISTS (SELECT FROM put)""")

# A copy, because the agent's context may change after the chat has read it. Tools of MCP servers,
# which come last, are left out: they are not pinned.
PIN_CONTEXT: Final[LiteralString] = f"""
    WITH pinned AS (
        UPDATE chat_bindings b SET
            context_agent = s.agent_id, context_version = s.version, context_hash = s.hash,
            directory = s.directory, os = s.os, pinned_at = now()
        FROM agent_context_snapshots s
        WHERE b.chat_id = $1 AND s.agent_id = $2
          AND EXISTS (SELECT FROM chats c WHERE c.id = $1 AND {chat_condition("$4", "$5")})
          AND ($3 OR b.context_agent IS DISTINCT FROM s.agent_id)
        RETURNING b.chat_id),
    copied AS (
        INSERT INTO chat_context_resources AS c (chat_id, position, kind, source, status,
            content, hash, size, error, name, description)
        SELECT pinned.chat_id, r.position, r.kind, r.source, r.status, r.content, r.hash, r.size,
            r.error, r.name, r.description
        FROM pinned, agent_context_resources r
        WHERE r.agent_id = $2 AND r.kind <> 'mcp_server'
        ON CONFLICT (chat_id, position) DO UPDATE SET
            kind = excluded.kind, source = excluded.source, status = excluded.status,
            content = excluded.content, hash = excluded.hash, size = excluded.size,
            error = excluded.error, name = excluded.name, description = excluded.description),
    cut AS (
        DELETE FROM chat_context_resources c USING pinned
        WHERE c.chat_id = pinned.chat_id AND c.position >= (
            SELECT count(*) FROM agent_context_resources r
            WHERE r.agent_id = $2 AND r.kind <> 'mcp_server'))
    SELECT EXISTS (SELECT FROM pinned)"""

# Not pinned: a chat uses the tools that the servers have now. A stopped workspace has none.
LIST_MCP_SERVERS: Final[LiteralString] = f"""
    SELECT r.name, r.content AS tools, r.hash, r.error FROM chats c
    JOIN workspaces w ON w.id = c.workspace_id AND w.owner_id = c.owner_id
    JOIN LATERAL (
        SELECT a.id FROM workspace_agents a WHERE a.workspace_id = w.id AND a.lifecycle <> 'off'
        ORDER BY a.created_at DESC, a.id LIMIT 1) latest ON true
    JOIN agent_context_resources r ON r.agent_id = latest.id
    WHERE c.id = $1 AND r.kind = 'mcp_server' AND {chat_condition("$2", "$3")}
    ORDER BY r.position"""

_LISTED: Final[LiteralString] = """
    (SELECT coalesce(json_agg(r ORDER BY r.position), '[]')"""
GET_PINNED_CONTEXT: Final[LiteralString] = f"""
    SELECT b.context_agent, b.context_version AS version, b.context_hash AS hash, b.directory,
        b.os, b.pinned_at, coalesce(s.hash <> b.context_hash, false) AS dirty, {_LISTED}
         FROM chat_context_resources r WHERE r.chat_id = b.chat_id) AS resources
    FROM chat_bindings b
    LEFT JOIN agent_context_snapshots s ON s.agent_id = coalesce(b.agent_id, b.context_agent)
    WHERE b.chat_id = $1 AND b.pinned_at IS NOT NULL
      AND EXISTS (SELECT FROM chats c WHERE c.id = $1 AND {chat_condition("$2", "$3")})"""


GET_PINNED_SKILL: Final[LiteralString] = f"""
    SELECT r.content FROM chat_context_resources r
    WHERE r.chat_id = $1 AND r.kind = 'skill' AND r.status = 'ok' AND r.name = $2
      AND EXISTS (SELECT FROM chats c WHERE c.id = $1 AND {chat_condition("$3", "$4")})
    ORDER BY r.position LIMIT 1"""


async def save_context(
    conn: Conn, agent_id: AgentId, context: WorkspaceContext, *, initial: bool
) -> bool:
    """Store the agent's context. `initial`: the agent has restarted its version count. False if a
    newer version is stored or the agent does not exist."""
    values: dict[str, object] = {
        "agent_id": agent_id,
        "version": context.version,
        "hash": strip_unstorable(context.hash),
        "directory": strip_unstorable(context.directory),
        "os": strip_unstorable(context.os),
        "initial": initial,
        "count": len(context.resources),
        "resources": json_text(_columns(context.resources)),
    }
    try:
        return bool(await conn.fetchval(SAVE_CONTEXT.text, *SAVE_CONTEXT.args(values)))
    except MissingReference:
        return False


def _columns(resources: Sequence[ContextResource]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for position, resource in enumerate(resources):
        row: dict[str, object] = {"position": position}
        for name in ContextResource.__struct_fields__:
            value = getattr(resource, name)
            row[name] = strip_unstorable(value) if isinstance(value, str) else value
        rows.append(row)
    return rows


async def pin_context(
    conn: Conn, actor: Actor, chat_id: ChatId, agent_id: AgentId, *, replace: bool = False
) -> bool:
    """Pin the agent's stored context to the chat. Without `replace`, a chat that has pinned an
    earlier context of the same agent keeps it. False if nothing was pinned."""
    reach = chat_reach(actor, "chats.write")
    return bool(await conn.fetchval(PIN_CONTEXT, chat_id, agent_id, replace, *reach))


async def get_pinned_context(conn: Conn, actor: Actor, chat_id: ChatId) -> PinnedContext | None:
    row = await conn.fetchrow(GET_PINNED_CONTEXT, chat_id, *chat_reach(actor, "chats.read"))
    if row is None:
        return None
    return PinnedContext(
        agent_id=AgentId(row["context_agent"]),
        context=_context(row),
        pinned_at=row["pinned_at"],
        dirty=row["dirty"],
    )


async def list_mcp_servers(
    conn: Conn, actor: Actor, chat_id: ChatId
) -> tuple[WorkspaceMcpServer, ...]:
    """The MCP servers of the chat's workspace, with their tools or why they cannot be used."""
    rows = await conn.fetch(LIST_MCP_SERVERS, chat_id, *chat_reach(actor, "chats.read"))
    return tuple(WorkspaceMcpServer(**dict(row)) for row in rows)


async def get_pinned_skill(conn: Conn, actor: Actor, chat_id: ChatId, name: str) -> str | None:
    """The text of a skill in the chat's pinned context."""
    return await conn.fetchval(GET_PINNED_SKILL, chat_id, name, *chat_reach(actor, "chats.read"))


def _context(row: Row) -> WorkspaceContext:
    return WorkspaceContext(
        version=row["version"],
        hash=row["hash"],
        directory=row["directory"],
        os=row["os"],
        resources=_RESOURCES.decode(row["resources"]),
    )
