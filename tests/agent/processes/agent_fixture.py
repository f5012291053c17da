"""The agent's process table on a temporary directory, without the HTTP server."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chatd.agent.durable_files import open_log_file
from chatd.agent.effect_guards import IdempotencyJournal
from chatd.agent.processes.process_child import CommandEnvironment
from chatd.agent.processes.process_command import SavedResults
from chatd.agent.processes.process_table import ProcessLimits, ProcessTable

TIMEOUT_S = 30.0
BASE = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@dataclass
class AgentFixture:
    """One boot of an agent. `ended` has the arguments of each `on_end` call."""

    processes: ProcessTable
    journal: IdempotencyJournal
    home: Path
    ended: list[tuple[tuple[str, ...], str]] = field(
        default_factory=list[tuple[tuple[str, ...], str]]
    )

    async def start(self, command: str, *, chat_id: str | None = "chat", key: str = "") -> str:
        started = await self.processes.start(command, chat_id=chat_id, key=key)
        return str(started["id"])

    async def wait_for_end(self, process_id: str) -> dict[str, object]:
        output = await self.processes.output(process_id, wait_s=TIMEOUT_S)
        assert output["running"] is False
        return output

    async def run(self, command: str, *, chat_id: str | None = "chat") -> dict[str, object]:
        return await self.wait_for_end(await self.start(command, chat_id=chat_id))

    async def wait_for_output(self, process_id: str, after: int = 0) -> dict[str, object]:
        return await self.processes.output(
            process_id, wait_s=TIMEOUT_S, after=after, any_output=True
        )


@asynccontextmanager
async def boot_agent(
    scratch: Path,
    *,
    limits: ProcessLimits | None = None,
    now: Callable[[], float] = lambda: 1_000_000.0,
    base: Mapping[str, str] = BASE,
    template: Mapping[str, str] | None = None,
    directory: str = "",
) -> AsyncGenerator[AgentFixture]:
    """Start an agent and close it as `main` does. `scratch` is its run directory and home."""
    once = IdempotencyJournal(open_log_file(str(scratch / "run"), "once.jsonl"), now=now)
    ended: list[tuple[tuple[str, ...], str]] = []
    processes = ProcessTable(
        CommandEnvironment(
            home=str(scratch),
            directory=directory,
            base=base,
            template={} if template is None else template,
        ),
        journal=once,
        saved_results=SavedResults(str(scratch / "run"), now=now),
        limits=limits,
        now=now,
        on_end=lambda chats, workdir: ended.append((chats, workdir)),
    )
    async with asyncio.timeout(2 * TIMEOUT_S):
        try:
            yield AgentFixture(processes, once, scratch, ended)
        finally:
            await processes.close()
            await once.close()


class BlockingPipe:
    """A named pipe: a command that reads from it blocks until `open`."""

    def __init__(self, scratch: Path, name: str = "pipe") -> None:
        self.path = scratch / name
        os.mkfifo(self.path)

    async def open(self) -> None:
        """Returns when the command has read from the pipe."""
        await asyncio.to_thread(self.path.write_bytes, b"\n")
