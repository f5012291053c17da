"""Two users, two replicas and many faults, one action at a time, on a real database."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias

from chatd.store.database.conn import DatabaseSession
from chatd.store.database.pool import Pool
from tests.model.replica_actions import ReplicaActions
from tests.model.simulation import Simulation
from tests.model.user_actions import UserActions

Act: TypeAlias = Callable[[], Awaitable[None]]


class DatabaseMachine:
    """`CheckedStore` predicts the outcome of each write and compares at once."""

    def __init__(self, pool: Pool, locks: DatabaseSession, rng: Random) -> None:
        self.simulation = Simulation(pool, locks, rng)
        self.user_actions = UserActions(self.simulation)
        self.replica_actions = ReplicaActions(self.simulation)
        self._weights = {act: rng.choice((0, 1, 1, 2)) for act in self._sometimes()}

    def _always(self) -> dict[Act, float]:
        acts: dict[Act, float] = {self.user_actions.move: 16, self.replica_actions.heartbeat: 3}
        if self.simulation.awake():
            acts[self.replica_actions.work] = 14
        if any(replica.inbox for replica in self.simulation.awake()):
            acts[self.replica_actions.hint] = 5
        return acts

    def _sometimes(self) -> dict[Act, float]:
        acts: dict[Act, float] = {
            self.user_actions.archive_or_unarchive: 1,
            self.user_actions.start_subagent: 0.3,
            self.user_actions.view_chat: 4,
            self.user_actions.repeat_request: 3,
            self.replica_actions.quiet_period: 0.7,
            self.replica_actions.time_passes: 1,
            self.replica_actions.crash: 0.7,
            self.replica_actions.drain: 0.5,
            self.replica_actions.freeze_or_resume: 1.5,
            self.replica_actions.write_with_stale_fence: 2,
            self.replica_actions.act_late: 6,
        }
        return acts

    def _possible(self) -> dict[Act, float]:
        """Each walk weights the actions differently and leaves some out, to reach more states."""
        weighted = {act: weight * self._weights[act] for act, weight in self._sometimes().items()}
        needs = {
            self.user_actions.repeat_request: self.simulation.written,
            self.replica_actions.write_with_stale_fence: self.simulation.stale_chat_tasks(),
            self.replica_actions.act_late: self.replica_actions.late,
            self.replica_actions.drain: self.simulation.awake(),
        }
        missing = {act for act, what in needs.items() if not what}
        return {act: weight for act, weight in weighted.items() if act not in missing}

    async def step(self) -> None:
        acts = {**self._always(), **self._possible()}
        (act,) = self.simulation.rng.choices(list(acts), list(acts.values()))
        self.simulation.start_step(act.__name__)
        await act()
        self.simulation.check()

    async def walk(self, steps: int) -> None:
        await self.simulation.begin()
        for number in range(steps):
            await self.step()
            if number % 25 == 0:
                await self.simulation.store.verify_all()
        await self.replica_actions.settle()
        await self.simulation.store.verify_all()
