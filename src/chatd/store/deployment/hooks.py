"""Hooks of the deployment and of templates. Administrators read and change them; the engine reads
them with their sealed secrets."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString
from urllib.parse import urlsplit
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import WORKER, Actor, require_permission
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.hooks import MAX_HOOKS, FailurePolicy, Hook, HookEvent, decode_events
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import TemplateId
from chatd.store.account import audit
from chatd.store.database.conn import Conn, DatabaseSession, DuplicateRow, Row
from chatd.store.database.notifications import publish
from chatd.store.database.sealed_columns import SealedColumn

HOOK_SECRET: Final = SealedColumn(table="hooks", column="secret")

_COLUMNS: Final[LiteralString] = """
    h.id, h.template_id, h.name, h.url, h.events, h.failure, h.timeout_ms, h.enabled,
    h.created_at, h.updated_at, t.name AS template_name"""
_FROM: Final[LiteralString] = "FROM hooks h LEFT JOIN templates t ON t.id = h.template_id"
# Taken first, so that two administrators cannot both add the last one.
LOCK: Final[LiteralString] = "LOCK TABLE hooks IN SHARE ROW EXCLUSIVE MODE"
COUNT: Final[LiteralString] = (
    "SELECT count(*) FROM hooks WHERE template_id IS NOT DISTINCT FROM $1::uuid"
)
FIND_TEMPLATE: Final[LiteralString] = "SELECT id FROM templates WHERE id = $1 AND NOT deleted"
INSERT: Final[LiteralString] = """
    INSERT INTO hooks (id, template_id, name, url, events, failure, timeout_ms, enabled, secret)
    VALUES ($1, $2, $3, $4, $5::text[], $6, $7, $8, $9)"""
GET: Final[LiteralString] = f"SELECT {_COLUMNS} {_FROM} WHERE h.id = $1"
LIST: Final[LiteralString] = f"""
    SELECT {_COLUMNS} {_FROM} ORDER BY h.template_id NULLS FIRST, h.created_at, h.id"""
UPDATE: Final[LiteralString] = """
    UPDATE hooks SET name = coalesce($2, name), url = coalesce($3, url),
        events = coalesce($4::text[], events), failure = coalesce($5, failure),
        timeout_ms = coalesce($6, timeout_ms), enabled = coalesce($7, enabled),
        updated_at = clock_timestamp()
    WHERE id = $1 RETURNING id"""
DELETE: Final[LiteralString] = "DELETE FROM hooks WHERE id = $1"
LOAD: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, h.secret {_FROM} WHERE h.enabled
    ORDER BY h.template_id NULLS FIRST, h.created_at, h.id"""
GET_SECRET: Final[LiteralString] = "SELECT secret FROM hooks WHERE id = $1"
TEMPLATE_OF: Final[LiteralString] = "SELECT template_id FROM workspaces WHERE id = $1"


class StoredHook(Struct, frozen=True, kw_only=True):
    hook: Hook
    template_name: str | None
    created_at: datetime
    updated_at: datetime


class LoadedHook(Struct, frozen=True, kw_only=True):
    hook: Hook
    sealed_secret: str


class HookChanges(Struct, frozen=True, kw_only=True):
    """None leaves a value as it is."""

    name: str | None = None
    url: str | None = None
    events: tuple[HookEvent, ...] | None = None
    failure: FailurePolicy | None = None
    timeout_ms: int | None = None
    enabled: bool | None = None


async def insert(
    session: DatabaseSession, actor: Actor, hook: Hook, sealed_secret: str, *, ip: str | None = None
) -> StoredHook:
    """Raises Forbidden, InvalidInput, Conflict."""
    require_permission(actor, "config.write")
    await session.execute(LOCK)
    template = hook.template_id
    if template is not None and await session.fetchval(FIND_TEMPLATE, template) is None:
        raise InvalidInput("template_id", "there is no such template")
    if await session.fetchval(COUNT, template) >= MAX_HOOKS:
        raise Conflict(
            f"There are {MAX_HOOKS} hooks already. Delete one first.", code="too_many_hooks"
        )
    try:
        await session.execute(
            INSERT,
            hook.id,
            template,
            hook.name,
            hook.url,
            list(hook.events),
            hook.failure,
            hook.timeout_ms,
            hook.enabled,
            sealed_secret,
        )
    except DuplicateRow:
        raise _exists() from None
    return await _changed(session, actor, ip, "hook.create", hook.id)


