"""Schedules: rows that start chats at their due times."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import Permission, UserActor, require_permission
from chatd.domain.deployment.schedules import MAX_SCHEDULES_PER_USER, Schedule
from chatd.domain.errors import Conflict, InvalidInput
from chatd.domain.ids import ChatId
from chatd.store.database.conn import (
    Conn,
    MissingReference,
    Row,
    json_text,
    strip_unstorable,
)
from chatd.store.database.row_access import SHARING_ENABLED

_COLUMNS: Final[LiteralString] = (
    "id, owner_id, name, cron, timezone, prompt, model_config_id, reasoning_effort, labels,"
    " workspace_id, project_id, enabled, next_at, last_at, last_chat_id, last_error, created_at,"
    " updated_at"
)
INSERT: Final[LiteralString] = f"""
    INSERT INTO schedules (id, owner_id, name, cron, timezone, prompt, model_config_id,
        reasoning_effort, labels, workspace_id, project_id, enabled, next_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9::jsonb, $10, $11, $12, $13
    WHERE (SELECT count(*) FROM schedules WHERE owner_id = $2) < $14
    RETURNING {_COLUMNS}"""
GET: Final[LiteralString] = f"SELECT {_COLUMNS} FROM schedules WHERE id = $1 AND owner_id = $2"
LIST: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM schedules WHERE owner_id = $1 ORDER BY created_at, id LIMIT $2"""
# Only if it is still as it was read.
UPDATE: Final[LiteralString] = f"""
    UPDATE schedules SET name = $3, cron = $4, timezone = $5, prompt = $6, model_config_id = $7,
        reasoning_effort = $8, labels = $9::jsonb, workspace_id = $10, project_id = $11,
        enabled = $12, next_at = $13, updated_at = now()
    WHERE id = $1 AND owner_id = $2 AND updated_at = $14
    RETURNING {_COLUMNS}"""
DELETE: Final[LiteralString] = "DELETE FROM schedules WHERE id = $1 AND owner_id = $2 RETURNING id"
SET_DUE: Final[LiteralString] = f"""
    UPDATE schedules SET next_at = now(), enabled = true WHERE id = $1 AND owner_id = $2
    RETURNING {_COLUMNS}"""
# Schedules of suspended users wait.
LIST_DUE: Final[LiteralString] = f"""
    SELECT s.*, now() AS read_at, u.role, {SHARING_ENABLED} AS sharing
    FROM schedules s JOIN users u ON u.id = s.owner_id
    WHERE s.next_at <= now() AND u.status = 'active' AND u.deleted_at IS NULL
    ORDER BY s.next_at LIMIT $1"""
FINISH: Final[LiteralString] = """
    UPDATE schedules SET next_at = CASE WHEN enabled THEN $3::timestamptz END, last_at = $2,
        last_chat_id = coalesce($4, last_chat_id), last_error = $5
    WHERE id = $1 AND next_at = $2"""

READ_TIME: Final[LiteralString] = "SELECT now()"

_LABELS: Final = msgspec.json.Decoder(dict[str, str])


class DueSchedule(Struct, frozen=True, kw_only=True):
    """`read_at` is the database's time, after which the next run must be."""

    schedule: Schedule
    actor: UserActor
    read_at: datetime


async def insert(conn: Conn, actor: UserActor, schedule: Schedule) -> Schedule:
    """Raises Conflict if the user has too many, InvalidInput if the project is gone."""
    require_permission(actor, "chats.create")
    args = (schedule.id, actor.user_id, *_values(schedule), MAX_SCHEDULES_PER_USER)
    try:
        row = await conn.fetchrow(INSERT, *args)
    except MissingReference:
        raise _no_project() from None
    if row is None:
        raise Conflict(
            f"You have {MAX_SCHEDULES_PER_USER} schedules. Delete one first.",
            code="too_many_schedules",
        )
    return _schedule(row)


async def get(
    conn: Conn, actor: UserActor, schedule_id: UUID, permission: Permission = "account.read"
) -> Schedule | None:
    """`permission` is that of the request."""
    require_permission(actor, permission)
    return _or_none(await conn.fetchrow(GET, schedule_id, actor.user_id))


async def list_own(conn: Conn, actor: UserActor) -> Sequence[Schedule]:
    require_permission(actor, "account.read")
    rows = await conn.fetch(LIST, actor.user_id, MAX_SCHEDULES_PER_USER)
    return [_schedule(row) for row in rows]


async def update(conn: Conn, actor: UserActor, schedule: Schedule) -> Schedule | None:
    """None if it changed since it was read. Raises InvalidInput if the project is gone."""
    require_permission(actor, "chats.create")
    args = (schedule.id, actor.user_id, *_values(schedule), schedule.updated_at)
    try:
        return _or_none(await conn.fetchrow(UPDATE, *args))
    except MissingReference:
        raise _no_project() from None


async def delete(conn: Conn, actor: UserActor, schedule_id: UUID) -> bool:
    require_permission(actor, "chats.create")
    return await conn.fetchval(DELETE, schedule_id, actor.user_id) is not None


async def set_due(conn: Conn, actor: UserActor, schedule_id: UUID) -> Schedule | None:
    """Due now, and then as its expression says. Enables it."""
    require_permission(actor, "chats.create")
    return _or_none(await conn.fetchrow(SET_DUE, schedule_id, actor.user_id))


async def list_due(conn: Conn, *, limit: int) -> Sequence[DueSchedule]:
    return [
        DueSchedule(
            schedule=_schedule(row),
            actor=UserActor(user_id=row["owner_id"], role=row["role"], reads_shared=row["sharing"]),
            read_at=row["read_at"],
        )
        for row in await conn.fetch(LIST_DUE, limit)
    ]


async def finish(
    conn: Conn,
    schedule: Schedule,
    *,
    next_at: datetime | None,
    chat_id: ChatId | None = None,
    error: str | None = None,
) -> None:
    """Record a run and set the next one, unless another replica has done so."""
    await conn.execute(FINISH, schedule.id, schedule.next_at, next_at, chat_id, error)


def _values(schedule: Schedule) -> tuple[object, ...]:
    return (
        strip_unstorable(schedule.name),
        schedule.cron,
        schedule.timezone,
        strip_unstorable(schedule.prompt),
        schedule.model_config_id,
        schedule.reasoning_effort,
        json_text(schedule.labels),
        schedule.workspace_id,
        schedule.project_id,
        schedule.enabled,
        schedule.next_at,
    )


def _no_project() -> InvalidInput:
    return InvalidInput("project_id", "there is no such project")


def _or_none(row: Row | None) -> Schedule | None:
    return None if row is None else _schedule(row)


def _schedule(row: Row) -> Schedule:
    values: dict[str, Any] = dict(row)
    values["labels"] = _LABELS.decode(row["labels"])
    return Schedule(**{name: values[name] for name in Schedule.__struct_fields__})


async def read_time(conn: Conn) -> datetime:
    """The database's time, by which schedules are due."""
    return await conn.fetchval(READ_TIME)
