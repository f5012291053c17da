"""The replicas of a random run, each with its own proxy to the database."""

import random
from contextlib import AsyncExitStack
from typing import Final

from msgspec.structs import replace

from tests.support.chaos.fork_server import ForkServer
from tests.support.chaos.replica_process import DieAt, ReplicaSetup
from tests.support.chaos.replicas import ReplicaProcess, replica_process
from tests.support.proxy import Proxy, proxy_to

EXIT_EVENTS: Final = (
    "chats_acquired",
    "action",
    "step_committed",
    "drain_started",
    "chat_task_left",
    "chat_reaped",
    "task_started",
    "tool_finished",
    "tool_started",
    "subagent_spawned",
    "turn_suspended",
    "turn_woken",
)
"""Events at which a replica may be made to die."""


class RunningReplicas:
    """The running replicas, each with its own proxy to the database. A replica that exits is
    replaced later."""

    def __init__(self, fork_server: ForkServer, setup: ReplicaSetup, dice: random.Random) -> None:
        self.now: list[ReplicaProcess] = []
        self._fork_server = fork_server
        self._setup = setup
        self._dice = dice
        self._count = 0
        self._stacks: dict[ReplicaProcess, AsyncExitStack] = {}
        self._proxies: dict[ReplicaProcess, Proxy] = {}

    def doom(self) -> DieAt:
        """A random point at which a replica dies by itself."""
        return DieAt(event=self._dice.choice(EXIT_EVENTS), nth=self._dice.randint(1, 20))

    async def add(self, die_at: DieAt | None = None) -> ReplicaProcess:
        self._count += 1
        home = AsyncExitStack()
        try:
            line = await home.enter_async_context(proxy_to(self._setup.dsn))
            setup = replace(
                self._setup,
                dsn=line.dsn,
                name=f"soak-{self._count}",
                die_at=die_at,
            )
            replica = await home.enter_async_context(replica_process(self._fork_server, setup))
        except BaseException:
            await home.aclose()
            raise
        self.now.append(replica)
        self._stacks[replica] = home
        self._proxies[replica] = line
        return replica

    async def reap(self) -> int:
        """Forget the replicas that have exited; return their number."""
        dead = [replica for replica in self.now if not replica.alive]
        self.now = [replica for replica in self.now if replica.alive]
        for replica in dead:
            del self._proxies[replica]
            await self._stacks.pop(replica).aclose()
        return len(dead)

    def any(self) -> ReplicaProcess | None:
        alive = [replica for replica in self.now if replica.alive]
        return self._dice.choice(alive) if alive else None

    def proxy_of(self, replica: ReplicaProcess) -> Proxy | None:
        return self._proxies.get(replica)

    async def close(self) -> None:
        for home in self._stacks.values():
            await home.aclose()
