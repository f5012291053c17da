"""Find chats by pieces of their titles and messages, and messages within a chat; and keep the index
of both up to date.

The index is a table of its own, filled behind the commits by `index_batch`. It finds the entries
of an owner that have the grams of the terms (`domain.chat_views.search_text`); those are compared
with the terms, newest first, until a page is full.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.access.permissions import Actor, UserActor
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.search import (
    fold,
    has_terms,
    index_keys,
    is_short,
    message_text,
    one_line,
    query_grams,
    text_grams,
    title_gram,
)
from chatd.domain.ids import ChatId, MessageId, UserId
from chatd.store.chat.chats import FILTERS, ChatListFilter, chat_from_row, filter_values
from chatd.store.chat.messages import MESSAGE_COLUMNS, messages_from_json, take_within_bytes
from chatd.store.database.conn import Conn, DatabaseSession, Row
from chatd.store.database.pool import Pool
from chatd.store.database.row_access import chat_condition, chat_reach, shared_roots


def changed_messages(
    chat: LiteralString,
    version: LiteralString,
    message: LiteralString,
    *,
    limit: LiteralString,
    max_bytes: LiteralString,
) -> LiteralString:
    """SQL for the messages of a chat that changed after a version, and after a message of it if
    one is given: the state of the index."""
    rows: LiteralString = f"""
        SELECT {MESSAGE_COLUMNS} FROM chat_messages
        WHERE chat_id = {chat} AND revision >= coalesce({version}, 0) AND (revision, id) >
            (coalesce({version}, 0), coalesce({message}, 9223372036854775807))
          AND role IN ('user', 'assistant')
        ORDER BY revision, id LIMIT {limit}"""
    return take_within_bytes(rows, order="revision, id", max_bytes=max_bytes)


TITLE_ENTRY: Final = MessageId(0)
"""The number of the entry of a chat's title, which is not a message."""

MAX_NEWEST_ENTRIES: Final = 1000
"""How many entries a search compares before it uses the index."""
MAX_FOUND_IN_CHAT: Final = 1000
"""How many messages of one chat are found."""
MAX_UNINDEXED_READS: Final = 25
"""Limit for messages of one chat that the index does not have yet, such as those of an import."""
MAX_UNINDEXED_MESSAGES: Final = 200
MAX_UNINDEXED_BYTES: Final = 1024 * 1024
MAX_UNINDEXED_BYTES_IN_ALL: Final = 4 * 1024 * 1024
"""A processor compares about 1 to 3 MiB in a second, and every reader of the chat may ask."""

_KEYS: Final[LiteralString] = """ARRAY(
    SELECT (gram + (('x' || right(owner_id::text, 3))::bit(12)::bigint << 20) - 2147483648)::integer
    FROM unnest($9::integer[]) gram)"""
_OWN: Final[LiteralString] = f"""
    owners AS MATERIALIZED (
        SELECT owner_id, {_KEYS} AS keys FROM (SELECT $1::uuid AS owner_id) o)"""
# $12: whether sharing is enabled.
_SHARED: Final[LiteralString] = f"""
    shared AS MATERIALIZED (
        SELECT id, owner_id FROM chats
        WHERE $12::boolean AND id = ANY ({shared_roots("$1")}) AND owner_id <> $1),
    owners AS MATERIALIZED (
        SELECT owner_id, {_KEYS} AS keys FROM (SELECT DISTINCT owner_id FROM shared) o)"""
_ALL: Final[LiteralString] = f"""
    shared AS MATERIALIZED (
        SELECT id, owner_id FROM chats
        WHERE $12::boolean AND id = ANY ({shared_roots("$1")}) AND owner_id <> $1),
    owners AS MATERIALIZED (
        SELECT owner_id, {_KEYS} AS keys
        FROM (SELECT $1::uuid AS owner_id UNION SELECT owner_id FROM shared) o)"""
# $12: whether chats of others are searched, $13: whether own ones are, $14: the project.
_IN_PROJECT: Final[LiteralString] = f"""
    shared AS MATERIALIZED (
        SELECT id, owner_id FROM chats
        WHERE project_id = $14 AND parent_chat_id IS NULL
          AND (owner_id = $1 AND $13::boolean OR owner_id <> $1 AND $12::boolean AND EXISTS (
              SELECT FROM project_members m WHERE m.project_id = $14 AND m.user_id = $1))),
    owners AS MATERIALIZED (
        SELECT owner_id, {_KEYS} AS keys FROM (SELECT DISTINCT owner_id FROM shared) o)"""
