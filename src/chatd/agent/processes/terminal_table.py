"""All terminals of a workspace: how many there may be, and when unused ones end; and their HTTP
routes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial

from chatd.agent.errors import AgentError
from chatd.agent.processes.process_child import CommandEnvironment
from chatd.agent.processes.terminal import Terminal, TerminalShell, TerminalSize, spawn_shell
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, RequestFields, json_reply
from chatd.agent.threads import ThreadRunner

MAX_TERMINALS = 8
MAX_ENDED_TERMINALS = 8
UNUSED_TIMEOUT_S = 4 * 3600.0
"""A terminal without a viewer ends after this time."""
ENDED_TTL_S = 600.0
CHECK_INTERVAL_S = 60.0
CLOSE_TIMEOUT_S = 3.0

_Key = tuple[str, str]


class TerminalTable:
    """Create it inside the event loop. A chat sees its own terminals only. `on_used(chats, paths)`
    is called with the directory of a terminal that was opened."""

    def __init__(
        self,
        environment: CommandEnvironment,
        threads: ThreadRunner,
        *,
        on_used: Callable[[tuple[str, ...], list[str]], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environment = environment
        self._threads = threads
        self._on_used = on_used
        self._now = now
        self._terminals: dict[_Key, Terminal] = {}
        self._starting: dict[_Key, asyncio.Task[Terminal]] = {}
        self._is_closing = False

    async def open(self, chat_id: str, terminal_id: str, size: TerminalSize) -> bool:
        """Start the terminal, or find it again. Returns whether it was there."""
        key = (chat_id, terminal_id)
        if (known := self._terminals.get(key)) is not None:
            if known.is_running:
                known.resize(size)
            return True
        starting = self._starting.get(key)
        is_again = starting is not None
        if starting is None:
            self._check_limits()
            starting = asyncio.get_running_loop().create_task(self._start(key, size))
            self._starting[key] = starting
            starting.add_done_callback(lambda _: self._starting.pop(key, None))
        # Shielded: a cancelled caller must not leave a shell that is in no table.
        await asyncio.shield(starting)
        return is_again

    def find(self, chat_id: str, terminal_id: str) -> Terminal:
        found = self._terminals.get((chat_id, terminal_id))
        if found is None:
            text = "There is no such terminal. It may have ended with the workspace."
            raise AgentError(404, text, code="no_such_terminal")
        return found

    def list(self, chat_id: str) -> list[dict[str, object]]:
        return [
            {"id": terminal_id, "running": terminal.is_running, "exit_code": terminal.exit_code}
            for (owner, terminal_id), terminal in self._terminals.items()
            if owner == chat_id
        ]

    def close_terminal(self, chat_id: str, terminal_id: str) -> None:
        """Ends the shell, and forgets a terminal that has ended."""
        terminal = self._terminals.pop((chat_id, terminal_id), None)
        if terminal is not None:
            terminal.hang_up()

    def end_unused(self) -> None:
        now = self._now()
        for key, terminal in list(self._terminals.items()):
            if terminal.is_viewed:
                continue
            unused_s = now - terminal.unused_since
            if terminal.is_running and unused_s >= UNUSED_TIMEOUT_S:
                terminal.hang_up()
            elif not terminal.is_running and unused_s >= ENDED_TTL_S:
                del self._terminals[key]

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self.end_unused()

    async def close(self) -> None:
        """Kill all shells, wait for their end, start no more."""
        self._is_closing = True
        if self._starting:
            await asyncio.wait(list(self._starting.values()), timeout=CLOSE_TIMEOUT_S)
        for terminal in self._terminals.values():
            terminal.kill()
        ends = [asyncio.ensure_future(each.wait_ended()) for each in self._terminals.values()]
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_TIMEOUT_S)

    def _check_limits(self) -> None:
        if self._is_closing:
            raise AgentError(503, "The workspace is closing and starts no more terminals.")
        running = sum(each.is_running for each in self._terminals.values()) + len(self._starting)
        if running >= MAX_TERMINALS:
            text = f"This workspace already has {running} terminals. Close one, then try again."
            raise AgentError(429, text, code="too_many_terminals")

    async def _start(self, key: _Key, size: TerminalSize) -> Terminal:
        chat_id = key[0]
        workdir, shell = await self._threads.run(partial(self._spawn, chat_id, size))
        terminal = Terminal(
            shell, chat_id=chat_id, size=size, on_end=self._drop_ended, now=self._now
        )
        self._terminals[key] = terminal
        if self._is_closing:
            terminal.kill()
        self._on_used((chat_id,), [workdir])
        return terminal

    def _spawn(self, chat_id: str, size: TerminalSize) -> tuple[str, TerminalShell]:
        workdir = self._environment.resolve_workdir(None)
        return workdir, spawn_shell(workdir, self._environment.build_variables({}, chat_id), size)

    def _drop_ended(self) -> None:
        """Keep the output of the last ones only."""
        ended = [key for key, each in self._terminals.items() if not each.is_running]
        ended.sort(key=lambda key: self._terminals[key].unused_since)
        for key in ended[: max(len(ended) - MAX_ENDED_TERMINALS, 0)]:
            if not self._terminals[key].is_viewed:
                del self._terminals[key]


# Routes. Output is a streamed reply of signed JSON lines.

TERMINAL_API_PREFIX = "/api/v0/terminals"
MAX_INPUT_BYTES = 64 * 1024


class TerminalRoutes:
    """A terminal belongs to a chat: every request names one."""

    def __init__(self, terminals: TerminalTable) -> None:
        self._terminals = terminals

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", f"{TERMINAL_API_PREFIX}/list", self._list),
            AgentRoute("POST", f"{TERMINAL_API_PREFIX}/{{}}/open", self._open),
            AgentRoute("GET", f"{TERMINAL_API_PREFIX}/{{}}/output", self._output),
            AgentRoute(
                "POST",
                f"{TERMINAL_API_PREFIX}/{{}}/input",
                self._input,
                max_body=MAX_INPUT_BYTES,
            ),
            AgentRoute("POST", f"{TERMINAL_API_PREFIX}/{{}}/resize", self._resize),
            AgentRoute("POST", f"{TERMINAL_API_PREFIX}/{{}}/close", self._close),
        ]

    async def _list(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        return json_reply({"terminals": self._terminals.list(_chat(request))})

    async def _open(self, request: AgentRouteRequest) -> AgentHttpReply:
        size = _size(request.json())
        again = await self._terminals.open(_chat(request), request.parameter, size)
        return json_reply({"again": again})

    async def _output(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        terminal = self._find(request)
        return AgentHttpReply(200, content_type="application/x-ndjson", lines=_lines(terminal))

    async def _input(self, request: AgentRouteRequest) -> AgentHttpReply:
        await self._find(request).write(request.body)
        return json_reply({"ok": True})

    async def _resize(self, request: AgentRouteRequest) -> AgentHttpReply:
        size = _size(request.json())
        self._find(request).resize(size)
        return json_reply({"ok": True})

    async def _close(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.json().reject_unknown()
        self._terminals.close_terminal(_chat(request), request.parameter)
        return json_reply({"ok": True})

    def _find(self, request: AgentRouteRequest) -> Terminal:
        return self._terminals.find(_chat(request), request.parameter)


async def _lines(terminal: Terminal) -> AsyncGenerator[bytes, None]:
    events = terminal.follow()
    try:
        async for event in events:
            yield json.dumps(event, separators=(",", ":")).encode()
    finally:
        await events.aclose()


def _size(fields: RequestFields) -> TerminalSize:
    size = TerminalSize(fields.count("cols"), fields.count("rows"))
    fields.reject_unknown()
    return size


def _chat(request: AgentRouteRequest) -> str:
    if not request.caller.chat_id:
        raise AgentError(400, "a terminal belongs to a chat: name one")
    return request.caller.chat_id
