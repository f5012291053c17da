"""The audit log: who did what to which object, and from where.

`record` belongs in the transaction of the write that it describes. `detail` never has a secret:
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, LiteralString

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from chatd.domain.access.accounts import AuditEntry, AuditOutcome
from chatd.domain.access.audit_text import actions_like
from chatd.domain.access.permissions import (
    Actor,
    SystemActor,
    UserActor,
    has_permission,
    require_permission,
)
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import UserId
from chatd.store.database.conn import Conn, Row, json_or_none, strip_unstorable

RECORD: Final[LiteralString] = """
    INSERT INTO audit_log (actor_id, actor, ip, action, object_type, object_id, detail, outcome)
    VALUES ($1::uuid, coalesce((SELECT username FROM users WHERE id = $1), $2), $3, $4, $5, $6,
        $7::jsonb, $8)"""
RECORD_EXPORT: Final[LiteralString] = f"{RECORD} RETURNING at, id"

# $1, $2 are the position, $3 the earliest time, $4 known actions, $5 a pattern for the text. The
# planner expects a coalesce to match half of the rows, but an OR few, and would sort all of them.
_IN_RANGE: Final[LiteralString] = """
    FROM audit_log WHERE (at, id) < ($1::timestamptz, $2::bigint) AND at >= $3::timestamptz
      AND coalesce(action = ANY($4::text[]) OR action ILIKE $5::text OR detail::text ILIKE $5,
                   $5 IS NULL)"""
# A statement for each filter with an index: with one for all, the generic plan would use none.
_OF_ALL: Final[LiteralString] = """
      AND coalesce($6::uuid::text, $7::text, $8::text) IS NULL"""
_OF_ACTOR: Final[LiteralString] = """
      AND actor_id = $6::uuid AND coalesce(object_type = $7::text, true)
      AND coalesce(object_id = $8::text, true)"""
_OF_TYPE: Final[LiteralString] = """
      AND object_type = $7::text AND coalesce(actor_id = $6::uuid, $6 IS NULL)
      AND $8::text IS NULL"""
_OF_OBJECT: Final[LiteralString] = """
      AND object_type = $7::text AND object_id = $8::text
      AND coalesce(actor_id = $6::uuid, $6 IS NULL)"""

_UUID: Final[LiteralString] = "'^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'"
_PERSON: Final[LiteralString] = (
    "coalesce(detail ->> 'user_id', detail #>> '{after,user_id}', detail ->> 'owner_id')"
)


def _page(condition: LiteralString) -> LiteralString:
    """A page, newest first, with the names of the objects. Chat titles and file names are included
    only if $10 and $11 say so."""
    return f"""
    WITH page AS MATERIALIZED (
        SELECT * {_IN_RANGE}{condition} ORDER BY at DESC, id DESC LIMIT $9),
    keyed AS MATERIALIZED (
        SELECT *, CASE WHEN object_id ~ {_UUID} THEN object_id::uuid END AS key,
            CASE WHEN {_PERSON} ~ {_UUID} THEN {_PERSON}::uuid END AS person_id
        FROM page)
    SELECT k.id, k.at, k.actor_id, k.actor, k.ip, k.action, k.object_type, k.object_id, k.detail,
        k.outcome, a.username AS actor_name,
        k.actor_id IS NOT NULL AND (a.id IS NULL OR a.deleted_at IS NOT NULL) AS actor_is_deleted,
        coalesce(o.name, CASE k.object_type
            WHEN 'token' THEN coalesce(k.detail ->> 'name', k.detail #>> '{{after,name}}')
            WHEN 'runner_token' THEN k.detail ->> 'name'
            WHEN 'runner' THEN k.detail ->> 'name'
            WHEN 'server' THEN k.detail ->> 'name'
            WHEN 'git_credential' THEN k.detail ->> 'host'
            WHEN 'host_credential' THEN k.detail ->> 'host'
            WHEN 'webhook' THEN k.detail ->> 'host'
            WHEN 'hook' THEN k.detail ->> 'name'
            WHEN 'repository_connection' THEN k.detail ->> 'name'
            WHEN 'slack_connection' THEN k.detail ->> 'name'
            WHEN 'slack_link' THEN k.detail ->> 'name'
            WHEN 'project' THEN k.detail ->> 'name'
            WHEN 'group' THEN coalesce(k.detail #>> '{{before,name}}',
                k.detail #>> '{{after,name}}', (
                SELECT g.detail #>> '{{before,name}}' FROM audit_log g
                WHERE g.object_type = 'group' AND g.object_id = k.object_id
                  AND g.action = 'group.delete' ORDER BY g.at DESC LIMIT 1))
            END) AS object_name,
        coalesce(o.is_deleted, k.key IS NOT NULL) AS object_is_deleted,
        p.username AS person_name
    FROM keyed k
        LEFT JOIN users a ON a.id = k.actor_id
        LEFT JOIN users p ON p.id = k.person_id AND p.id IS DISTINCT FROM k.actor_id
        LEFT JOIN LATERAL (
            SELECT u.username AS name, u.deleted_at IS NOT NULL AS is_deleted FROM users u
            WHERE k.object_type IN ('user', 'spend_limit') AND u.id = k.key
            UNION ALL SELECT g.name, false FROM groups g
            WHERE k.object_type IN ('group', 'spend_limit') AND g.id = k.key
            UNION ALL SELECT CASE WHEN $10::boolean THEN c.title END, false FROM chats c
            WHERE k.object_type = 'chat' AND c.id = k.key AND c.deleted_at IS NULL
            UNION ALL SELECT CASE WHEN $11::boolean THEN f.name END, false FROM files f
            WHERE k.object_type = 'file' AND f.id = k.key
            UNION ALL SELECT w.name, w.deleted FROM workspaces w
            WHERE k.object_type = 'workspace' AND w.id = k.key
            UNION ALL SELECT coalesce(m.display_name, m.name), m.deleted_at IS NOT NULL
            FROM model_configs m WHERE k.object_type = 'model' AND m.id = k.key
            UNION ALL SELECT coalesce(nullif(d.display_name, ''), v.name), d.deleted_at IS NOT NULL
            FROM providers v LEFT JOIN provider_details d ON d.id = v.id
            WHERE k.object_type = 'provider' AND v.id = k.key
            UNION ALL SELECT s.display_name, s.deleted_at IS NOT NULL FROM mcp_servers s
            WHERE k.object_type = 'mcp_server' AND s.id = k.key
            UNION ALL SELECT t.name, t.deleted FROM templates t
            WHERE k.object_type IN ('tool_policy', 'template') AND t.id = k.key
            UNION ALL SELECT nullif(n.name, ''), false FROM credentials n
            WHERE k.object_type = 'token' AND n.id = k.key
            UNION ALL SELECT h.host, false FROM git_credentials h
            WHERE k.object_type = 'git_credential' AND h.id = k.key
            UNION ALL SELECT e.host, false FROM host_credentials e
            WHERE k.object_type = 'host_credential' AND e.id = k.key
            UNION ALL SELECT y.name, false FROM runner_tokens y
            WHERE k.object_type = 'runner_token' AND y.id = k.key
            UNION ALL SELECT r.name, false FROM runners r
            WHERE k.object_type = 'runner' AND r.id = k.object_id
            UNION ALL SELECT j.name, false FROM hooks j
            WHERE k.object_type = 'hook' AND j.id = k.key
            UNION ALL SELECT q.name, false FROM repository_connections q
            WHERE k.object_type = 'repository_connection' AND q.id = k.key
            UNION ALL SELECT x.name, false FROM slack_connections x
            WHERE k.object_type = 'slack_connection' AND x.id = k.key
            UNION ALL SELECT z.slack_name, false FROM slack_links z
            WHERE k.object_type = 'slack_link' AND z.id = k.key
            UNION ALL SELECT NULL, false FROM webhooks b
            WHERE k.object_type = 'webhook' AND b.id = k.key
            LIMIT 1) o ON true
    ORDER BY k.at DESC, k.id DESC"""


def _count(condition: LiteralString) -> LiteralString:
    return f"SELECT count(*) FROM (SELECT 1 {_IN_RANGE}{condition} LIMIT $9) found"


LIST: Final[LiteralString] = _page(_OF_ALL)
LIST_BY_ACTOR: Final[LiteralString] = _page(_OF_ACTOR)
LIST_BY_TYPE: Final[LiteralString] = _page(_OF_TYPE)
LIST_BY_OBJECT: Final[LiteralString] = _page(_OF_OBJECT)
COUNT: Final[LiteralString] = _count(_OF_ALL)
COUNT_BY_ACTOR: Final[LiteralString] = _count(_OF_ACTOR)
COUNT_BY_TYPE: Final[LiteralString] = _count(_OF_TYPE)
COUNT_BY_OBJECT: Final[LiteralString] = _count(_OF_OBJECT)
DELETE_OLD: Final[LiteralString] = """
    DELETE FROM audit_log WHERE id IN (
        SELECT id FROM (SELECT id, at FROM audit_log ORDER BY id LIMIT $2) oldest
        WHERE at < now() - $1::interval)"""
MAX_ENTRIES_PER_BATCH: Final = 1000
MAX_EXPORTED: Final = 100_000
_EXPORT_BATCH: Final = 1000
_EVER: Final = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
_NEVER: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


class ChangeAuthor(Struct, frozen=True, kw_only=True):
    """The actor of an administrative change, and the address that it came from."""

    actor: Actor
    ip: str | None = None


class AuditFilter(Struct, frozen=True, kw_only=True):
    """`object_id` needs `object_type`. `until` is exclusive. `text` matches words of the action or
    of the details."""

    actor_id: UserId | None = None
    object_type: str | None = None
    object_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None


class AuditPosition(Struct, frozen=True, array_like=True):
    """The position of an entry in the log."""

    at: Annotated[datetime, Meta(tz=True)]
    id: Annotated[int, Meta(ge=0, le=2**63 - 1)]


async def record(
    conn: Conn,
    actor: Actor,
    *,
    action: str,
    object_type: str,
    object_id: object,
    ip: str | None = None,
    detail: Mapping[str, object] | None = None,
    outcome: AuditOutcome = "done",
) -> None:
    """`action` is an object and a verb, such as `user.suspend`. Its words for people are in
    `domain.access.audit_text`."""
    await conn.execute(
        RECORD,
        *_record_parameters(
            actor,
            action=action,
            object_type=object_type,
            object_id=object_id,
            ip=ip,
            detail=detail,
            outcome=outcome,
        ),
    )


def _record_parameters(
    actor: Actor,
    *,
    action: str,
    object_type: str,
    object_id: object,
    ip: str | None,
    detail: Mapping[str, object] | None,
    outcome: AuditOutcome = "done",
) -> tuple[object, ...]:
    return (
        actor.user_id if isinstance(actor, UserActor) else None,
        _name(actor),
        ip,
        action,
        object_type,
        strip_unstorable(str(object_id)),
        _storable(detail),
        outcome,
    )


async def list_page(
    conn: Conn, actor: Actor, wanted: AuditFilter, *, before: AuditPosition | None, limit: int
) -> Sequence[AuditEntry]:
    """The newest first, those before `before`, with names. Raises Forbidden."""
    require_permission(actor, "config.read")
    sees = (has_permission(actor, "chats.read"), has_permission(actor, "files.read"))
    statement = _choose(wanted, (LIST, LIST_BY_ACTOR, LIST_BY_TYPE, LIST_BY_OBJECT))
    rows = await conn.fetch(statement, *_parameters(wanted, before), limit, *sees)
    return [_entry(row) for row in rows]


async def begin_export(
    conn: Conn, actor: Actor, wanted: AuditFilter, *, ip: str | None = None
) -> AuditPosition:
    """Records the export, which has the entries before the position that it returns. Raises
    Forbidden, and InvalidInput if there are too many entries."""
    require_permission(actor, "config.read")
    statement = _choose(wanted, (COUNT, COUNT_BY_ACTOR, COUNT_BY_TYPE, COUNT_BY_OBJECT))
    count = await conn.fetchval(statement, *_parameters(wanted, None), MAX_EXPORTED + 1)
    if count > MAX_EXPORTED:
        text = f"more than {MAX_EXPORTED:,} entries fit; ask for a shorter time or filter more"
        raise InvalidInput("since", text)
    given = {name: value for name, value in asdict(wanted).items() if value is not None}
    row = await conn.fetchrow(
        RECORD_EXPORT,
        *_record_parameters(
            actor,
            action="audit.export",
            object_type="audit_log",
            object_id="audit_log",
            ip=ip,
            detail={"entries": count, **given},
        ),
    )
    assert row is not None
    return AuditPosition(row["at"], row["id"])


async def read_export(
    conn: Conn, actor: Actor, wanted: AuditFilter, before: AuditPosition
) -> AsyncGenerator[Sequence[AuditEntry]]:
    """Yields batches. At most as many entries as `begin_export` allows: what is written during the
    export is newer."""
    position = before
    for _ in range(MAX_EXPORTED // _EXPORT_BATCH + 1):
        batch = await list_page(conn, actor, wanted, before=position, limit=_EXPORT_BATCH)
        if batch:
            yield batch
        if len(batch) < _EXPORT_BATCH:
            return
        position = AuditPosition(batch[-1].at, batch[-1].id)


def _choose(wanted: AuditFilter, statements: Sequence[LiteralString]) -> LiteralString:
    of_all, of_actor, of_type, of_object = statements
    if wanted.object_type is not None and wanted.object_id is not None:
        return of_object
    if wanted.actor_id is not None:
        return of_actor
    return of_all if wanted.object_type is None else of_type


def _parameters(wanted: AuditFilter, before: AuditPosition | None) -> tuple[object, ...]:
    start = wanted.until or _NEVER
    at, number = (start, 0) if before is None or before.at > start else (before.at, before.id)
    text = wanted.text
    return (
        at,
        number,
        wanted.since or _EVER,
        [] if text is None else list(actions_like(text)),
        None if text is None else f"%{_escape_like(text)}%",
        wanted.actor_id,
        wanted.object_type,
        None if wanted.object_id is None else strip_unstorable(wanted.object_id),
    )


def _escape_like(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return strip_unstorable(escaped)


async def delete_old(conn: Conn, after: timedelta) -> int:
    """Delete a batch of the oldest entries; returns how many."""
    done = await conn.execute(DELETE_OLD, after, MAX_ENTRIES_PER_BATCH)
    return int(done.rpartition(" ")[2])


def _name(actor: Actor) -> str:
    """The name of an actor without a row in `users`."""
    match actor:
        case UserActor():
            return str(actor.user_id)
        case SystemActor():
            return actor.reason
        case _:
            return "worker"


def _storable(detail: Mapping[str, object] | None) -> str | None:
    """Encode without NUL, which jsonb cannot store, not even escaped."""
    text = json_or_none(detail)
    return None if text is None else strip_unstorable(text).replace("\\u0000", "\ufffd")


def _entry(row: Row) -> AuditEntry:
    detail = row["detail"]
    values = dict(row) | {"detail": None if detail is None else msgspec.json.decode(detail)}
    return msgspec.convert(values, AuditEntry)