_IS_SHARED: Final[LiteralString] = "IN (SELECT id FROM shared)"


def _search(owners: LiteralString, roots: LiteralString, entries: LiteralString) -> LiteralString:
    """The root chats with an entry that has all grams $9, newest first, and of each the newest that
    has all terms: the texts of messages and titles match $10, the title of the root matches $11.
    Without $10 only titles of roots are searched. The inner orders and OFFSET 0 let the search end
    after one page of chats. `owners` are those whose entries are read, `roots` and `entries` are
    conditions. The operator of an extension (intarray) would not use the index, and next
    to the owner the planner would also read the index of all entries of the owner."""
    return f"""
    WITH {owners},
    found AS MATERIALIZED (
        SELECT s.root_chat_id, max(s.at) AS at
        FROM owners o CROSS JOIN LATERAL (
            SELECT * FROM chat_search_texts
            WHERE grams OPERATOR(pg_catalog.@>) o.keys
              AND ($10::text[] IS NOT NULL OR message_id = 0) OFFSET 0) s
        WHERE s.owner_id = o.owner_id AND {entries}
        GROUP BY s.root_chat_id)
    SELECT c.*, h.chat_id AS hit_chat_id, h.message_id AS hit_message_id, f.at AS hit_at
    FROM (SELECT * FROM found
        WHERE (at, root_chat_id) < (coalesce($3, 'infinity'::timestamptz), coalesce($4, $1))
        ORDER BY at DESC, root_chat_id DESC) f
    CROSS JOIN LATERAL (
        SELECT * FROM chats
        WHERE id = f.root_chat_id AND {roots} AND archived = $2 AND deleted_at IS NULL
          AND {FILTERS}
          AND ($11::text[] IS NULL OR (
              SELECT t.text LIKE ALL ($11) FROM chat_search_texts t
              WHERE t.chat_id = f.root_chat_id AND t.message_id = 0))
        OFFSET 0) c
    CROSS JOIN LATERAL (
        SELECT t.chat_id, t.message_id FROM chat_search_texts t
        WHERE t.root_chat_id = f.root_chat_id AND t.at <= f.at
          AND CASE WHEN $10::text[] IS NULL THEN t.message_id = 0 AND t.chat_id = f.root_chat_id
              ELSE t.text LIKE ALL ($10) END
        ORDER BY t.root_chat_id DESC, t.at DESC, t.message_id DESC LIMIT 1) h
    ORDER BY f.at DESC, f.root_chat_id DESC LIMIT $5"""


SEARCH: Final[LiteralString] = _search(_OWN, "owner_id = $1", "true")
SEARCH_SHARED: Final[LiteralString] = _search(
    _SHARED, f"id {_IS_SHARED}", f"s.root_chat_id {_IS_SHARED}"
)
SEARCH_ALL: Final[LiteralString] = _search(
    _ALL, f"(owner_id = $1 OR id {_IS_SHARED})", f"(s.owner_id = $1 OR s.root_chat_id {_IS_SHARED})"
)
SEARCH_IN_PROJECT: Final[LiteralString] = _search(
    _IN_PROJECT, f"id {_IS_SHARED}", f"s.root_chat_id {_IS_SHARED}"
)
# The newest entries of the user, without the index: for what is in so many chats that they fill
# a page. $11: the keys of terms that are the beginning of a word. A chat with a newer hit was on an
# earlier page.
SEARCH_NEWEST: Final[LiteralString] = f"""
    WITH hits AS MATERIALIZED (
        SELECT DISTINCT ON (root_chat_id) root_chat_id, chat_id, message_id, at
        FROM (SELECT * FROM chat_search_texts
            WHERE owner_id = $1 AND at <= coalesce($3, 'infinity'::timestamptz)
            ORDER BY owner_id DESC, at DESC LIMIT $9) newest
        WHERE CASE WHEN text LIKE ALL ($10::text[])
            THEN grams OPERATOR(pg_catalog.@>) $11::integer[] ELSE false END
        ORDER BY root_chat_id, at DESC, message_id DESC)
    SELECT c.*, h.chat_id AS hit_chat_id, h.message_id AS hit_message_id, h.at AS hit_at
    FROM (SELECT * FROM hits ORDER BY at DESC, root_chat_id DESC) h
    CROSS JOIN LATERAL (
        SELECT * FROM chats
        WHERE id = h.root_chat_id AND owner_id = $1 AND archived = $2 AND deleted_at IS NULL
          AND {FILTERS}
          AND NOT EXISTS (
              SELECT FROM chat_search_texts n
              WHERE n.root_chat_id = h.root_chat_id AND n.at > h.at AND n.at >= $3
                AND n.text LIKE ALL ($10))
        OFFSET 0) c
    WHERE (h.at, h.root_chat_id) < (coalesce($3, 'infinity'::timestamptz), coalesce($4, $1))
    ORDER BY h.at DESC, h.root_chat_id DESC LIMIT $5"""

