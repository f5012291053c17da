"""A task that keeps the database up for as long as this process uses it."""

from collections.abc import Callable
from typing import Final

from chatd.pg.errors import PgError
from chatd.pg.server import Server
from chatd.pg.waiting import pause

EVERY_S: Final = 2.0


async def watch(
    server: Server, report: Callable[[PgError], None], *, every_s: float = EVERY_S
) -> None:
    """Run until cancelled. A failure is reported and the next round tries again."""
    while True:
        try:
            await server.ensure()
        except PgError as error:
            report(error)
        await pause(every_s)
