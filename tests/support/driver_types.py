"""Caches the driver's type lookups for all sessions of a test process.

The first statement of a session with an array makes asyncpg query the server for its type. That
costs the server ten times as much as the rest of the session, and tests open thousands of sessions.
The result is always the same for PostgreSQL's built-in types, which have low numbers. Other types
are looked up each time, as in production.
"""

from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager
from typing import Final, cast

import asyncpg

Asks = Callable[[object, Collection[int], float | None], Awaitable[object]]

LOOKUP_METHOD: Final = "_introspect_types"
FIRST_USER_TYPE_OID: Final = 16_384
"""Types that a database defines are numbered from here, differently in each database."""


@contextmanager
def cache_type_lookups() -> Generator[None]:
    """Look up each set of built-in types once while the context is open."""
    sessions: type[object] = asyncpg.Connection
    ask = cast("Asks", getattr(sessions, LOOKUP_METHOD))
    answers: dict[frozenset[int], object] = {}

    async def remember(session: object, types: Collection[int], timeout: float | None) -> object:
        asked = frozenset(types)
        if max(asked) >= FIRST_USER_TYPE_OID:
            return await ask(session, types, timeout)
        if asked not in answers:
            answers[asked] = await ask(session, types, timeout)
        return answers[asked]

    setattr(sessions, LOOKUP_METHOD, remember)
    try:
        yield
    finally:
        setattr(sessions, LOOKUP_METHOD, ask)