IS_INDEXED: Final[LiteralString] = """
    SELECT coalesce(left_until <= 'epoch', false) FROM chat_search_progress"""

# A message may have been deleted since it was indexed.
LOAD_HITS: Final[LiteralString] = f"""
    SELECT h.chat_id, (SELECT json_agg(m) FROM (
        SELECT {MESSAGE_COLUMNS} FROM chat_messages
        WHERE chat_id = h.chat_id AND id = h.message_id AND NOT deleted) m) AS message
    FROM unnest($1::uuid[], $2::bigint[]) AS h (chat_id, message_id)
    JOIN chats c ON c.id = h.chat_id AND {chat_condition("$3", "$4")}"""


# Of a chat the entries are few enough to be compared one by one.
FIND: Final[LiteralString] = f"""
    SELECT t.message_id FROM chats c JOIN chat_search_texts t ON t.chat_id = c.id
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$4", "$5")}
      AND t.message_id > 0 AND t.text LIKE ALL ($2::text[])
    ORDER BY t.message_id LIMIT $3"""
# What changed since the chat was indexed, or after the message $7 of the version $6.
_UNINDEXED: Final[LiteralString] = changed_messages(
    "c.id",
    "coalesce($6::bigint, s.version)",
    "CASE WHEN $6::bigint IS NULL THEN s.message_id ELSE $7::bigint END",
    limit="$2",
    max_bytes="$3",
)
LOAD_UNINDEXED: Final[LiteralString] = f"""
    SELECT m.messages, m.found
    FROM chats c LEFT JOIN chat_search_state s ON s.chat_id = c.id CROSS JOIN LATERAL {_UNINDEXED} m
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$4", "$5")}"""


class SearchHit(Struct, frozen=True, kw_only=True):
    """A root chat with its newest hit: a message of the chat or of a subagent, or the title."""

    root: Chat
    chat_id: ChatId
    message_id: MessageId
    at: datetime

    @property
    def is_title(self) -> bool:
        return self.message_id == TITLE_ENTRY


class FoundInChat(Struct, frozen=True, kw_only=True):
    """At most `MAX_FOUND_IN_CHAT` messages, oldest first."""

    message_ids: Sequence[MessageId]
    has_more: bool


async def search(
    conn: Conn,
    actor: UserActor,
    which: ChatListFilter,
    texts: Sequence[str],
    titles: Sequence[str],
) -> list[SearchHit]:
    """`texts` match within one message or title, `titles` within the title of the root."""
    values = filter_values(actor, which)
    patterns = _patterns(texts)
    in_project = which.project_id is not None
    if which.source == "mine" and texts and not titles and not in_project:
        short = index_keys(actor.user_id, query_grams([term for term in texts if is_short(term)]))
        newest = (*values, MAX_NEWEST_ENTRIES, patterns, short)
        if len(rows := await conn.fetch(SEARCH_NEWEST, *newest)) == which.limit:
            return _hits(rows)
    grams = query_grams(texts) if texts else {*query_grams(titles), title_gram()}
    values = (*values, sorted(grams), patterns, _patterns(titles))
    if in_project:
        others = actor.reads_shared and which.source != "mine"
        project = (others, which.source != "shared", which.project_id)
        return _hits(await conn.fetch(SEARCH_IN_PROJECT, *values, *project))
    if which.source == "mine":
        return _hits(await conn.fetch(SEARCH, *values))
    statement = SEARCH_SHARED if which.source == "shared" else SEARCH_ALL
    return _hits(await conn.fetch(statement, *values, actor.reads_shared))


async def is_indexed(conn: Conn) -> bool:
    """False after an upgrade, until chats of before it are in the index. Then it stays true."""
    return bool(await conn.fetchval(IS_INDEXED))