async def update(
    session: DatabaseSession,
    actor: Actor,
    hook_id: UUID,
    changes: HookChanges,
    *,
    ip: str | None = None,
) -> StoredHook:
    """Raises Forbidden, NotFound, Conflict."""
    require_permission(actor, "config.write")
    events = None if changes.events is None else list(changes.events)
    try:
        found = await session.fetchval(
            UPDATE,
            hook_id,
            changes.name,
            changes.url,
            events,
            changes.failure,
            changes.timeout_ms,
            changes.enabled,
        )
    except DuplicateRow:
        raise _exists() from None
    if found is None:
        raise _missing()
    return await _changed(session, actor, ip, "hook.update", hook_id)


async def delete(
    session: DatabaseSession, actor: Actor, hook_id: UUID, *, ip: str | None = None
) -> None:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "config.write")
    await _changed(session, actor, ip, "hook.delete", hook_id)
    await session.execute(DELETE, hook_id)


async def get(conn: Conn, actor: Actor, hook_id: UUID) -> StoredHook:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "config.read")
    row = await conn.fetchrow(GET, hook_id)
    if row is None:
        raise _missing()
    return _stored(row)


async def list_all(conn: Conn, actor: Actor) -> Sequence[StoredHook]:
    require_permission(actor, "config.read")
    return [_stored(row) for row in await conn.fetch(LIST)]


async def load(conn: Conn) -> Sequence[LoadedHook]:
    """The enabled hooks, in the order in which they are called. For the engine."""
    rows = await conn.fetch(LOAD)
    return [LoadedHook(hook=_stored(row).hook, sealed_secret=row["secret"]) for row in rows]


async def load_one(conn: Conn, actor: Actor, hook_id: UUID) -> LoadedHook:
    """To try it. Raises Forbidden, NotFound."""
    found = await get(conn, actor, hook_id)
    sealed: str | None = await conn.fetchval(GET_SECRET, hook_id)
    if sealed is None:
        raise _missing()
    return LoadedHook(hook=found.hook, sealed_secret=sealed)


async def template_of(conn: Conn, workspace_id: WorkspaceId) -> TemplateId | None:
    """The template of a workspace; None if it has none. For the engine."""
    found: UUID | None = await conn.fetchval(TEMPLATE_OF, workspace_id)
    return None if found is None else TemplateId(found)


async def record_answer(
    conn: Conn, hook: Hook, chat: Chat, action: str, detail: Mapping[str, object]
) -> None:
    """What a hook answered, in the audit log. It may be there twice if a worker died and asked
    again. For the engine."""
    facts = {"name": hook.name, "chat_id": str(chat.id), "owner_id": str(chat.owner_id)}
    await audit.record(
        conn,
        WORKER,
        action=action,
        object_type="hook",
        object_id=hook.id,
        detail=facts | dict(detail),
    )


def _stored(row: Row) -> StoredHook:
    hook = Hook(
        id=row["id"],
        name=row["name"],
        url=row["url"],
        events=decode_events(row["events"]),
        failure=row["failure"],
        timeout_ms=row["timeout_ms"],
        template_id=row["template_id"],
        enabled=row["enabled"],
    )
    return StoredHook(
        hook=hook,
        template_name=row["template_name"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


async def _changed(
    session: DatabaseSession, actor: Actor, ip: str | None, action: str, hook_id: UUID
) -> StoredHook:
    """The address may contain a secret: the audit log has its host only."""
    row = await session.fetchrow(GET, hook_id)
    if row is None:
        raise _missing()
    found = _stored(row)
    hook = found.hook
    detail = {
        "name": hook.name,
        "host": urlsplit(hook.url).hostname or "",
        "events": list(hook.events),
        "failure": hook.failure,
        "template": found.template_name,
        "enabled": hook.enabled,
    }
    await audit.record(
        session,
        actor,
        action=action,
        object_type="hook",
        object_id=hook_id,
        ip=ip,
        detail=detail,
    )
    await publish(session, ConfigChange(kind="hook", id=str(hook_id)))
    return found


def _missing() -> NotFound:
    return NotFound("There is no such hook.")


def _exists() -> Conflict:
    return Conflict("There is another hook with this name.", code="hook_exists")
