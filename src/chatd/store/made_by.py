"""Which request has made a workspace or a build: forgotten when a request is, see `requests`.

What was made stays; only the same key makes something new from then on. That of a tool's call is
forgotten as well: who repeats a call as late as this finds what it made by its chat's binding,
and a build by its number.
"""

from typing import Final, LiteralString

from chatd.store.conn import Conn
from chatd.store.requests import KEPT

# By the index of those that have a key, which are those of the last day.
FORGET_WORKSPACES: Final[LiteralString] = """
    UPDATE workspaces w SET made_by = NULL
    WHERE w.id = ANY (ARRAY(
        SELECT x.id FROM workspaces x
        WHERE x.made_by IS NOT NULL AND x.created_at < now() - $1::interval
        LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))"""

FORGET_BUILDS: Final[LiteralString] = """
    UPDATE workspace_builds b SET made_by = NULL
    WHERE b.id = ANY (ARRAY(
        SELECT x.id FROM workspace_builds x
        WHERE x.made_by IS NOT NULL AND x.created_at < now() - $1::interval
        LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))"""


async def forget_old(conn: Conn, *, most: int = 1000) -> int:
    """A batch of each; call again while it returns `most`."""
    done = 0
    for statement in (FORGET_WORKSPACES, FORGET_BUILDS):
        status = await conn.execute(statement, KEPT, most)
        done = max(done, int(status.rpartition(" ")[2]))
    return done