def _hits(rows: Sequence[Row]) -> list[SearchHit]:
    return [
        SearchHit(
            root=chat_from_row(row),
            chat_id=ChatId(row["hit_chat_id"]),
            message_id=MessageId(row["hit_message_id"]),
            at=row["hit_at"],
        )
        for row in rows
    ]


def _patterns(terms: Sequence[str]) -> list[str] | None:
    """A LIKE pattern: anywhere in the text."""
    if not terms:
        return None
    special = str.maketrans({char: f"\\{char}" for char in "\\%_"})
    return [f"%{term.translate(special)}%" for term in terms]


async def load_messages(
    conn: Conn, actor: Actor, hits: Sequence[SearchHit]
) -> dict[ChatId, Message]:
    """The messages of the hits by their chats, without deleted ones."""
    wanted = [hit for hit in hits if not hit.is_title]
    if not wanted:
        return {}
    ids = [hit.chat_id for hit in wanted], [hit.message_id for hit in wanted]
    rows = await conn.fetch(LOAD_HITS, *ids, *chat_reach(actor, "chats.read"))
    found = ((ChatId(row["chat_id"]), messages_from_json(row["message"])) for row in rows)
    return {chat_id: messages[0] for chat_id, messages in found if messages}


async def find_in_chat(
    conn: Conn, actor: Actor, chat_id: ChatId, terms: Sequence[str]
) -> FoundInChat:
    """The messages of the chat that have all terms, including those that are not indexed yet."""
    reach = chat_reach(actor, "chats.read")
    changed_ids: set[MessageId] = set()
    unindexed: set[MessageId] = set()
    last: tuple[int | None, MessageId | None] = (None, None)
    is_complete = False
    left = MAX_UNINDEXED_BYTES_IN_ALL
    for _ in range(MAX_UNINDEXED_READS):
        limits = MAX_UNINDEXED_MESSAGES + 1, MAX_UNINDEXED_BYTES
        row = await conn.fetchrow(LOAD_UNINDEXED, chat_id, *limits, *reach, *last)
        changed = messages_from_json(None if row is None else row["messages"])
        changed_ids.update(message.id for message in changed)
        # Not on the event loop: long texts take tens of milliseconds.
        unindexed.update(await asyncio.to_thread(_having, changed, terms))
        is_complete = row is None or len(changed) == row["found"] <= MAX_UNINDEXED_MESSAGES
        left -= 0 if row is None else len(row["messages"] or "")
        if is_complete or not changed or left <= 0:
            break
        last = (changed[-1].revision, changed[-1].id)
    # After those: what is indexed in between is found twice, and not missed.
    rows = await conn.fetch(FIND, chat_id, _patterns(terms), MAX_FOUND_IN_CHAT, *reach)
    found = {MessageId(row["message_id"]) for row in rows} - changed_ids | unindexed
    has_more = not is_complete or len(found) >= MAX_FOUND_IN_CHAT
    return FoundInChat(message_ids=sorted(found)[:MAX_FOUND_IN_CHAT], has_more=has_more)


def _having(messages: Sequence[Message], terms: Sequence[str]) -> list[MessageId]:
    return [one.id for one in messages if has_terms(fold(message_text(one)), terms)]


# Keep the search index behind the commits.
#
# A chat is behind if its history or its title is newer than what the index has of it. Such chats
# are found by the time of their last turn, from a little before the last complete run on; a rename
# marks the chat itself. One replica works at a time. Each batch commits, and the next one goes on,
# so that a killed run is continued. After a release with a new index all chats are read in batches,
# newest first.

OVERLAP: Final = timedelta(minutes=5)
"""A turn that ended before the last run may have been committed after it."""
RECENT: Final = timedelta(hours=1)
"""While older chats are indexed after an upgrade, each batch also takes chats that changed this
recently."""
MAX_CHATS_PER_BATCH: Final = 50
MAX_MESSAGES_PER_READ: Final = 200
MAX_BYTES_PER_READ: Final = 128 * 1024
"""Limit for one chat; one message may be larger. The chats of a batch are read together."""

TRY_LOCK: Final[LiteralString] = """
    SELECT pg_try_advisory_xact_lock(hashtextextended('chatd.search_texts', 0))"""
