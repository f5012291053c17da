"""Token buckets of sign-ins, in the database so that they hold over all replicas."""

from typing import Final, LiteralString

from chatd.store.conn import Conn

# A refused attempt changes nothing: the WHERE fails, and no row is returned.
TAKE: Final[LiteralString] = """
    INSERT INTO sign_in_attempts AS a (bucket, tokens) VALUES ($1, $2::float8 - 1)
    ON CONFLICT (bucket) DO UPDATE SET
        tokens = least($2, a.tokens + extract(epoch FROM now() - a.updated_at) * $2 / 60) - 1,
        updated_at = now()
    WHERE least($2, a.tokens + extract(epoch FROM now() - a.updated_at) * $2 / 60) >= 1
    RETURNING tokens"""
# Goes below zero, down to $3: the deficit says how many events there were beyond the rate.
TAKE_BELOW: Final[LiteralString] = """
    INSERT INTO sign_in_attempts AS a (bucket, tokens) VALUES ($1, $2::float8 - 1)
    ON CONFLICT (bucket) DO UPDATE SET
        tokens = greatest($3::float8,
            least($2, a.tokens + extract(epoch FROM now() - a.updated_at) * $2 / 60) - 1),
        updated_at = now()
    RETURNING tokens"""
GIVE_BACK: Final[LiteralString] = """
    UPDATE sign_in_attempts SET tokens = least($2::float8, tokens + 1) WHERE bucket = $1"""
CLEAR: Final[LiteralString] = "DELETE FROM sign_in_attempts WHERE bucket = $1"
DELETE_OLD: Final[LiteralString] = """
    DELETE FROM sign_in_attempts WHERE bucket IN (
        SELECT bucket FROM sign_in_attempts WHERE updated_at < now() - interval '10 minutes'
        LIMIT $1 FOR UPDATE SKIP LOCKED)"""


async def take(conn: Conn, bucket: str, *, per_minute: float) -> bool:
    """Whether one more attempt is allowed; it is counted if so. No user's data: no actor."""
    return await conn.fetchval(TAKE, bucket, per_minute) is not None


async def take_below(conn: Conn, bucket: str, *, per_minute: float, lowest: float) -> float:
    """Count an event in any case; return how many are left, negative if too many happened."""
    return await conn.fetchval(TAKE_BELOW, bucket, per_minute, lowest)


async def give_back(conn: Conn, bucket: str, *, per_minute: float) -> None:
    """The event that was counted was no failure."""
    await conn.execute(GIVE_BACK, bucket, per_minute)


async def clear(conn: Conn, bucket: str) -> None:
    """After a success: only failures count."""
    await conn.execute(CLEAR, bucket)


async def delete_old(conn: Conn, *, limit: int) -> int:
    """Buckets that are full again. The number of deleted ones."""
    return int((await conn.execute(DELETE_OLD, limit)).rpartition(" ")[2])
