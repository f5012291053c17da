"""The journal of live parts, which viewers on other replicas tail. History does not depend on it.

A row holds the parts of one episode from one flush. Rows lie in a ring of slots by the database's
clock; a slot is truncated as a whole before it is used again. What an attempt said that ended
without a commit is kept in a table of its own, one row per chat, until the chat's next step.
"""

from collections.abc import Sequence
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.row import Chat, Episode
from chatd.store.database.conn import Conn, Row

JOURNAL_SLOTS: Final = 6
JOURNAL_SLOT_S: Final = 300
"""Of the six slots four are read, one is written next and one is truncated. Viewers can therefore
read an episode of up to fifteen minutes, the longest step, from its start."""

_CURRENT_SLOT: Final[LiteralString] = "((extract(epoch FROM now())::bigint / 300) % 6)"
_RECENT_SLOTS: Final[LiteralString] = (
    f"{_CURRENT_SLOT}::smallint, (({_CURRENT_SLOT} + 5) % 6)::smallint"
)
# Reading from the start needs four slots, continuing needs two. A slot named twice costs nothing,
# and with an array the planner skips the slots that are not named.
_READ_SLOTS: Final[LiteralString] = f"""ARRAY[{_RECENT_SLOTS},
    ((CASE WHEN w.seen = 0 THEN {_CURRENT_SLOT} + 4 ELSE {_CURRENT_SLOT} END) % 6)::smallint,
    ((CASE WHEN w.seen = 0 THEN {_CURRENT_SLOT} + 3 ELSE {_CURRENT_SLOT} END) % 6)::smallint]"""

APPEND: Final[LiteralString] = f"""
    INSERT INTO chat_journal (slot, chat_id, history_version, attempt, first_seq, last_seq,
        closed, parts)
    SELECT {_CURRENT_SLOT}, e.* FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::integer[],
        $5::integer[], $6::boolean[], $7::bytea[]) AS e"""

# One index look-up per episode: the planner turns a plain join into a scan.
TAIL: Final[LiteralString] = f"""
    SELECT j.chat_id, j.history_version, j.attempt, j.first_seq, j.last_seq, j.closed, j.parts
    FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::integer[])
        AS w (chat_id, history_version, attempt, seen),
    LATERAL (
        SELECT * FROM chat_journal r
        WHERE r.slot = ANY ({_READ_SLOTS}) AND r.chat_id = w.chat_id
          AND r.history_version = w.history_version AND r.attempt = w.attempt
          AND r.first_seq > w.seen
        ORDER BY r.first_seq LIMIT $5) j"""

# Records of calls have no number of a part, so that the tail never reads them. A later record of
# the same call has a lower number.
FIND_CALLS: Final[LiteralString] = """
    SELECT history_version, attempt, parts FROM chat_journal
    WHERE chat_id = $1 AND first_seq <= 0 AND (history_version, attempt) <= ($2, $3)
    ORDER BY history_version, attempt, first_seq DESC LIMIT $4"""

# The slot two ahead: the next one may be written to at any moment. One statement computes the slot
# and truncates it, because a process that pauses in between would truncate a slot in use. An empty
# slot is not locked. The statement never waits for the lock: behind a waiting ACCESS EXCLUSIVE all
# reads and appends of live parts would wait too, for example while pg_dump holds its lock. A slot
# that stays full is truncated the next time; no reader asks for its old episodes. The time-out is
# for the slot's TOAST table, which TRUNCATE locks after the table itself.
TRUNCATE_OLDEST_SLOT: Final[LiteralString] = f"""
    DO $do$ DECLARE
        oldest text := 'chat_journal_' || (({_CURRENT_SLOT} + 2) % 6);
    BEGIN
        IF pg_relation_size(oldest::regclass) > 0 THEN
            PERFORM set_config('lock_timeout', '20ms', true);
            EXECUTE 'LOCK TABLE ' || oldest || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
            EXECUTE 'TRUNCATE ' || oldest;
        END IF;
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END $do$"""