# A clock that went back must not leave a gap.
BEGIN: Final[LiteralString] = """
    SELECT now() AS started, least(until, now()) AS until,
        least(until, now()) - $1::interval AS since,
        now() - $1::interval AS overlap, left_until, left_until = 'epoch' AS is_filled
    FROM chat_search_progress"""
SAVE_PROGRESS: Final[LiteralString] = """
    UPDATE chat_search_progress
    SET until = $1, left_until = coalesce($2::timestamptz, 'epoch')"""

_BEHIND: Final[LiteralString] = """
    c.id, c.root_chat_id, c.owner_id, c.title, c.created_at, c.updated_at, c.history_version,
    s.version, s.message_id, s.title IS DISTINCT FROM c.title AS is_renamed
    FROM chats c LEFT JOIN chat_search_state s ON s.chat_id = c.id
    WHERE c.deleted_at IS NULL"""
_IS_BEHIND: Final[LiteralString] = """(
    s.version IS NULL OR s.version < c.history_version
    OR s.message_id IS NOT NULL OR s.title IS DISTINCT FROM c.title)"""
LIST_BEHIND: Final[LiteralString] = f"""
    SELECT {_BEHIND} AND c.updated_at >= $1 AND {_IS_BEHIND}
    ORDER BY c.updated_at LIMIT $2"""
LIST_OLDER: Final[LiteralString] = f"""
    SELECT {_BEHIND} AND c.updated_at <= $1 AND {_IS_BEHIND}
    ORDER BY c.updated_at DESC LIMIT $2"""
LIST_RENAMED: Final[LiteralString] = f"""
    SELECT {_BEHIND} AND c.id = ANY (ARRAY(
        SELECT chat_id FROM chat_search_state WHERE title IS NULL LIMIT $1))"""
LOAD_CHANGED: Final[LiteralString] = f"""
    SELECT c.id, m.messages, m.found
    FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS c (id, version, message)
    CROSS JOIN LATERAL
        {changed_messages("c.id", "c.version", "c.message", limit="$4", max_bytes="$5")} m"""

WRITE: Final[LiteralString] = """
    INSERT INTO chat_search_texts (chat_id, message_id, root_chat_id, owner_id, at, text, grams)
    SELECT d.chat, d.id, d.root, d.owner, d.at, d.text, d.grams::integer[]
    FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::uuid[], $5::timestamptz[], $6::text[],
        $7::text[]) AS d (chat, id, root, owner, at, text, grams)
    ON CONFLICT (chat_id, message_id) DO UPDATE
        SET text = excluded.text, grams = excluded.grams, at = excluded.at"""
# Otherwise every search would read the list of pending entries. The function is the owner's alone.
MOVE_PENDING: Final[LiteralString] = """
    SELECT gin_clean_pending_list(c.oid) FROM pg_class c
    WHERE c.oid = 'chat_search_texts_grams'::regclass AND pg_has_role(c.relowner, 'USAGE')"""
REMOVE: Final[LiteralString] = """
    DELETE FROM chat_search_texts t USING unnest($1::uuid[], $2::bigint[]) AS d (chat, id)
    WHERE t.chat_id = d.chat AND t.message_id = d.id"""
# A rename since the read leaves the chat marked.
SAVE_STATE: Final[LiteralString] = """
    INSERT INTO chat_search_state (chat_id, version, message_id, title)
    SELECT c.id, d.version, d.message, CASE WHEN c.title = d.title THEN c.title END
    FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[])
        AS d (id, version, message, title)
    JOIN chats c ON c.id = d.id
    ON CONFLICT (chat_id) DO UPDATE SET version = excluded.version,
        message_id = excluded.message_id, title = excluded.title"""


class ChatBehind(Struct, frozen=True, kw_only=True):
    """A chat that the index has up to a version, or up to a message of it; or not at all."""

    id: ChatId
    root_chat_id: ChatId
    owner_id: UserId
    title: str
    created_at: datetime
    updated_at: datetime
    history_version: int
    version: int | None
    message_id: MessageId | None
    is_renamed: bool


class IndexEntry(Struct, frozen=True, kw_only=True):
    chat: ChatBehind
    id: MessageId
    at: datetime
    text: str
    grams: str
    """An array literal of PostgreSQL."""


