"""Open calls: model calls without recorded usage.

A row is written before the request is sent, so that the call of a worker that dies is found. `sent`
says whether the request may have been sent. The statement that records the usage deletes the row.
"""

from collections.abc import Sequence
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Raw, Struct

from chatd.domain.chat.row import Chat, Episode
from chatd.domain.ids import ChatId, UserId, WorkerId
from chatd.store.conn import Conn, Row, json_text

# The driver looks up the types of arrays in every new session, and those of JSON never.
WRITE: Final[LiteralString] = """
    WITH discarded AS (
        DELETE FROM open_calls o
        WHERE o.call_id IN (SELECT json_array_elements_text($2::json)::uuid))
    INSERT INTO open_calls (call_id, owner_id, chat_id, root_chat_id, worker_id, epoch,
        history_version, attempt, reserved_micros, record, sent)
    SELECT c.id, c.owner_id, c.chat_id, c.root_chat_id, c.worker_id, c.epoch, c.history_version,
        c.attempt, c.reserved_micros, c.record, c.sent
    FROM json_to_recordset($1::json) AS c (id uuid, owner_id uuid, chat_id uuid,
        root_chat_id uuid, worker_id uuid, epoch bigint, history_version bigint, attempt integer,
        reserved_micros bigint, record json, sent boolean)
    ON CONFLICT (call_id) DO UPDATE SET sent = true WHERE excluded.sent AND NOT open_calls.sent"""

FORGET_UNSENT: Final[LiteralString] = """
    DELETE FROM open_calls WHERE call_id = $1 AND NOT sent RETURNING call_id"""

_COLUMNS: Final[LiteralString] = """call_id, owner_id, chat_id, root_chat_id, worker_id, epoch,
    history_version, attempt, reserved_micros, record, sent"""

LIST_OF_CHAT: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM open_calls
    WHERE root_chat_id = $1 AND chat_id = $2 AND epoch < $3 LIMIT $4"""

LIST_OF_WORKERS: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM open_calls WHERE worker_id = ANY ($1::uuid[]) LIMIT $2"""

# A worker that stopped in good order may still be writing its usage.
LIST_ABANDONED: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM open_calls o
    WHERE o.at < now() - interval '1 day' OR o.at < now() - interval '30 s'
        AND NOT EXISTS (SELECT FROM chat_workers w WHERE w.worker_id = o.worker_id) LIMIT $1"""

# A record of another version that no replica has read: its reservation must not count for ever.
GIVE_UP: Final[LiteralString] = """
    DELETE FROM open_calls WHERE at < now() - interval '2 days' RETURNING chat_id"""

MAX_CALLS_LISTED: Final = 1_000


class OpenCall(Struct, frozen=True, kw_only=True):
    """`record` is an encoded `StartedCall`. `reserved_micros` is what the call costs at least.
    `sent`: the request may have been sent."""

    id: UUID
    owner_id: UserId
    chat_id: ChatId
    root_chat_id: ChatId
    worker_id: WorkerId
    epoch: int
    history_version: int
    attempt: int
    reserved_micros: int | None
    record: Raw
    sent: bool = True

    @property
    def episode(self) -> Episode:
        return Episode(self.chat_id, self.history_version, self.attempt)


async def forget_unsent(conn: Conn, call_id: UUID) -> bool:
    """False if the call was sent since it was read, or is settled."""
    return await conn.fetchval(FORGET_UNSENT, call_id) is not None


async def write(conn: Conn, opened: Sequence[OpenCall], discarded: Sequence[UUID]) -> None:
    """Write the rows of calls that are about to be sent, and delete those of calls that were not.
    Writing a row again only marks it as sent."""
    await conn.execute(WRITE, json_text(opened), json_text(discarded))


async def list_before(conn: Conn, chat: Chat) -> list[OpenCall]:
    """The open calls of the chat's earlier owners."""
    rows = await conn.fetch(LIST_OF_CHAT, chat.root_chat_id, chat.id, chat.epoch, MAX_CALLS_LISTED)
    return [_open_call(row) for row in rows]


async def list_of_workers(conn: Conn, workers: Sequence[WorkerId]) -> list[OpenCall]:
    rows = await conn.fetch(LIST_OF_WORKERS, list(workers), MAX_CALLS_LISTED)
    return [_open_call(row) for row in rows]


async def list_abandoned(conn: Conn) -> list[OpenCall]:
    """Calls of workers that are gone, and calls older than any call can be."""
    return [_open_call(row) for row in await conn.fetch(LIST_ABANDONED, MAX_CALLS_LISTED)]


async def give_up(conn: Conn) -> list[ChatId]:
    """Delete the calls that could not be recorded for two days. The chats of these calls."""
    return [ChatId(row["chat_id"]) for row in await conn.fetch(GIVE_UP)]


def _open_call(row: Row) -> OpenCall:
    return OpenCall(
        id=row["call_id"],
        owner_id=row["owner_id"],
        chat_id=row["chat_id"],
        root_chat_id=row["root_chat_id"],
        worker_id=row["worker_id"],
        epoch=row["epoch"],
        history_version=row["history_version"],
        attempt=row["attempt"],
        reserved_micros=row["reserved_micros"],
        record=Raw(row["record"]),
        sent=row["sent"],
    )
