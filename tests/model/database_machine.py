"""Two people, two replicas and every misfortune, one thing at a time, on a real database."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias

from chatd.store.conn import DatabaseSession
from chatd.store.pool import Pool
from tests.model.replica_actions import ReplicaActions
from tests.model.simulation import Simulation
from tests.model.user_actions import UserActions

Act: TypeAlias = Callable[[], Awaitable[None]]


class DatabaseMachine:
    """What a write must do is known beforehand and compared at once (`mirror`)."""

    def __init__(self, pool: Pool, locks: DatabaseSession, rng: Random) -> None:
        self.stage = Simulation(pool, locks, rng)
        self.people = UserActions(self.stage)
        self.fate = ReplicaActions(self.stage)
        self._likings = {act: rng.choice((0, 1, 1, 2)) for act in self._sometimes()}

    def _always(self) -> dict[Act, float]:
        acts: dict[Act, float] = {self.people.move: 16, self.fate.heartbeat: 3}
        if self.stage.awake():
            acts[self.fate.work] = 14
        if any(replica.inbox for replica in self.stage.awake()):
            acts[self.fate.hint] = 5
        return acts

    def _sometimes(self) -> dict[Act, float]:
        acts: dict[Act, float] = {
            self.people.archive_or_unarchive: 1,
            self.people.start_subagent: 0.3,
            self.people.view_chat: 4,
            self.people.repeat_request: 3,
            self.fate.quiet_period: 0.7,
            self.fate.time_passes: 1,
            self.fate.crash: 0.7,
            self.fate.drain: 0.5,
            self.fate.freeze_or_resume: 1.5,
            self.fate.write_with_stale_fence: 2,
            self.fate.act_late: 6,
        }
        return acts

    def _possible(self) -> dict[Act, float]:
        """Each walk likes some things more than others, and leaves some out altogether: what all
        together keep at bay may then be reached."""
        liked = {act: weight * self._likings[act] for act, weight in self._sometimes().items()}
        needs = {
            self.people.repeat_request: self.stage.written,
            self.fate.write_with_stale_fence: self.stage.ghosts(),
            self.fate.act_late: self.fate.late,
            self.fate.drain: self.stage.awake(),
        }
        missing = {act for act, what in needs.items() if not what}
        return {act: weight for act, weight in liked.items() if act not in missing}

    async def step(self) -> None:
        acts = {**self._always(), **self._possible()}
        (act,) = self.stage.rng.choices(list(acts), list(acts.values()))
        self.stage.start_step(act.__name__)
        await act()
        self.stage.check()

    async def walk(self, steps: int) -> None:
        await self.stage.begin()
        for number in range(steps):
            await self.step()
            if number % 25 == 0:
                await self.stage.store.verify_all()
        await self.fate.settle()
        await self.stage.store.verify_all()
