"""Keys that all replicas share: each is made with its first use and never changes."""

from typing import Final, LiteralString

from chatd.domain.errors import NotFound
from chatd.store.conn import Conn

KEY_BYTES: Final = 32
FIND: Final[LiteralString] = "SELECT secret FROM shared_keys WHERE name = $1"
# Replicas that start together agree on the first key. Two random UUIDs are 244 random bits.
CREATE: Final[LiteralString] = """
    INSERT INTO shared_keys (name, secret)
    VALUES ($1, sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))
    ON CONFLICT (name) DO NOTHING"""

DOWNLOAD_LINKS: Final = "download_links"
DEVICE_COOKIES: Final = "device_cookies"


async def shared_key(conn: Conn, name: str) -> bytes:
    """The server's own key: no actor."""
    found: bytes | None = await conn.fetchval(FIND, name)
    if found is None:
        await conn.execute(CREATE, name)
        found = await conn.fetchval(FIND, name)
    if found is None or len(found) != KEY_BYTES:
        raise NotFound(f"The shared key {name} is missing.")
    return found
