"""How long chats are kept: idle ones are archived, archived ones removed, a batch at a time.

Every replica does this; of two that come to the same chat one finds it done.
"""

from datetime import datetime, timedelta
from typing import Final, LiteralString

from chatd.domain.errors import NotFound
from chatd.domain.family import archive_family
from chatd.domain.ids import ChangeId, ChatId
from chatd.store import chats
from chatd.store.conn import Conn
from chatd.store.pool import Pool
from chatd.store.transact import Applied, apply

# Nothing that is pinned, and no family of which somebody is at work. Counted, because the planner
# would make a join of EXISTS, and read all chats for it.
IDLE: Final[LiteralString] = """
    SELECT c.id, now() - $1::interval AS since FROM chats c
    WHERE c.parent_chat_id IS NULL AND NOT c.archived AND c.pin_order = 0
      AND c.status IN ('waiting', 'error') AND c.updated_at < now() - $1::interval
      AND (SELECT count(*) FROM chats k WHERE k.root_chat_id = c.id
           AND (k.status NOT IN ('waiting', 'error')
                OR k.updated_at >= now() - $1::interval)) = 0
    ORDER BY c.updated_at LIMIT $2"""

# The root takes its family along, and each chat all that is its own; what was spent stays.
REMOVE: Final[LiteralString] = """
    WITH old AS MATERIALIZED (
        SELECT id FROM chats
        WHERE parent_chat_id IS NULL AND archived AND updated_at < now() - $1::interval
        ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED)
    DELETE FROM chats c USING old WHERE c.id = old.id"""


async def idle(conn: Conn, after: timedelta, *, most: int) -> list[tuple[ChatId, datetime]]:
    """Roots that nobody has touched for so long, each with the time before which that was."""
    rows = await conn.fetch(IDLE, after, most)
    return [(ChatId(row["id"]), row["since"]) for row in rows]


async def archive_idle(
    pool: Pool, chat_id: ChatId, since: datetime, change_id: ChangeId
) -> tuple[Applied, ...]:
    """With its family; nothing if somebody has touched it meanwhile."""
    async with pool.transaction() as session:
        members = await chats.lock_family(session, chat_id)
        root = next((member for member in members if member.id == chat_id), None)
        if root is None:
            raise NotFound("There is no such chat.")
        rests = all(one.status in ("waiting", "error") for one in members)
        old = all(one.updated_at < since for one in members)
        if root.archived or root.pin_order or not rests or not old:
            return ()
        made = [
            await apply(session, change, change_id) for change in archive_family(members, chat_id)
        ]
    return tuple(applied for applied in made if applied is not None)


async def remove_archived(conn: Conn, after: timedelta, *, most: int) -> int:
    """A batch; call again while it returns `most`."""
    status = await conn.execute(REMOVE, after, most)
    return int(status.rpartition(" ")[2])
