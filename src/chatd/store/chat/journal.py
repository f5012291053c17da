"""The journal of live parts: what viewers on other replicas tail.

Never needed for the truth of history. A row holds the parts of one episode
from one flush. Rows live in a ring of slots, by the database's clock; the
slot whose turn comes next is emptied whole, ahead of time.
"""

from collections.abc import Sequence
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.row import Episode
from chatd.store.conn import Conn, Row

JOURNAL_SLOTS: Final = 6
JOURNAL_SLOT_S: Final = 300
"""Four slots are read, one is being written next, one is emptied: an episode of up to fifteen
minutes, the longest a step may take, is whole."""

_NOW: Final[LiteralString] = "((extract(epoch FROM now())::bigint / 300) % 6)"
_RECENT: Final[LiteralString] = f"{_NOW}::smallint, (({_NOW} + 5) % 6)::smallint"
# An episode read from its start may lie further back; one being followed does not. Naming a
# slot twice costs nothing, and written this way the planner skips those not named.
_LIVE: Final[LiteralString] = f"""ARRAY[{_RECENT},
    ((CASE WHEN w.seen = 0 THEN {_NOW} + 4 ELSE {_NOW} END) % 6)::smallint,
    ((CASE WHEN w.seen = 0 THEN {_NOW} + 3 ELSE {_NOW} END) % 6)::smallint]"""

APPEND: Final[LiteralString] = f"""
    INSERT INTO chat_journal (slot, chat_id, history_version, attempt, first_seq, last_seq,
        closed, parts)
    SELECT {_NOW}, e.* FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::integer[],
        $5::integer[], $6::boolean[], $7::bytea[]) AS e"""

# One index look-up per episode: a plain join over all of them becomes a scan.
TAIL: Final[LiteralString] = f"""
    SELECT j.chat_id, j.history_version, j.attempt, j.first_seq, j.last_seq, j.closed, j.parts
    FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::integer[])
        AS w (chat_id, history_version, attempt, seen),
    LATERAL (
        SELECT * FROM chat_journal r
        WHERE r.slot = ANY ({_LIVE}) AND r.chat_id = w.chat_id
          AND r.history_version = w.history_version AND r.attempt = w.attempt
          AND r.first_seq > w.seen
        ORDER BY r.first_seq LIMIT $5) j"""

# The slot two ahead of now: the next one is only a moment away from being written to. Which one
# that is and emptying it are one statement, or a process that stood still in between would
# empty a slot that is in use by then. An empty one is not even locked.
EMPTY_OLDEST: Final[LiteralString] = f"""
    DO $do$ DECLARE
        oldest text := 'chat_journal_' || (({_NOW} + 2) % 6);
    BEGIN
        IF pg_relation_size(oldest::regclass) > 0 THEN
            EXECUTE 'TRUNCATE ' || oldest;
        END IF;
    END $do$"""


class JournalEntry(Struct, frozen=True, kw_only=True):
    """Parts `first_seq..last_seq` of an episode, encoded; `closed` ends it."""

    episode: Episode
    first_seq: int
    last_seq: int
    parts: bytes
    closed: bool = False


async def append(conn: Conn, flushes: Sequence[JournalEntry]) -> None:
    """All of a replica's episodes in one statement."""
    await conn.execute(
        APPEND,
        [flush.episode.chat_id for flush in flushes],
        [flush.episode.history_version for flush in flushes],
        [flush.episode.attempt for flush in flushes],
        [flush.first_seq for flush in flushes],
        [flush.last_seq for flush in flushes],
        [flush.closed for flush in flushes],
        [flush.parts for flush in flushes],
    )


async def tail(
    conn: Conn, seen: Sequence[tuple[Episode, int]], *, most: int = 100
) -> list[JournalEntry]:
    """What was flushed after the last sequence number seen, for all watched episodes at once."""
    rows = await conn.fetch(
        TAIL,
        [episode.chat_id for episode, _ in seen],
        [episode.history_version for episode, _ in seen],
        [episode.attempt for episode, _ in seen],
        [last for _, last in seen],
        most,
    )
    return [_flush(row) for row in rows]


async def truncate_oldest_slot(conn: Conn) -> None:
    """Call at least once per slot time. Emptying an empty slot costs next to nothing."""
    await conn.execute(EMPTY_OLDEST)


def _flush(row: Row) -> JournalEntry:
    return JournalEntry(
        episode=Episode(row["chat_id"], row["history_version"], row["attempt"]),
        first_seq=row["first_seq"],
        last_seq=row["last_seq"],
        parts=row["parts"],
        closed=row["closed"],
    )
