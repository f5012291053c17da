"""A workspace to run commands in: the real classes on a scratch directory, without a server."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chatd.agent.environment import Surroundings
from chatd.agent.finished import Finished
from chatd.agent.once import Once
from chatd.agent.processes import Limits, Processes

PATIENCE_S = 30.0
BASE = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@dataclass
class Bench:
    """One boot of an agent. What has ended is in `ended`, as the listener was told."""

    processes: Processes
    once: Once
    home: Path
    ended: list[tuple[tuple[str, ...], str]] = field(
        default_factory=list[tuple[tuple[str, ...], str]]
    )

    async def start(self, command: str, *, chat_id: str | None = "chat", key: str = "") -> str:
        started = await self.processes.start(command, chat_id=chat_id, key=key)
        return str(started["id"])

    async def end_of(self, process_id: str) -> dict[str, object]:
        output = await self.processes.output(process_id, wait_s=PATIENCE_S)
        assert output["running"] is False
        return output

    async def run(self, command: str, *, chat_id: str | None = "chat") -> dict[str, object]:
        return await self.end_of(await self.start(command, chat_id=chat_id))

    async def news(self, process_id: str, after: int = 0) -> dict[str, object]:
        return await self.processes.output(process_id, wait_s=PATIENCE_S, after=after, news=True)


@asynccontextmanager
async def bench(
    scratch: Path,
    *,
    limits: Limits | None = None,
    now: Callable[[], float] = lambda: 1_000_000.0,
    base: Mapping[str, str] = BASE,
    template: Mapping[str, str] | None = None,
    directory: str = "",
) -> AsyncGenerator[Bench]:
    """A boot that ends as an agent does. `scratch` is the run directory and the home."""
    once = Once(str(scratch / "run"), now=now)
    ended: list[tuple[tuple[str, ...], str]] = []
    processes = Processes(
        Surroundings(
            home=str(scratch),
            directory=directory,
            base=base,
            template={} if template is None else template,
        ),
        once=once,
        finished=Finished(str(scratch / "run"), now=now),
        limits=limits,
        now=now,
        on_end=lambda chats, workdir: ended.append((chats, workdir)),
    )
    async with asyncio.timeout(2 * PATIENCE_S):
        try:
            yield Bench(processes, once, scratch, ended)
        finally:
            await processes.close()
            await once.close()


class Gate:
    """A named pipe that commands read from: they stand still until it is opened."""

    def __init__(self, scratch: Path, name: str = "gate") -> None:
        self.path = scratch / name
        os.mkfifo(self.path)

    async def open(self) -> None:
        """Returns when the command has come by."""
        await asyncio.to_thread(self.path.write_bytes, b"\n")
