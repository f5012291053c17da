"""What the product sends: a statement and its values, caught before they reach the server.

So the benches measure the product's own statements, whatever they are by then, and need not
know how it chooses them.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, LiteralString, NoReturn, cast

from msgspec import Struct

from chatd.store.conn import Conn, DatabaseSession


class Sent(Struct, frozen=True, kw_only=True):
    text: str
    args: tuple[object, ...]


class _CaughtError(Exception):
    """Leads out of the product's code, which would go on to read an answer."""


class _Catcher:
    """A connection that keeps the first statement it is given."""

    sent: Sent | None = None

    async def fetch(self, query: LiteralString, *args: object) -> NoReturn:
        self._catch(query, args)

    async def fetchrow(self, query: LiteralString, *args: object) -> NoReturn:
        self._catch(query, args)

    async def fetchval(self, query: LiteralString, *args: object) -> Any:
        self._catch(query, args)

    async def execute(self, query: LiteralString, *args: object) -> NoReturn:
        self._catch(query, args)

    def _catch(self, query: str, args: tuple[object, ...]) -> NoReturn:
        self.sent = Sent(text=query, args=args)
        raise _CaughtError


async def caught(work: Callable[[Conn], Awaitable[object]]) -> Sent:
    """The first statement that `work` sends."""
    catcher = _Catcher()
    with suppress(_CaughtError):
        await work(catcher)
    assert catcher.sent is not None, "nothing was sent"
    return catcher.sent


async def parameter_types(session: DatabaseSession, sql: str) -> list[str]:
    """As the server understands them."""
    await session.script(f"PREPARE asked AS {sql}", within_s=10)
    types = await session.fetchval(
        "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'asked'"
    )
    await session.execute("DEALLOCATE asked")
    return list(types)


async def as_text(session: DatabaseSession, kind: str, value: object) -> str | None:
    """A value as the server writes it. The type's name comes from its own catalogue."""
    query = cast("LiteralString", f"SELECT $1::{kind}::text")
    return await session.fetchval(query, value)
