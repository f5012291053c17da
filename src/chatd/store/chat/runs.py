"""Read the record of attempts, the worker that has a chat, and the workers that are alive."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import Actor, require_permission
from chatd.domain.chat.runs import RunDetail
from chatd.domain.chat.takeover import Takeover
from chatd.domain.ids import ChatId, MessageId, WorkerId
from chatd.store.database.conn import Conn, Row
from chatd.store.database.row_access import chat_condition, chat_reach

# Fragments of statements that write the record of attempts, in the statement of the change itself.
#
# Each joins `changed c`, the updated rows of chats, so that a conflict records nothing. The end of
# an attempt is written by the statement that takes the chat from its worker; a row without an end
# is the attempt in progress.

_KEPT: Final[LiteralString] = "200"
RUNS_KEPT_PER_CHAT: Final = int(_KEPT)
"""Older rows are deleted one by one as new ones are written."""


def take_over(worker: LiteralString) -> LiteralString:
    """The takeover by this worker, from the owner's death in `chats c`."""
    return f"""c.lost || jsonb_build_object('worker_id', {worker},
            'version', c.snapshot_version + 1, 'after_ms', CASE WHEN c.lost ? 'seen_at_us' THEN
            greatest(0, (extract(epoch FROM now()) * 1000
                - (c.lost->>'seen_at_us')::bigint / 1000)::bigint) END)"""


# The epoch and the attempt are those after the change; the takeover only if this change is it.
_BEGUN: Final[LiteralString] = """
    INSERT INTO chat_runs (chat_id, run_no, turn_no, turn_message_id, epoch, attempt, worker_id,
        first_message_id, takeover)
    SELECT c.id, c.run_no, c.turn_no, c.turn_message_id, c.epoch, c.attempt, c.worker_id,
        c.next_message_id,
        CASE WHEN (c.takeover->>'version')::bigint = c.snapshot_version THEN c.takeover END
    FROM changed c"""

BEGIN_RUNS: Final[LiteralString] = f"""
begun AS ({_BEGUN}),
trimmed AS (
    DELETE FROM chat_runs r USING changed c
    WHERE r.chat_id = c.id AND r.run_no = c.run_no - {_KEPT})"""
"""For all chats in `changed`."""

BEGIN_RUN: Final[LiteralString] = f"""
begun AS ({_BEGUN} WHERE :run_begins::boolean),
trimmed AS (
    DELETE FROM chat_runs r USING changed c
    WHERE :run_begins AND r.chat_id = :chat_id AND r.run_no = c.run_no - {_KEPT})"""
"""For the one chat of a change, which may begin none."""

BEGIN_FIRST_RUN: Final[LiteralString] = f"""
begun AS ({_BEGUN} WHERE :run_begins::boolean)"""
"""For a new chat, which has none to trim."""

END_RUN: Final[LiteralString] = """
ended AS (
    UPDATE chat_runs r SET ended_at = now(), outcome = :run_outcome::text,
        end_message_id = :run_end_message_id::bigint, detail = :run_detail::json
    FROM changed c
    WHERE :run_outcome::text IS NOT NULL AND r.chat_id = :chat_id
      AND r.run_no = c.run_no - :run_begins::boolean::int AND r.ended_at IS NULL)"""

RELEASE_RUNS: Final[LiteralString] = """
ended AS (
    UPDATE chat_runs r SET ended_at = now(), outcome = 'released',
        end_message_id = c.next_message_id
    FROM changed c WHERE r.chat_id = c.id AND r.run_no = c.run_no AND r.ended_at IS NULL)"""


MAX_WORKERS_LISTED: Final = 1000

_DETAIL = msgspec.json.Decoder(RunDetail)
_TAKEOVER = msgspec.json.Decoder(Takeover)

# An attempt without an end is the one in progress, unless the chat has another or no owner: a
# server of an earlier release ended it and wrote no record.
LIST_RUNS: Final[LiteralString] = f"""
    SELECT r.*, coalesce(w.host, f.host, '') AS host,
        r.ended_at IS NULL AND c.worker_id = r.worker_id AND c.run_no = r.run_no AS is_running,
        coalesce(r.end_message_id, c.next_message_id) - r.first_message_id AS messages
    FROM chat_runs r JOIN chats c ON c.id = r.chat_id
    LEFT JOIN chat_workers w ON w.worker_id = r.worker_id
    LEFT JOIN former_workers f ON f.worker_id = r.worker_id
    WHERE r.chat_id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}
      AND ($4::bigint IS NULL OR r.turn_no < $4)
    ORDER BY r.run_no DESC LIMIT $5"""

