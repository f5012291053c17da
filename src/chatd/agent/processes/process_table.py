"""The commands of this boot: start, read, list and signal them, within limits; and their HTTP
routes.

A chat sees only its own commands; a request without a chat sees all. Results of ended commands
outlive the agent in `SavedResults`, start requests in `IdempotencyJournal`.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from chatd.agent.durable_files import Json
from chatd.agent.effect_guards import EpochFence, IdempotencyJournal
from chatd.agent.errors import AgentError
from chatd.agent.processes.process_child import (
    ChildProcess,
    CommandEnvironment,
    SpawnedShell,
    signal_group,
    spawn,
)
from chatd.agent.processes.process_command import (
    CommandEntry,
    CommandSpec,
    SavedResults,
    output_from_saved,
    wait,
)
from chatd.agent.processes.process_output import OutputFile
from chatd.agent.server.dispatcher import AgentCaller, AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply
from chatd.agent.threads import start_pool

_T = TypeVar("_T")

MAX_OUTPUT_WAIT_S = 300.0
MAX_START_WAIT_S = 1.0
MAX_LISTED_COMMANDS = 10
FILE_WAIT_S = 2.0
"""How long a reader waits until the end of the output is in its file."""
_PROCESS_THREADS = 4
_FILE_THREADS = 2
SIGNALS = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}


@dataclass(frozen=True)
class ProcessLimits:
    """How many commands may run, and how many ended ones stay in memory for how long."""

    running_per_chat: int = 32
    running: int = 128
    ended: int = 64
    ended_ttl_s: float = 300.0
    grace_s: float = 5.0
    close_timeout_s: float = 10.0


class ProcessTable:
    """Create it inside the event loop. `on_end(chats, workdir)` is called when a command ends."""

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
        self._environment = environment
        self._journal = journal
        self._saved_results = saved_results
        self._limits = limits or ProcessLimits()
        self._now = now
        self._on_end = on_end
        self._entries: dict[str, CommandEntry] = {}
        # Process groups that outlived their shell. Each has a process, so their number is bounded.
        self._stray_groups: list[int] = []
        self._starting: dict[int, CommandSpec] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closing = False
        # A pool of its own, which `close` does not wait for: the disk may never answer.
        self._threads = start_pool(_PROCESS_THREADS, "process")
        # The files of outputs may be slow or hang, and commands still start and end.
        self._file_threads = start_pool(_FILE_THREADS, "output")

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
        """`{id, started}`; for a repeated key those of the first call, and `again`."""
        if not command.strip():
            raise AgentError(400, "The command is empty.")
        chats = (chat_id, *ancestors) if chat_id else ()
        spec = CommandSpec(command, chat_id, workdir, dict(env or {}), background, chats)
        if not key:
            return await self._launch(spec)
        result = await self._journal.run_once(
            key, "process", lambda: self._launch(spec), repeat_fields={"again": True}
        )
        if result.get("again"):
            await self._require_known(str(result.get("id")), chat_id)
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
        """The output after a cursor. Waits for the end or, with `any_output`, for new output."""
        if not math.isfinite(wait_s) or wait_s < 0 or after < 0:
            raise AgentError(400, "wait_s and after must be non-negative numbers.")
        self._drop_old()
        entry = self._find(process_id, chat_id)
        if entry is None:
            record = await self._load_saved(process_id, chat_id)
            if record is None:
                raise _unknown_error(process_id)
            return output_from_saved(record, after)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_s, MAX_OUTPUT_WAIT_S)
        while entry.is_running and not (any_output and entry.buffer.cursor > after):
            left = deadline - loop.time()
            if left <= 0:
                break
            await wait(entry.output_waiters if any_output else entry.end_waiters, left)
        if entry.filing is not None and not any_output:
            await asyncio.wait({entry.filing}, timeout=FILE_WAIT_S)
        return entry.output(after)

    def list(self, chat_id: str | None = None) -> Sequence[Json]:
        """The chat's commands: running ones first, then the newest first."""
        self._drop_old()
        visible = [entry for entry in self._entries.values() if entry.is_visible_to(chat_id)]
        visible.sort(key=lambda entry: (not entry.is_running, -entry.number))
        return [entry.summary() for entry in visible[:MAX_LISTED_COMMANDS]]

    async def signal(self, process_id: str, name: str, chat_id: str | None = None) -> None:
        """Send `terminate` or `kill` to the command's process group, which includes processes
        that the command left running in the background when it ended."""
        number = SIGNALS.get(name)
        if number is None:
            raise AgentError(400, f"The signal must be one of: {', '.join(SIGNALS)}.")
        entry = self._find(process_id, chat_id)
        if entry is None and await self._load_saved(process_id, chat_id) is None:
            raise _unknown_error(process_id)
        if entry is None or entry.child is None or not entry.child.signal(number):
            raise AgentError(409, f"The process {process_id} is not running.", code="not_running")

    async def close(self) -> None:
        """Kill all commands, wait for their end, start no more. May be called again.

        A process that has left its command's group is not reached; the sandbox ends it.
        """
        self._is_closing = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.close_timeout_s
        for entry in list(self._entries.values()):
            if entry.child is not None:
                entry.child.kill_now()
        for group in self._stray_groups:
            signal_group(group, signal.SIGKILL)
        while (left := deadline - loop.time()) > 0:
            running = [entry for entry in self._entries.values() if entry.is_running]
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=left)
            elif running:
                await wait(running[0].end_waiters, left)
            else:
                return

    # --- starting ---------------------------------------------------------------------------

    async def _launch(self, spec: CommandSpec) -> Json:
        # Shielded: a cancelled caller must not leave a child process that is in no table.
        return await asyncio.shield(self._own(self._start(spec)))

    async def _start(self, spec: CommandSpec) -> Json:
        self._drop_old()
        self._check_limits(spec)
        self._number += 1
        number = self._number
        self._starting[number] = spec
        try:
            workdir, shell = await self._in_thread(partial(self._spawn, spec))
        finally:
            del self._starting[number]
        # Stored without its environment, which may be large and contain secrets.
        spec = replace(spec, env={})
        process_id = secrets.token_hex(8)
        file = OutputFile(self._environment.home, process_id)
        entry = CommandEntry(process_id, number, spec, workdir, self._now(), file)
        self._entries[entry.id] = entry
        entry.child = ChildProcess(
            shell,
            grace_s=self._limits.grace_s,
            on_output=lambda data: self._on_output(entry, data),
            on_end=lambda exit_code: self._ended(entry, exit_code),
        )
        if self._is_closing:
            entry.child.kill_now()
            raise AgentError(500, "The workspace is closing: the command was killed at its start.")
        return {"id": entry.id, "started": True}

    def _on_output(self, entry: CommandEntry, data: bytes) -> None:
        entry.on_output(data)
        if entry.filing is None and entry.file.is_due:
            entry.filing = self._own(self._file_output(entry))

    async def _file_output(self, entry: CommandEntry) -> None:
        while entry.file.is_due:
            write = partial(entry.file.write, entry.file.take())
            await asyncio.get_running_loop().run_in_executor(self._file_threads, write)
        entry.filing = None

    def _spawn(self, spec: CommandSpec) -> tuple[str, SpawnedShell]:
        workdir = self._environment.resolve_workdir(spec.workdir)
        env = self._environment.build_variables(spec.env, spec.chat_id)
        return workdir, spawn(spec.command, workdir=workdir, env=env)

    def _check_limits(self, spec: CommandSpec) -> None:
        if self._is_closing:
            raise AgentError(503, "The workspace is closing and starts no more commands.")
        running = [entry.spec for entry in self._entries.values() if entry.is_running]
        running += self._starting.values()
        of_chat = sum(other.chat_id == spec.chat_id for other in running)
        if of_chat >= self._limits.running_per_chat:
            raise _too_many_error(f"This chat already has {of_chat} commands running.")
        if len(running) >= self._limits.running:
            raise _too_many_error(f"This workspace already has {len(running)} commands running.")

    # --- ending and finding -----------------------------------------------------------------

    def _ended(self, entry: CommandEntry, exit_code: int) -> None:
        entry.on_end(exit_code, self._now())
        if entry.child is not None and signal_group(entry.child.pid, 0):
            self._stray_groups.append(entry.child.pid)
        self._own(self._save(entry))
        if self._on_end is not None:
            # Called later, so that an exception in the callback does not affect the command.
            asyncio.get_running_loop().call_soon(self._on_end, entry.spec.chats, entry.workdir)

    async def _save(self, entry: CommandEntry) -> None:
        try:
            if entry.filing is not None:
                await asyncio.wait({entry.filing}, timeout=FILE_WAIT_S)
            await self._in_thread(partial(self._saved_results.save, entry.id, entry.saved_result()))
        finally:
            entry.is_saved = True
            self._drop_old()

    def _drop_old(self) -> None:
        """Drop ended commands from memory by age and number."""
        self._stray_groups = [group for group in self._stray_groups if signal_group(group, 0)]
        ended = [entry for entry in self._entries.values() if entry.is_saved]
        oldest = self._now() - self._limits.ended_ttl_s
        excess = len(ended) - self._limits.ended
        for index, entry in enumerate(ended):
            if index < excess or (entry.ended_at or 0) < oldest:
                del self._entries[entry.id]

    def _find(self, process_id: str, chat_id: str | None) -> CommandEntry | None:
        entry = self._entries.get(process_id)
        if entry is not None and not entry.is_visible_to(chat_id):
            raise _unknown_error(process_id)
        return entry

    async def _load_saved(self, process_id: str, chat_id: str | None) -> Json | None:
        record = await self._in_thread(partial(self._saved_results.load, process_id))
        if record is None or (chat_id is not None and record.get("chat_id") != chat_id):
            return None
        return record

    async def _require_known(self, process_id: str, chat_id: str | None) -> None:
        """Raises AgentError if neither memory nor disk has the command of a repeated key."""
        if self._find(process_id, chat_id) or await self._load_saved(process_id, chat_id):
            return
        raise AgentError(
            409,
            "This command was started before, and the workspace agent was restarted since. Its "
            "outcome is unknown; it may still be running. It was not run again. Check the state "
            "of the workspace before you repeat it.",
            code="outcome_unknown",
        )

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _own(self, work: Coroutine[object, object, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _unknown_error(process_id: str) -> AgentError:
    return AgentError(
        404, f"This chat has no process {process_id!r}. List the processes to see their ids."
    )


def _too_many_error(fact: str) -> AgentError:
    return AgentError(
        429,
        f"{fact} Wait for one to end (process_output), or stop one that is no longer needed "
        "(process_list, process_signal), then try again.",
        code="too_many_processes",
    )


# Routes

PROCESS_API_PREFIX = "/api/v0/processes"


class ProcessRoutes:
    def __init__(
        self,
        processes: ProcessTable,
        fence: EpochFence,
        before_effect: Callable[[AgentCaller, Sequence[str]], Awaitable[None]],
    ) -> None:
        self._processes = processes
        self._fence = fence
        self._before_effect = before_effect

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("POST", f"{PROCESS_API_PREFIX}/start", self._start),
            AgentRoute("GET", f"{PROCESS_API_PREFIX}/list", self._list),
            AgentRoute("GET", f"{PROCESS_API_PREFIX}/{{}}/output", self._output, is_long_poll=True),
            AgentRoute("POST", f"{PROCESS_API_PREFIX}/{{}}/signal", self._signal),
        ]

    async def _start(self, request: AgentRouteRequest) -> AgentHttpReply:
        caller = request.caller
        wait_s = min(request.query().seconds("wait_s"), MAX_START_WAIT_S)
        fields = request.json()
        command = fields.text("command")
        workdir = fields.text("workdir", "")
        env = fields.text_map("env")
        background = fields.flag("background")
        fields.reject_unknown()
        self._fence.check_owner(caller.chat_id, caller.owner)
        await self._before_effect(caller, [workdir])
        self._fence.check_owner(caller.chat_id, caller.owner)  # may have changed by now
        started = await self._processes.start(
            command,
            chat_id=caller.chat_id or None,
            key=caller.key,
            workdir=workdir or None,
            env=env,
            background=background,
            ancestors=caller.ancestors,
        )
        if wait_s and not background:
            output = await self._processes.output(
                str(started["id"]), chat_id=caller.chat_id or None, wait_s=wait_s
            )
            if not output["running"]:
                started = {**started, "output": output}
        return json_reply(started)

    async def _list(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        return json_reply({"processes": self._processes.list(request.caller.chat_id or None)})

    async def _output(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        wait_s = query.seconds("wait_s")
        if query.flag("wait"):
            wait_s = MAX_OUTPUT_WAIT_S
        after = query.count("after")
        any_output = query.flag("news")
        query.reject_unknown()
        output = await self._processes.output(
            request.parameter,
            chat_id=request.caller.chat_id or None,
            wait_s=wait_s,
            after=after,
            any_output=any_output,
        )
        return json_reply(output)

    async def _signal(self, request: AgentRouteRequest) -> AgentHttpReply:
        caller = request.caller
        fields = request.json()
        name = fields.text("signal")
        fields.reject_unknown()
        self._fence.check_owner(caller.chat_id, caller.owner)
        await self._processes.signal(request.parameter, name, caller.chat_id or None)
        return json_reply({"ok": True})
