"""The driver's knowledge of types, shared by all sessions of a test process.

The first statement of a session that speaks of an array makes the driver ask the server what that
is. The question costs the server ten times what the session costs otherwise, and tests open
thousands of them. The answer is the same for all: numbers this low are PostgreSQL's own types.
Everything else the driver asks for itself, as it does in production.
"""

from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager
from typing import Final, cast

import asyncpg

Asks = Callable[[object, Collection[int], float | None], Awaitable[object]]

LOOKUP_METHOD: Final = "_introspect_types"
FIRST_USER_TYPE_OID: Final = 16_384
"""What a database defines for itself is numbered from here, differently in each."""


@contextmanager
def cache_type_lookups() -> Generator[None]:
    """While it is open, each question about types is put to a server once."""
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
