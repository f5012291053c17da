"""What the poll asks on behalf of those who watch: cheap statements, for all of them at once.

They find what hints have failed to tell. What exactly has changed is read by `chats`.
"""

from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat import Chat
from chatd.domain.ids import ChangeId, ChatId, UserId
from chatd.store.conn import Conn
from chatd.store.rows import chat_of

VERSIONS: Final[LiteralString] = """
    SELECT id, snapshot_version, recent_changes[1] AS change_id
    FROM chats WHERE id = ANY ($1::uuid[])"""

# One look at the index for each owner, and for each half of it: a plain condition on all of them
# may become a scan.
RECENT: Final[LiteralString] = """
    SELECT c.* FROM unnest($1::uuid[]) AS o (owner_id),
        unnest('{true, false}'::boolean[]) AS half (archived),
    LATERAL (
        SELECT * FROM chats
        WHERE owner_id = o.owner_id AND parent_chat_id IS NULL AND archived = half.archived
          AND updated_at > now() - $2::float8 * interval '1 s'
        ORDER BY updated_at DESC, id DESC LIMIT $3) c"""


class Standing(Struct, frozen=True, kw_only=True):
    """A version, and the change that made it: the same number with another change is another
    past, from a database that has lost what we saw."""

    version: int
    change_id: ChangeId | None


async def versions(conn: Conn, chat_ids: list[ChatId]) -> dict[ChatId, Standing]:
    """Those that are gone are left out."""
    return {
        row["id"]: Standing(version=row["snapshot_version"], change_id=row["change_id"])
        for row in await conn.fetch(VERSIONS, chat_ids)
    }


async def recent(
    conn: Conn, owners: list[UserId], *, within_s: float, most: int = 100
) -> list[Chat]:
    """Root chats of these owners that moved up in their lists lately, at most so many of each."""
    return [chat_of(row) for row in await conn.fetch(RECENT, owners, within_s, most)]
