"""The events of git hosts that chatd acts upon, and the issues and pull requests that have a chat.

Both are queues: a row is claimed by moving its due time, so what a process that died had claimed is
due again. All is for the server itself, except the list of events for administrators.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import Actor, require_permission
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.repositories import (
    MAX_WAITING_EVENTS,
    NO_OPEN_PULL,
    EventOutcome,
    HostEvent,
    covers,
)
from chatd.domain.ids import ChatId, UserId, WorkspaceId
from chatd.store.database.conn import Conn, Row, json_text
from chatd.store.deployment.repositories import SealedAccess, read_access

_EVENT: Final[LiteralString] = """
    e.id, e.connection_id, e.delivery_id, e.event, e.created_at, e.attempts, e.due_at, e.ended_at,
    e.outcome, e.detail, e.chat_id"""
_THREAD: Final[LiteralString] = """
    t.id, t.connection_id, t.repository, t.number, t.is_pull, t.title, t.branch, t.chat_id,
    t.workspace_id, t.pull_number, t.pull_url, t.rounds, t.request, t.reply_number,
    t.reply_is_pull, t.comment_key, t.comment_tried, t.comment_id, t.shown_version, t.attempts"""

# A delivery of an event that failed for good is tried again; else the same event is stored once.
STORE: Final[LiteralString] = """
    WITH waiting AS (
        SELECT count(*) AS n FROM repository_events
        WHERE connection_id = $1 AND due_at IS NOT NULL),
    stored AS (
        INSERT INTO repository_events (connection_id, key, delivery_id, repository, number, event)
        SELECT $1, $2, $3, $4, $5, $6::json FROM waiting WHERE n < $7
        ON CONFLICT (connection_id, key) DO UPDATE SET due_at = now(), ended_at = NULL,
            attempts = 0, outcome = 'waiting', detail = '', delivery_id = EXCLUDED.delivery_id
        WHERE repository_events.outcome = 'failed'
        RETURNING id)
    SELECT EXISTS (SELECT FROM stored) AS stored, (SELECT n FROM waiting) AS waiting"""
# In order for each issue: an event waits for the earlier ones there.
CLAIM: Final[LiteralString] = f"""
    UPDATE repository_events e
    SET due_at = now() + $2::float8 * interval '1 s', attempts = e.attempts + 1
    FROM (
        SELECT w.id FROM repository_events w
        JOIN repository_connections c ON c.id = w.connection_id
        WHERE w.due_at <= now() AND (c.rest_until IS NULL OR c.rest_until <= now())
          AND NOT EXISTS (
            SELECT FROM repository_events f
            WHERE f.connection_id = w.connection_id AND f.repository = w.repository
              AND f.number = w.number AND f.due_at IS NOT NULL AND f.id < w.id)
        ORDER BY w.due_at LIMIT $1 FOR UPDATE OF w SKIP LOCKED) claimed
    WHERE e.id = claimed.id RETURNING {_EVENT}"""
# Only of the attempt that was claimed: a late end of an earlier one changes nothing.
END: Final[LiteralString] = """
    UPDATE repository_events SET due_at = NULL, ended_at = now(), outcome = $3, detail = $4,
        chat_id = $5
    WHERE id = $1 AND attempts = $2 AND due_at IS NOT NULL"""
RETRY: Final[LiteralString] = """
    UPDATE repository_events SET due_at = now() + $3::float8 * interval '1 s', detail = $4
    WHERE id = $1 AND attempts = $2 AND due_at IS NOT NULL"""
LIST: Final[LiteralString] = f"""
    SELECT {_EVENT} FROM repository_events e
    WHERE e.connection_id = $1 AND ($2::bigint IS NULL OR e.id < $2) ORDER BY e.id DESC LIMIT $3"""
DELETE_ENDED: Final[LiteralString] = """
    DELETE FROM repository_events WHERE id IN (
        SELECT id FROM repository_events
        WHERE ended_at < now() - $1::float8 * interval '1 s' ORDER BY ended_at LIMIT $2)"""

PLACE: Final[LiteralString] = f"""
    WITH made AS (
        INSERT INTO repository_threads (id, connection_id, repository, number, is_pull, title,
            branch, comment_key, reply_number, reply_is_pull)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $4, $5)
        ON CONFLICT (connection_id, repository, number, is_pull) DO NOTHING RETURNING *)
    SELECT {_THREAD} FROM made t
    UNION ALL SELECT {_THREAD} FROM repository_threads t
    WHERE t.connection_id = $2 AND t.repository = $3 AND t.number = $4 AND t.is_pull = $5
      AND NOT EXISTS (SELECT FROM made)"""
# The place itself before a chat that opened this pull request.
FIND: Final[LiteralString] = f"""
    SELECT {_THREAD} FROM repository_threads t
    WHERE t.connection_id = $1 AND t.repository = $2
      AND ((t.number = $3 AND t.is_pull = $4) OR ($4 AND t.pull_number = $3))
    ORDER BY (t.number = $3 AND t.is_pull = $4) DESC, t.created_at DESC LIMIT 1"""
FIND_BY_BRANCH: Final[LiteralString] = f"""
    SELECT {_THREAD} FROM repository_threads t
    WHERE t.connection_id = $1 AND t.repository = $2 AND t.branch = $3
    ORDER BY t.created_at DESC LIMIT 1"""
# Before the chat and its workspace are made: the proxy finds the token by the workspace.
BIND: Final[LiteralString] = """
    UPDATE repository_threads SET chat_id = $2, workspace_id = $3 WHERE id = $1"""
# A request gets a comment of its own, unless one is still written.
BEGIN_REPLY: Final[LiteralString] = """
    UPDATE repository_threads t SET request = $2, is_shown = false, due_at = now(), attempts = 0,
        failure = '', shown_version = 0,
        reply_number = CASE WHEN is_shown THEN $4 ELSE reply_number END,
        reply_is_pull = CASE WHEN is_shown THEN $5 ELSE reply_is_pull END,
        comment_key = CASE WHEN is_shown THEN $3 ELSE comment_key END,
        comment_id = CASE WHEN NOT is_shown THEN comment_id END,
        comment_tried = NOT is_shown AND comment_tried
    WHERE id = $1 AND request <> $2"""
ADD_ROUND: Final[LiteralString] = """
    UPDATE repository_threads SET rounds = rounds || $2::text
    WHERE id = $1 AND NOT $2 = ANY (rounds) AND cardinality(rounds) < $3"""
CLAIM_THREADS: Final[LiteralString] = f"""
    UPDATE repository_threads t
    SET due_at = now() + $2::float8 * interval '1 s', attempts = t.attempts + 1
    FROM (
        SELECT w.id, h.snapshot_version FROM repository_threads w
        JOIN repository_connections c ON c.id = w.connection_id AND c.enabled
        LEFT JOIN chats h ON h.id = w.chat_id
        WHERE NOT w.is_shown AND w.due_at <= now()
          AND (c.rest_until IS NULL OR c.rest_until <= now())
          AND (h.id IS NULL OR h.snapshot_version > w.shown_version)
        ORDER BY w.due_at LIMIT $1 FOR UPDATE OF w SKIP LOCKED) claimed
    WHERE t.id = claimed.id RETURNING {_THREAD}"""
TRY_COMMENT: Final[LiteralString] = """
    UPDATE repository_threads SET comment_tried = true
    WHERE id = $1 AND comment_key = $2 AND attempts = $3 RETURNING id"""
SET_COMMENT: Final[LiteralString] = """
    UPDATE repository_threads SET comment_id = $3 WHERE id = $1 AND comment_key = $2"""
# Checks may fail before the pull request is opened: of its branch they are read again then.
SET_PULL: Final[LiteralString] = """
    WITH opened AS (
        UPDATE repository_threads SET pull_number = $2, pull_url = $3 WHERE id = $1
        RETURNING connection_id, repository, branch)
    UPDATE repository_events e SET due_at = now(), ended_at = NULL, outcome = 'waiting',
        attempts = 0
    FROM opened o
    WHERE e.connection_id = o.connection_id AND e.repository = o.repository AND e.number = 0
      AND e.outcome = 'ignored' AND e.detail = $4 AND e.event ->> 'branch' = o.branch"""
# Not if another request has begun since: `request` is then another one.
SHOWN: Final[LiteralString] = """
    UPDATE repository_threads SET shown_version = $3, is_shown = $4, attempts = 0, failure = '',
        due_at = now() + $5::float8 * interval '1 s'
    WHERE id = $1 AND request = $2"""
POSTPONE: Final[LiteralString] = """
    UPDATE repository_threads SET due_at = now() + coalesce($3::float8, 0) * interval '1 s',
        failure = $4, is_shown = $3::float8 IS NULL
    WHERE id = $1 AND request = $2"""
DELETE_THREADS: Final[LiteralString] = """
    DELETE FROM repository_threads WHERE id IN (
        SELECT t.id FROM repository_threads t
        WHERE t.created_at < now() - interval '2 days'
          AND (SELECT c.id FROM chats c WHERE c.id = t.chat_id) IS NULL LIMIT $1)"""
# Not for workspaces of a user to whom the connection belonged before.
LIST_WORKSPACE_ACCESS: Final[LiteralString] = """
    SELECT t.workspace_id, t.repository, c.id, c.vendor, c.url, c.app_id, c.token, c.private_key,
        c.repositories
    FROM repository_threads t JOIN repository_connections c ON c.id = t.connection_id
    JOIN workspaces w ON w.id = t.workspace_id AND w.owner_id = c.user_id
    WHERE t.workspace_id = ANY ($1::uuid[]) AND c.enabled"""
FIND_CHAT_ACCESS: Final[LiteralString] = """
    SELECT t.workspace_id, t.repository, c.id, c.vendor, c.url, c.app_id, c.token, c.private_key,
        c.repositories
    FROM repository_threads t JOIN repository_connections c ON c.id = t.connection_id
    WHERE t.chat_id = $1 AND c.user_id = $2 AND c.enabled LIMIT 1"""

# The latest events of the connection: only this many are read.
COUNT_RECENT: Final[LiteralString] = """
    SELECT count(*) FROM (
        SELECT repository, number, outcome, ended_at FROM repository_events
        WHERE connection_id = $1 ORDER BY id DESC LIMIT 500) latest
    WHERE repository = $2 AND number = $3 AND outcome = 'done'
      AND ended_at > now() - interval '1 hour'"""

_DECODER: Final = msgspec.json.Decoder(HostEvent)
StoreResult = Literal["stored", "known", "full"]


class StoredEvent(Struct, frozen=True, kw_only=True):
    id: int
    connection_id: UUID
    delivery_id: str
    event: HostEvent
    created_at: datetime
    attempts: int
    due_at: datetime | None
    ended_at: datetime | None
    outcome: EventOutcome
    detail: str
    chat_id: ChatId | None


class StoredThread(Struct, frozen=True, kw_only=True):
    id: UUID
    connection_id: UUID
    repository: str
    number: int
    is_pull: bool
    title: str
    branch: str
    chat_id: ChatId | None
    workspace_id: WorkspaceId | None
    pull_number: int | None
    pull_url: str
    rounds: tuple[str, ...]
    request: str
    reply_number: int
    reply_is_pull: bool
    comment_key: UUID
    comment_tried: bool
    comment_id: str | None
    shown_version: int
    attempts: int


class RepositoryAccess(Struct, frozen=True, kw_only=True):
    """The access of a connection, for one repository."""

    workspace_id: WorkspaceId | None
    repository: str
    access: SealedAccess


async def store_event(
    conn: Conn, connection_id: UUID, delivery_id: str, event: HostEvent
) -> StoreResult:
    row = await conn.fetchrow(
        STORE,
        connection_id,
        event.key,
        delivery_id,
        event.repository,
        event.number,
        json_text(event),
        MAX_WAITING_EVENTS,
    )
    assert row is not None
    if row["stored"]:
        return "stored"
    return "full" if row["waiting"] >= MAX_WAITING_EVENTS else "known"


async def claim_events(conn: Conn, *, limit: int, claim_s: float) -> Sequence[StoredEvent]:
    """The events that are due; other replicas get them only after `claim_s`."""
    return _events(await conn.fetch(CLAIM, limit, claim_s))


async def count_recent(conn: Conn, event: StoredEvent) -> int:
    """How many requests of its issue or pull request were accepted within the last hour."""
    told = event.event
    return await conn.fetchval(COUNT_RECENT, event.connection_id, told.repository, told.number)


async def end_event(
    conn: Conn,
    event: StoredEvent,
    outcome: EventOutcome,
    detail: str = "",
    chat_id: ChatId | None = None,
) -> None:
    await conn.execute(END, event.id, event.attempts, outcome, detail, chat_id)


async def retry_event(conn: Conn, event: StoredEvent, after_s: float, detail: str) -> None:
    await conn.execute(RETRY, event.id, event.attempts, after_s, detail)


async def list_events(
    conn: Conn, actor: Actor, connection_id: UUID, *, before: int | None, limit: int
) -> Sequence[StoredEvent]:
    """Newest first."""
    require_permission(actor, "config.read")
    return _events(await conn.fetch(LIST, connection_id, before, limit))


async def delete_ended(conn: Conn, *, after_s: float, limit: int) -> int:
    status = await conn.execute(DELETE_ENDED, after_s, limit)
    return int(status.rpartition(" ")[2])


async def delete_threads(conn: Conn, *, limit: int) -> int:
    """Delete the threads of chats that were removed."""
    status = await conn.execute(DELETE_THREADS, limit)
    return int(status.rpartition(" ")[2])


async def place_thread(
    conn: Conn, connection_id: UUID, event: HostEvent, *, thread_id: UUID, key: UUID, branch: str
) -> StoredThread:
    """The thread at this place, new if there is none."""
    args = (thread_id, connection_id, event.repository, event.number, event.is_pull, event.title)
    row = await conn.fetchrow(PLACE, *args, branch, key)
    if row is None:  # another replica inserted it after this statement began
        row = await conn.fetchrow(PLACE, *args, branch, key)
    assert row is not None
    return _thread(row)


async def find_thread(conn: Conn, connection_id: UUID, event: HostEvent) -> StoredThread | None:
    """Includes a pull request that the chat of an issue has opened."""
    args = (connection_id, event.repository, event.number, event.is_pull)
    row = await conn.fetchrow(FIND, *args)
    return None if row is None else _thread(row)


async def find_by_branch(conn: Conn, connection_id: UUID, event: HostEvent) -> StoredThread | None:
    row = await conn.fetchrow(FIND_BY_BRANCH, connection_id, event.repository, event.branch)
    return None if row is None else _thread(row)


async def bind(
    conn: Conn, thread: StoredThread, chat_id: ChatId, workspace_id: WorkspaceId
) -> None:
    await conn.execute(BIND, thread.id, chat_id, workspace_id)


async def begin_reply(conn: Conn, thread: StoredThread, event: HostEvent, key: UUID) -> None:
    """From now on a comment shows what the chat does. Repeated, it changes nothing."""
    number = event.number or thread.pull_number or thread.number
    is_pull = event.is_pull if event.number else thread.pull_number is not None or thread.is_pull
    await conn.execute(BEGIN_REPLY, thread.id, event.key, key, number, is_pull)


async def add_round(conn: Conn, thread: StoredThread, commit: str, most: int) -> None:
    await conn.execute(ADD_ROUND, thread.id, commit, most)


async def claim_threads(conn: Conn, *, limit: int, claim_s: float) -> Sequence[StoredThread]:
    """The threads whose comment is behind their chat."""
    return [_thread(row) for row in await conn.fetch(CLAIM_THREADS, limit, claim_s)]


async def try_comment(conn: Conn, thread: StoredThread) -> bool:
    """Before the comment is made. False: another replica has claimed the thread since."""
    args = (thread.id, thread.comment_key, thread.attempts)
    return await conn.fetchval(TRY_COMMENT, *args) is not None


async def set_comment(conn: Conn, thread: StoredThread, comment_id: str) -> None:
    await conn.execute(SET_COMMENT, thread.id, thread.comment_key, comment_id)


async def set_pull(conn: Conn, thread: StoredThread, number: int, url: str) -> None:
    await conn.execute(SET_PULL, thread.id, number, url, NO_OPEN_PULL)


async def set_shown(
    conn: Conn, thread: StoredThread, chat: Chat | None, *, is_final: bool, pause_s: float
) -> None:
    version = 0 if chat is None else chat.snapshot_version
    await conn.execute(SHOWN, thread.id, thread.request, version, is_final, pause_s)


async def postpone(conn: Conn, thread: StoredThread, after_s: float | None, failure: str) -> None:
    """None: it is given up until the next request."""
    await conn.execute(POSTPONE, thread.id, thread.request, after_s, failure)


async def list_workspace_access(
    conn: Conn, workspaces: Sequence[WorkspaceId]
) -> Sequence[RepositoryAccess]:
    """The access to repositories that their connections still name."""
    rows = await conn.fetch(LIST_WORKSPACE_ACCESS, list(workspaces))
    return [_access(row) for row in rows if covers(row["repositories"], row["repository"])]


async def find_chat_access(conn: Conn, chat: Chat, owner: UserId) -> RepositoryAccess | None:
    """The access for a chat that a connection started, while the connection is its owner's."""
    row = await conn.fetchrow(FIND_CHAT_ACCESS, chat.id, owner)
    if row is None or not covers(row["repositories"], row["repository"]):
        return None
    return _access(row)


def _events(rows: Sequence[Row]) -> Sequence[StoredEvent]:
    """The events, except those of a newer version of chatd that this one cannot read: a replica of
    that version gets them when the claim ends."""
    found: list[StoredEvent] = []
    for row in rows:
        values = {name: row[name] for name in StoredEvent.__struct_fields__}
        with suppress(msgspec.DecodeError):
            values["event"] = _DECODER.decode(row["event"])
            found.append(StoredEvent(**values))
    return found


def _thread(row: Row) -> StoredThread:
    values = {name: row[name] for name in StoredThread.__struct_fields__}
    values["rounds"] = tuple(row["rounds"])
    return StoredThread(**values)


def _access(row: Row) -> RepositoryAccess:
    workspace: UUID | None = row["workspace_id"]
    return RepositoryAccess(
        workspace_id=None if workspace is None else WorkspaceId(workspace),
        repository=row["repository"],
        access=read_access(row),
    )