async def index_batch(pool: Pool) -> bool | None:
    """Bring some chats up to date. True if there may be more of them; None if another replica does
    it now."""
    async with pool.transaction() as session:
        if not await session.fetchval(TRY_LOCK):
            return None
        began = await session.fetchrow(BEGIN, OVERLAP)
        if began is None:
            return False
        since, until, left = began["since"], began["until"], began["left_until"]
        if left is None:  # the first batch after an upgrade
            since, until, left = began["overlap"], began["started"], began["started"]
        limit = MAX_CHATS_PER_BATCH
        renamed = await session.fetch(LIST_RENAMED, limit)
        recent = await session.fetch(LIST_BEHIND, since, limit)
        lately, older = [], []
        if until < (newest := began["started"] - RECENT):
            lately = await session.fetch(LIST_BEHIND, newest, limit)
        if not began["is_filled"]:
            older = await session.fetch(LIST_OLDER, left, limit)
        found = {row["id"]: ChatBehind(**dict(row)) for row in (*renamed, *recent, *lately, *older)}
        is_complete = not found or await _index_chats(session, list(found.values()))
        # The next batch need not pass the chats of this one again.
        if is_complete:
            is_last = len(renamed) < limit and len(recent) < limit
            until = (
                began["started"] if is_last else max([until, *(r["updated_at"] for r in recent)])
            )
            left = older[-1]["updated_at"] if len(older) == limit else None
        await session.execute(SAVE_PROGRESS, until, left)
    return not is_complete or max(len(renamed), len(recent), len(older)) == limit


async def _index_chats(session: DatabaseSession, chats: Sequence[ChatBehind]) -> bool:
    """One read of their changes. False if there are more."""
    rows = await session.fetch(
        LOAD_CHANGED,
        [chat.id for chat in chats],
        [chat.version for chat in chats],
        [chat.message_id for chat in chats],
        MAX_MESSAGES_PER_READ + 1,
        MAX_BYTES_PER_READ,
    )
    found = {row["id"]: row for row in rows}
    changed: list[tuple[ChatBehind, Sequence[Message]]] = []
    states: list[tuple[ChatId, int, MessageId | None, str]] = []
    is_complete = True
    for chat in chats:
        row = found.get(chat.id)
        shown = messages_from_json(None if row is None else row["messages"])[:MAX_MESSAGES_PER_READ]
        state = (chat.id, chat.history_version, None, chat.title)
        if row is not None and len(shown) != row["found"]:
            is_complete = False
            if shown:
                state = (chat.id, shown[-1].revision, shown[-1].id, chat.title)
        changed.append((chat, shown))
        states.append(state)
    await _write(session, changed)
    await session.execute(SAVE_STATE, *map(list, zip(*states, strict=True)))
    return is_complete


async def _write(conn: Conn, changed: Sequence[tuple[ChatBehind, Sequence[Message]]]) -> None:
    # Not on the event loop: a long text takes tens of milliseconds.
    entries = await asyncio.to_thread(
        lambda: [entry for chat, messages in changed for entry in make_entries(chat, messages)]
    )
    if entries:
        await conn.execute(
            WRITE,
            [entry.chat.id for entry in entries],
            [entry.id for entry in entries],
            [entry.chat.root_chat_id for entry in entries],
            [entry.chat.owner_id for entry in entries],
            [entry.at for entry in entries],
            [entry.text for entry in entries],
            [entry.grams for entry in entries],
        )
        await conn.fetchval(MOVE_PENDING)
    kept = {(entry.chat.id, entry.id) for entry in entries}
    gone = [
        (chat.id, message.id)
        for chat, messages in changed
        for message in messages
        if (chat.id, message.id) not in kept
    ]
    if gone:
        await conn.execute(REMOVE, *map(list, zip(*gone, strict=True)))


def make_entries(chat: ChatBehind, changed: Sequence[Message]) -> list[IndexEntry]:
    found = [(message.id, message.created_at, message_text(message)) for message in changed]
    if chat.is_renamed:
        found.append((TITLE_ENTRY, chat.created_at, one_line(chat.title)))
    entries: list[IndexEntry] = []
    for entry_id, at, line in found:
        if line:
            text = fold(line)
            grams = text_grams(text)
            if entry_id == TITLE_ENTRY and chat.id == chat.root_chat_id:
                grams.add(title_gram())
            keys = index_keys(chat.owner_id, grams)
            array = f"{{{','.join(map(str, keys))}}}"
            entries.append(IndexEntry(chat=chat, id=entry_id, at=at, text=text, grams=array))
    return entries