GET_HOLDER: Final[LiteralString] = f"""
    SELECT c.worker_id, coalesce(w.host, '') AS host,
        CASE WHEN c.status IN ('running', 'interrupting') THEN c.runnable_at END AS next_at,
        greatest(0, extract(epoch FROM now() - w.renewed_at) * 1000)::bigint AS renewed_ms
    FROM chats c LEFT JOIN chat_workers w ON w.worker_id = c.worker_id
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}"""

# The chats of each worker by the index of owned chats.
LIST_WORKERS: Final[LiteralString] = """
    WITH owned AS MATERIALIZED (
        SELECT worker_id, count(*) AS chats FROM chats WHERE worker_id IS NOT NULL GROUP BY 1)
    SELECT w.worker_id, w.host, w.version, w.started_at, w.renewed_at, w.draining, w.slots,
        w.child_slots, w.lease_until > now() AS is_alive, coalesce(o.chats, 0) AS chats,
        greatest(0, extract(epoch FROM now() - w.renewed_at) * 1000)::bigint AS renewed_ms
    FROM chat_workers w LEFT JOIN owned o USING (worker_id)
    ORDER BY w.started_at, w.worker_id LIMIT $1"""


class RunRow(Struct, frozen=True, kw_only=True):
    """One attempt. `messages` counts what it has committed."""

    run_no: int
    turn_no: int
    turn_message_id: MessageId | None
    epoch: int
    attempt: int
    worker_id: WorkerId
    host: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    is_running: bool
    messages: int
    detail: RunDetail
    takeover: Takeover | None


class Holder(Struct, frozen=True, kw_only=True):
    """Who has the chat now. `next_at`: when the next attempt may begin, if no worker has it."""

    worker_id: WorkerId | None
    host: str
    renewed_ms: int | None
    next_at: datetime | None


class WorkerRow(Struct, frozen=True, kw_only=True):
    worker_id: WorkerId
    host: str
    version: str
    started_at: datetime
    renewed_at: datetime
    renewed_ms: int
    draining: bool
    slots: int
    child_slots: int
    chats: int
    is_alive: bool


async def list_runs(
    conn: Conn, actor: Actor, chat_id: ChatId, before_turn: int | None = None
) -> list[RunRow]:
    """The attempts of the turns before this one, newest first. Empty for an unreadable chat."""
    reach = chat_reach(actor, "chats.read")
    rows = await conn.fetch(LIST_RUNS, chat_id, *reach, before_turn, RUNS_KEPT_PER_CHAT)
    return [_run(row) for row in rows]


async def get_holder(conn: Conn, actor: Actor, chat_id: ChatId) -> Holder | None:
    """None for a chat that the actor may not read."""
    row = await conn.fetchrow(GET_HOLDER, chat_id, *chat_reach(actor, "chats.read"))
    return None if row is None else Holder(**dict(row))


async def list_workers(conn: Conn, actor: Actor) -> list[WorkerRow]:
    """The live workers, for administrators."""
    require_permission(actor, "config.read")
    return await list_lanes(conn)


async def list_lanes(conn: Conn) -> list[WorkerRow]:
    """The workers that are shown with a chat's attempts."""
    rows = await conn.fetch(LIST_WORKERS, MAX_WORKERS_LISTED)
    return [WorkerRow(**dict(row)) for row in rows]


def _run(row: Row) -> RunRow:
    columns = dict(row)
    detail, takeover = columns["detail"], columns["takeover"]
    columns.update(
        detail=RunDetail() if detail is None else _DETAIL.decode(detail),
        takeover=None if takeover is None else _TAKEOVER.decode(takeover),
    )
    return RunRow(**{name: columns[name] for name in RunRow.__struct_fields__})


def group_by_turn(runs: Sequence[RunRow]) -> list[list[RunRow]]:
    """Turns newest first, the attempts of each in the order of time."""
    turns: dict[int, list[RunRow]] = {}
    for run in runs:
        turns.setdefault(run.turn_no, []).insert(0, run)
    return list(turns.values())
