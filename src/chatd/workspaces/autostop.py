"""Stops workspaces that have run past their deadline: by a build, like everybody else."""

from collections.abc import Awaitable, Callable
from typing import Final

from chatd.domain.ports import Env
from chatd.domain.workspace.entities import BuildId
from chatd.store.conn import Conn
from chatd.store.workspace import builds

RETRY_S: Final = 600.0
"""A stop that has failed is tried again after this long, not at every look, and then less often."""
MOST: Final = 50


class Autostop:
    """`look` is done every minute or so, by every replica: the statement sees to it that a
    workspace is stopped once. `tell_use` has the rows hear first of what is in use here."""

    def __init__(self, conn: Conn, env: Env, *, tell_use: Callable[[], Awaitable[None]]) -> None:
        self._conn = conn
        self._env = env
        self._tell_use = tell_use

    async def look(self) -> int:
        """How many stops were asked for."""
        await self._tell_use()
        asked = 0
        for late in await builds.list_overdue(self._conn, retry_s=RETRY_S, most=MOST):
            build_id = BuildId(self._env.new_id())
            if await builds.insert_stop_build(self._conn, late, build_id) is not None:
                asked += 1
                self._env.emit("workspace_overdue", workspace_id=late.workspace_id)
        return asked
