"""The audit log: who did what to which object, and from where.

`record` belongs into the transaction of the write that it describes. `detail` never has a secret:
`domain.account.rules.redacted_diff` makes it.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, LiteralString

import msgspec
from msgspec import Struct

from chatd.domain.access import Actor, SystemActor, UserActor, require_permission
from chatd.domain.account.entities import AuditEntry, AuditOutcome
from chatd.domain.ids import UserId
from chatd.store.conn import Conn, Row, json_or_none, strip_unstorable

RECORD: Final[LiteralString] = """
    INSERT INTO audit_log (actor_id, actor, ip, action, object_type, object_id, detail, outcome)
    VALUES ($1::uuid, coalesce((SELECT username FROM users WHERE id = $1), $2), $3, $4, $5, $6,
        $7::jsonb, $8)"""
_COLUMNS: Final[LiteralString] = """
    SELECT id, at, actor_id, actor, ip, action, object_type, object_id, detail, outcome
    FROM audit_log WHERE id < $1"""
_NEWEST: Final[LiteralString] = " ORDER BY id DESC LIMIT $2"
# A statement for each filter: with one for all, the generic plan would use no index.
LIST: Final[LiteralString] = f"{_COLUMNS}{_NEWEST}"
LIST_BY_ACTOR: Final[LiteralString] = f"{_COLUMNS} AND actor_id = $3{_NEWEST}"
LIST_BY_OBJECT: Final[LiteralString] = (
    f"{_COLUMNS} AND object_type = $3 AND object_id = $4{_NEWEST}"
)
DELETE_OLD: Final[LiteralString] = """
    DELETE FROM audit_log WHERE id IN (
        SELECT id FROM (SELECT id, at FROM audit_log ORDER BY id LIMIT $2) oldest
        WHERE at < now() - $1::interval)"""
MAX_ENTRIES_PER_BATCH: Final = 1000
_MAX_ID: Final = 2**63 - 1


class ChangeAuthor(Struct, frozen=True, kw_only=True):
    """The actor of an administrative change, and the address that it came from."""

    actor: Actor
    ip: str | None = None


class AuditFilter(Struct, frozen=True, kw_only=True):
    """By one actor, or by one object, or neither."""

    actor_id: UserId | None = None
    object_type: str | None = None
    object_id: str | None = None


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
    """`action` is an object and a verb, such as `user.suspend`."""
    user_id = actor.user_id if isinstance(actor, UserActor) else None
    await conn.execute(
        RECORD,
        user_id,
        _name(actor),
        ip,
        action,
        object_type,
        strip_unstorable(str(object_id)),
        _storable(detail),
        outcome,
    )


async def list_page(
    conn: Conn, actor: Actor, wanted: AuditFilter, *, before: int | None, limit: int
) -> Sequence[AuditEntry]:
    """The newest first, with an id below `before`. Raises Forbidden."""
    require_permission(actor, "config.read")
    start = _MAX_ID if before is None else before
    if wanted.actor_id is not None:
        rows = await conn.fetch(LIST_BY_ACTOR, start, limit, wanted.actor_id)
    elif wanted.object_type is not None and wanted.object_id is not None:
        rows = await conn.fetch(LIST_BY_OBJECT, start, limit, wanted.object_type, wanted.object_id)
    else:
        rows = await conn.fetch(LIST, start, limit)
    return [_entry(row) for row in rows]


async def delete_old(conn: Conn, after: timedelta) -> int:
    """A batch of the oldest entries. The number of deleted ones."""
    done = await conn.execute(DELETE_OLD, after, MAX_ENTRIES_PER_BATCH)
    return int(done.rpartition(" ")[2])


def _name(actor: Actor) -> str:
    """For an actor without a row in `users`."""
    match actor:
        case UserActor():
            return str(actor.user_id)
        case SystemActor():
            return actor.reason
        case _:
            return "worker"


def _storable(detail: Mapping[str, object] | None) -> str | None:
    """jsonb cannot store NUL, not even escaped."""
    text = json_or_none(detail)
    return None if text is None else strip_unstorable(text).replace("\\u0000", "\ufffd")


def _entry(row: Row) -> AuditEntry:
    detail = row["detail"]
    values = dict(row) | {"detail": None if detail is None else msgspec.json.decode(detail)}
    return msgspec.convert(values, AuditEntry)
