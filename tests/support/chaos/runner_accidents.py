"""Random accidents of servers and runners on hosts of their own."""

import asyncio
import random
import shutil
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from tests.support.chaos.runner_site import (
    END_TIMEOUT_S,
    Client,
    Machine,
    RunnerMachine,
    ServerMachine,
    give_token,
)
from tests.support.relay import Relay

CUTS_S: Final = (5.0, 5.0, 5.0, 40.0, 75.0)
"""The longer ones are longer than every lease and every heartbeat."""

ACCIDENTS: Final[Mapping[str, tuple[int, str]]] = {
    "kill_server": (10, "kill -9 of a server, which is started again"),
    "kill_runner": (10, "kill -9 of a runner, which is started again"),
    "kill_sandboxes": (5, "kill -9 of a runner's supervisor, with its sandboxes"),
    "leave": (5, "SIGTERM: a server drains and leaves, and is started again"),
    "cut_server": (7, "a server has no network, for 5, 40 or 75 s"),
    "cut_runner": (10, "a runner has no network, for 5, 40 or 75 s"),
    "delay": (6, "what runners send and receive comes 50 to 500 ms late, for 10 s"),
    "reset": (6, "all connections of runners are reset"),
    "twice": (3, "a runner is started twice: with its own data, then as a copy with its id"),
    "revoke": (4, "a runner's token is revoked; it is started again with another one"),
}


class RunnerAccidents:
    """One accident after another, each of a machine that has none at the moment."""

    def __init__(
        self,
        servers: Sequence[ServerMachine],
        runners: Sequence[RunnerMachine],
        front: Relay,
        client: Client,
        dice: random.Random,
        weights: Mapping[str, int],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self._servers = servers
        self._runners = runners
        self._front = front
        self._client = client
        self._dice = dice
        self._weights = weights
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._dice.uniform(1.0, 8.0))
            names = list(self._weights)
            kind = self._dice.choices(names, weights=list(self._weights.values()))[0]
            of_server = kind in ("kill_server", "leave", "cut_server")
            machines = self._servers if of_server else self._runners
            free = [machine for machine in machines if not machine.is_busy]
            if not free:
                continue
            victim = self._dice.choice(free)
            self.counts[kind] += 1
            self.log.append(f"{loop.time():.1f} {kind} {victim.name}")
            task = loop.create_task(self._contained(kind, victim), name=kind)
            self._under_way.add(task)

    async def complete(self) -> list[str]:
        """Wait until each machine is repaired. What went wrong."""
        ended = await asyncio.gather(*self._under_way, return_exceptions=True)
        return [f"{error!r} {error.__notes__}" for error in ended if error is not None]

    async def _contained(self, kind: str, victim: Machine) -> None:
        victim.is_busy = True
        try:
            await self._inject(kind, victim)
        except Exception as error:
            error.add_note(f"in the accident {kind} of {victim.name}")
            raise
        finally:
            victim.is_busy = False
            now = asyncio.get_running_loop().time()
            self.log.append(f"{now:.1f} end of {kind} {victim.name}")

    async def _inject(self, kind: str, victim: Machine) -> None:
        pause_s = self._dice.choice((0.0, 0.5, 5.0))
        match kind, victim:
            case "kill_server" | "leave", ServerMachine():
                how = signal.SIGKILL if kind == "kill_server" else signal.SIGTERM
                await victim.end(how)
                await asyncio.sleep(pause_s)
                await victim.start()
            case "kill_runner", RunnerMachine():
                await victim.end()
                await asyncio.sleep(pause_s)
                await victim.start()
            case "kill_sandboxes", _:
                with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                    await victim.rig().kill_supervisor()
            case "cut_server" | "cut_runner", _:
                victim.host.cut()
                await asyncio.sleep(self._dice.choice(CUTS_S))
                victim.host.mend()
            case "delay", _:
                self._front.delay_s = self._dice.choice((0.05, 0.2, 0.5))
                await asyncio.sleep(10)
                self._front.delay_s = 0.0
            case "reset", _:
                self._front.cut()
            case "twice", RunnerMachine():
                await self._start_twice(victim)
            case "revoke", RunnerMachine():
                await self._revoke(victim)
            case _:
                raise AssertionError(kind)

    async def _start_twice(self, victim: RunnerMachine) -> None:
        second = await victim.run(*victim.words(victim.data_dir))
        async with asyncio.timeout(END_TIMEOUT_S):
            assert await second.wait() == 1, "a second runner with the same data was not refused"
        assert victim.process is not None
        copy = victim.data_dir / "copy"
        copy.mkdir(exist_ok=True)
        shutil.copy(victim.data_dir / "runner-id", copy)
        if not (copy / "ws-toolbox").exists():
            (copy / "ws-toolbox").symlink_to((victim.data_dir / "ws-toolbox").resolve())
        clone = await victim.run(*victim.words(copy))
        try:
            # One of both is told and ends by itself: the original, unless its connection broke and
            # it came back later than the copy.
            async with asyncio.timeout(END_TIMEOUT_S), asyncio.TaskGroup() as group:
                ends = {group.create_task(each.wait()) for each in (victim.process, clone)}
                first, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                assert {end.result() for end in first} == {1}
                with suppress(ProcessLookupError):
                    clone.kill()
                with suppress(ProcessLookupError):
                    victim.process.kill()
        finally:
            with suppress(ProcessLookupError):
                clone.kill()
            await clone.wait()
        await victim.end()
        await victim.start()

    async def _revoke(self, victim: RunnerMachine) -> None:
        old = victim.token_id
        await give_token(self._client, victim)
        await self._client.ask("DELETE", f"/runner-tokens/{old}")
        assert victim.process is not None
        async with asyncio.timeout(END_TIMEOUT_S):
            assert await victim.process.wait() != 0, "it does not say that it was refused"
        await victim.start()