# Only by the chat's owner, so that a stalled worker replaces nothing.
KEEP_ANSWER: Final[LiteralString] = """
    INSERT INTO kept_answers AS k (chat_id, history_version, attempt, parts)
    SELECT c.id, c.history_version, $5, $6 FROM chats c
    WHERE c.id = $1 AND c.worker_id = $2 AND c.epoch = $3 AND c.history_version = $4
    ON CONFLICT (chat_id) DO UPDATE SET history_version = excluded.history_version,
        attempt = excluded.attempt, parts = excluded.parts
    WHERE (k.history_version, k.attempt) <> (excluded.history_version, excluded.attempt)"""

FIND_KEPT_ANSWER: Final[LiteralString] = """
    SELECT attempt, parts FROM kept_answers WHERE chat_id = $1 AND history_version = $2"""

# One look-up per answer: for a join the planner would read all chats. By the version too, because
# the owner may have replaced the answer.
DELETE_OLD_KEPT: Final[LiteralString] = """
    DELETE FROM kept_answers WHERE (chat_id, history_version) IN (
        SELECT k.chat_id, k.history_version FROM kept_answers k
        WHERE k.history_version <> (SELECT c.history_version FROM chats c WHERE c.id = k.chat_id)
        LIMIT $1)"""

MAX_CALLS_FOUND: Final = 1_000


class JournalEntry(Struct, frozen=True, kw_only=True):
    """Parts `first_seq..last_seq` of an episode, encoded; `closed` ends it. With a `first_seq` of
    0 or less it is the record of a model call, which viewers never get."""

    episode: Episode
    first_seq: int
    last_seq: int
    parts: bytes
    closed: bool = False


async def append(conn: Conn, entries: Sequence[JournalEntry]) -> None:
    """Write all of a replica's episodes by one statement."""
    await conn.execute(
        APPEND,
        [flush.episode.chat_id for flush in entries],
        [flush.episode.history_version for flush in entries],
        [flush.episode.attempt for flush in entries],
        [flush.first_seq for flush in entries],
        [flush.last_seq for flush in entries],
        [flush.closed for flush in entries],
        [flush.parts for flush in entries],
    )


async def tail(
    conn: Conn, positions: Sequence[tuple[Episode, int]], *, limit: int = 100
) -> list[JournalEntry]:
    """Read what was flushed after the last sequence number read, for all episodes at once."""
    rows = await conn.fetch(
        TAIL,
        [episode.chat_id for episode, _ in positions],
        [episode.history_version for episode, _ in positions],
        [episode.attempt for episode, _ in positions],
        [last for _, last in positions],
        limit,
    )
    return [_entry(row) for row in rows]


async def find_calls(conn: Conn, last: Episode) -> list[tuple[Episode, bytes]]:
    """The records of model calls up to this episode of the chat; for each call the newest is
    last."""
    chat_id = last.chat_id
    rows = await conn.fetch(
        FIND_CALLS, chat_id, last.history_version, last.attempt, MAX_CALLS_FOUND
    )
    return [
        (Episode(chat_id, row["history_version"], row["attempt"]), row["parts"]) for row in rows
    ]


async def keep_answer(conn: Conn, chat: Chat, attempt: int, parts: bytes) -> None:
    """Called by the owner of the chat. Replaces what was kept of another attempt or step."""
    await conn.execute(
        KEEP_ANSWER, chat.id, chat.worker_id, chat.epoch, chat.history_version, attempt, parts
    )


async def find_kept_answer(conn: Conn, chat: Chat) -> tuple[Episode, bytes] | None:
    """What was kept of the chat's step in progress."""
    row = await conn.fetchrow(FIND_KEPT_ANSWER, chat.id, chat.history_version)
    if row is None:
        return None
    return Episode(chat.id, chat.history_version, row["attempt"]), row["parts"]


async def delete_old_kept(conn: Conn, *, limit: int) -> bool:
    """Delete the answers of steps that have been committed. True if more may be left."""
    return await conn.execute(DELETE_OLD_KEPT, limit) == f"DELETE {limit}"


async def truncate_oldest_slot(conn: Conn) -> None:
    """Call at least once per `JOURNAL_SLOT_S`. An empty slot costs almost nothing."""
    await conn.execute(TRUNCATE_OLDEST_SLOT)


def _entry(row: Row) -> JournalEntry:
    return JournalEntry(
        episode=Episode(row["chat_id"], row["history_version"], row["attempt"]),
        first_seq=row["first_seq"],
        last_seq=row["last_seq"],
        parts=row["parts"],
        closed=row["closed"],
    )
