"""Who uses a workspace says so here; the rows hear of it once a minute, and before any is stopped.

Owns the set of workspaces used since the last time; who still waits for an answer is asked then.
Saying it costs nothing and never fails. A flush that fails puts them back, so that the next one
tells; what a process takes with it when it dies is a minute of use.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Env
from chatd.store.conn import Conn
from chatd.store.workspace import workspaces

EVERY_S: Final = 60.0
WITHIN_S: Final = 15.0
MOST: Final = 10_000
BATCH: Final = 500


def _nobody() -> Iterable[WorkspaceId]:
    return ()


class Usage:
    """`run` flushes until it is cancelled. `in_use` names those in which a call waits just now:
    a command of an hour is one use that lasts an hour."""

    def __init__(
        self, conn: Conn, env: Env, *, in_use: Callable[[], Iterable[WorkspaceId]] = _nobody
    ) -> None:
        self._conn = conn
        self._env = env
        self._in_use = in_use
        self._used: set[WorkspaceId] = set()

    def used(self, workspace_id: WorkspaceId) -> None:
        if len(self._used) < MOST:
            self._used.add(workspace_id)

    async def run(self) -> None:
        while True:
            await self._env.clock.sleep(EVERY_S, "usage_flush")
            await self.tell()

    async def tell(self) -> None:
        """Have the rows hear of it now, also of those in which a call waits."""
        for workspace_id in self._in_use():
            self.used(workspace_id)
        await self.flush()

    async def flush(self) -> None:
        taken, self._used = self._used, set()
        waiting = sorted(taken)
        try:
            while waiting:
                async with asyncio.timeout(WITHIN_S):
                    await workspaces.record_activity(self._conn, waiting[:BATCH])
                del waiting[:BATCH]
        except (ChatdError, TimeoutError) as error:
            kind = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("usage_not_written", error_kind=kind, count=len(waiting))
            if isinstance(error, ChatdError) and not isinstance(error, Unavailable):
                del waiting[:BATCH]  # what is refused now is refused for ever
        finally:
            self._used.update(waiting)
