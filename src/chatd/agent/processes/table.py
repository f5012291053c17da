"""The commands of a workspace: who may start, see, await and signal them, and for how long.

Owns the table of commands of this boot, its limits and its end. How a child is born and read is
in `spawning`, what is kept of its output in `headtail`, what outlives the agent in `once` and
`finished`.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from chatd.agent.errors import AgentError
from chatd.agent.idempotency import IdempotencyJournal
from chatd.agent.json_log import Json
from chatd.agent.processes.child import ChildProcess, SpawnedShell, signal_group, spawn
from chatd.agent.processes.command import (
    CommandEntry,
    CommandSpec,
    SavedResults,
    output_from_saved,
    wait,
)
from chatd.agent.processes.environment import CommandEnvironment
from chatd.agent.threads import start_pool

_T = TypeVar("_T")

MAX_OUTPUT_WAIT_S = 300.0
MAX_LISTED_COMMANDS = 10
_THREADS = 4
SIGNALS = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}


@dataclass(frozen=True)
class ProcessLimits:
    """How many commands may run, and how many that have ended stay in memory for how long."""

    running_per_chat: int = 32
    running: int = 128
    ended: int = 64
    ended_ttl_s: float = 300.0
    grace_s: float = 5.0
    close_timeout_s: float = 10.0


class ProcessTable:
    """Built inside the loop. `on_end(chats, workdir)` is told whenever a command has ended."""

    def __init__(
        self,
        environment: CommandEnvironment,
        *,
        journal: IdempotencyJournal,
        saved_results: SavedResults,
        limits: ProcessLimits | None = None,
        now: Callable[[], float] = time.time,
        on_end: Callable[[tuple[str, ...], str], None] | None = None,
    ) -> None:
        self._surroundings = environment
        self._once = journal
        self._finished = saved_results
        self._limits = limits or ProcessLimits()
        self._now = now
        self._on_end = on_end
        self._entries: dict[str, CommandEntry] = {}
        # Groups in which somebody outlived the shell. Each has a process, so they are bounded.
        self._left_behind: list[int] = []
        self._starting: dict[int, CommandSpec] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[object]] = set()
        self._closing = False
        # Its own threads: nobody waits for them at the end, should the disk never answer.
        self._threads = start_pool(_THREADS, "process")

    async def start(
        self,
        command: str,
        *,
        chat_id: str | None = None,
        key: str = "",
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        background: bool = False,
        ancestors: Sequence[str] = (),
    ) -> Json:
        """`{id, started}`; for a key that is known, the first one's, and `again`."""
        if not command.strip():
            raise AgentError(400, "The command is empty.")
        family = (chat_id, *ancestors) if chat_id else ()
        order = CommandSpec(command, chat_id, workdir, dict(env or {}), background, family)
        if not key:
            return await self._launch(order)
        result = await self._once.run_once(
            key, "process", lambda: self._launch(order), repeat_fields={"again": True}
        )
        if result.get("again"):
            await self._vouch_for(str(result.get("id")), chat_id)
        return result

    async def output(
        self,
        process_id: str,
        *,
        chat_id: str | None = None,
        wait_s: float = 0,
        after: int = 0,
        any_output: bool = False,
    ) -> Json:
        """What was printed after a cursor. Waits for the end, or with `news` for any output."""
        if not math.isfinite(wait_s) or wait_s < 0 or after < 0:
            raise AgentError(400, "The wait and the cursor must be numbers that are not negative.")
        self._forget()
        entry = self._find(process_id, chat_id)
        if entry is None:
            record = await self._from_disk(process_id, chat_id)
            if record is None:
                raise _unknown(process_id)
            return output_from_saved(record, after)
        loop = asyncio.get_running_loop()
        until = loop.time() + min(wait_s, MAX_OUTPUT_WAIT_S)
        while entry.running and not (any_output and entry.buffer.cursor > after):
            left = until - loop.time()
            if left <= 0:
                break
            await wait(entry.until_news if any_output else entry.until_end, left)
        return entry.output(after)

    def list(self, chat_id: str | None = None) -> Sequence[Json]:
        """This chat's commands: those that run first, then the newest first, the first ten."""
        self._forget()
        mine = [entry for entry in self._entries.values() if entry.visible_to(chat_id)]
        mine.sort(key=lambda entry: (not entry.running, -entry.number))
        return [entry.listed() for entry in mine[:MAX_LISTED_COMMANDS]]

    async def signal(self, process_id: str, name: str, chat_id: str | None = None) -> None:
        """`terminate` or `kill`, to the command and all that it has started in its group.

        That includes what it has left running in the background when it ended.
        """
        number = SIGNALS.get(name)
        if number is None:
            raise AgentError(400, f"The signal must be one of: {', '.join(SIGNALS)}.")
        entry = self._find(process_id, chat_id)
        if entry is None and await self._from_disk(process_id, chat_id) is None:
            raise _unknown(process_id)
        if entry is None or entry.child is None or not entry.child.signal(number):
            raise AgentError(409, f"The process {process_id} is not running.", code="not_running")

    async def close(self) -> None:
        """Kill all commands, wait for their end, start no more. May be called again.

        Who has left the group of a command is beyond reach: that is up to the sandbox.
        """
        self._closing = True
        loop = asyncio.get_running_loop()
        until = loop.time() + self._limits.close_timeout_s
        for entry in list(self._entries.values()):
            if entry.child is not None:
                entry.child.kill_now()
        for group in self._left_behind:
            signal_group(group, signal.SIGKILL)
        while (left := until - loop.time()) > 0:
            running = [entry for entry in self._entries.values() if entry.running]
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=left)
            elif running:
                await wait(running[0].until_end, left)
            else:
                return

    # --- starting ---------------------------------------------------------------------------

    async def _launch(self, order: CommandSpec) -> Json:
        # Shielded: a caller who leaves in the middle must not leave a child nobody knows.
        return await asyncio.shield(self._own(self._start(order)))

    async def _start(self, order: CommandSpec) -> Json:
        self._forget()
        self._admit(order)
        self._number += 1
        number = self._number
        self._starting[number] = order
        try:
            workdir, spawned = await self._in_thread(partial(self._spawn, order))
        finally:
            del self._starting[number]
        # Remembered without its environment, which may be large and may hold secrets.
        order = replace(order, env={})
        entry = CommandEntry(secrets.token_hex(8), number, order, workdir, self._now())
        self._entries[entry.id] = entry
        entry.child = ChildProcess(
            spawned,
            grace_s=self._limits.grace_s,
            on_output=entry.printed,
            on_end=lambda exit_code: self._ended(entry, exit_code),
        )
        if self._closing:
            entry.child.kill_now()
            raise AgentError(500, "The workspace is closing: the command was killed as it began.")
        return {"id": entry.id, "started": True}

    def _spawn(self, order: CommandSpec) -> tuple[str, SpawnedShell]:
        workdir = self._surroundings.resolve_workdir(order.workdir)
        env = self._surroundings.build_variables(order.env, order.chat_id)
        return workdir, spawn(order.command, workdir=workdir, env=env)

    def _admit(self, order: CommandSpec) -> None:
        if self._closing:
            raise AgentError(503, "The workspace is closing and starts no more commands.")
        running = [entry.order for entry in self._entries.values() if entry.running]
        running += self._starting.values()
        mine = sum(other.chat_id == order.chat_id for other in running)
        if mine >= self._limits.running_per_chat:
            raise _too_many(f"This chat already has {mine} commands running.")
        if len(running) >= self._limits.running:
            raise _too_many(f"This workspace already has {len(running)} commands running.")

    # --- ending and finding -----------------------------------------------------------------

    def _ended(self, entry: CommandEntry, exit_code: int) -> None:
        entry.end(exit_code, self._now())
        if entry.child is not None and signal_group(entry.child.pid, 0):
            self._left_behind.append(entry.child.pid)
        self._own(self._save(entry))
        if self._on_end is not None:
            # Not from here: what a listener does wrong is not this command's matter.
            asyncio.get_running_loop().call_soon(self._on_end, entry.order.family, entry.workdir)

    async def _save(self, entry: CommandEntry) -> None:
        try:
            await self._in_thread(partial(self._finished.save, entry.id, entry.saved_result()))
        finally:
            entry.saved = True
            self._forget()

    def _forget(self) -> None:
        """Drop from memory what ended long ago, or too many commands ago."""
        self._left_behind = [group for group in self._left_behind if signal_group(group, 0)]
        ended = [entry for entry in self._entries.values() if entry.saved]
        oldest = self._now() - self._limits.ended_ttl_s
        excess = len(ended) - self._limits.ended
        for index, entry in enumerate(ended):
            if index < excess or (entry.ended_at or 0) < oldest:
                del self._entries[entry.id]

    def _find(self, process_id: str, chat_id: str | None) -> CommandEntry | None:
        entry = self._entries.get(process_id)
        if entry is not None and not entry.visible_to(chat_id):
            raise _unknown(process_id)
        return entry

    async def _from_disk(self, process_id: str, chat_id: str | None) -> Json | None:
        record = await self._in_thread(partial(self._finished.load, process_id))
        if record is None or (chat_id is not None and record.get("chat_id") != chat_id):
            return None
        return record

    async def _vouch_for(self, process_id: str, chat_id: str | None) -> None:
        """Of a command that was started before, something must still be known."""
        if self._find(process_id, chat_id) or await self._from_disk(process_id, chat_id):
            return
        raise AgentError(
            409,
            "This command was started before, and the workspace agent was restarted since. What "
            "became of it is not known; it may still be running. It was not run again. Look at "
            "the state of the workspace before you repeat it.",
            code="outcome_unknown",
        )

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _own(self, work: Coroutine[object, object, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _unknown(process_id: str) -> AgentError:
    return AgentError(
        404, f"There is no process {process_id!r} in this chat. List the processes to see which."
    )


def _too_many(fact: str) -> AgentError:
    return AgentError(
        429,
        f"{fact} Wait for one to end (process_output), or stop one that is no longer needed "
        "(process_list, process_signal), then try again.",
        code="too_many_processes",
    )
