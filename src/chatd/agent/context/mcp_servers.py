"""The MCP servers of a workspace: one connection each, for discovery and for calls.

A new configuration is applied by difference: unchanged servers keep their connections, and a
changed one keeps its former connection until the new one works. A server that cannot be reached
does not delay the others, and is tried again after a growing delay.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Union, cast

from chatd.agent.context.mcp_clients import (
    HttpClient,
    McpConnectionLost,
    McpServerError,
    Object,
    StdioClient,
    initialize_params,
    within,
)
from chatd.agent.context.mcp_config import McpServerConfig, expand
from chatd.agent.durable_files import Json
from chatd.agent.effect_guards import EpochFence, IdempotencyJournal
from chatd.agent.errors import AgentError
from chatd.agent.processes.process_child import CommandEnvironment
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply
from chatd.agent.threads import AgentClock

MCP_CONNECT_TIMEOUT_S = 30.0
"""Limit for the handshake and the list of tools, not for the life of the server."""
MCP_CALL_TIMEOUT_S = 60.0
MCP_FIRST_RETRY_S = 5.0
MCP_MAX_RETRY_S = 300.0
MAX_LIST_PAGES = 20
MIN_LIST_INTERVAL_S = 1.0
MAX_TOOLS_BYTES = 60 << 10
"""Limit for the list of one server, as JSON. Further tools are left out."""
McpClient = Union[HttpClient, StdioClient]  # noqa: UP007  The agent runs on Python 3.9 too.


@dataclass(frozen=True)
class ServerReport:
    """`tools` is a JSON list of the server's own entries; `hash` is that of the list."""

    name: str
    source: str
    tools: str = ""
    error: str = ""

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.tools.encode("utf-8", "replace")).hexdigest()


class WorkspaceServers:
    """`on_change` is called whenever `reports` may have changed."""

    def __init__(
        self,
        environment: CommandEnvironment,
        clock: AgentClock,
        on_change: Callable[[], None],
        *,
        connect_timeout_s: float = MCP_CONNECT_TIMEOUT_S,
        call_timeout_s: float = MCP_CALL_TIMEOUT_S,
    ) -> None:
        self._opener = _Opener(environment, connect_timeout_s)
        self._clock = clock
        self._on_change = on_change
        self._call_timeout_s = call_timeout_s
        self._servers: dict[str, _Server] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def apply(self, configs: Sequence[McpServerConfig]) -> None:
        """Returns at once: servers connect in the background, and no caller can stop that."""
        wanted = {config.name: config for config in configs}
        for name in [name for name in self._servers if name not in wanted]:
            self._close(self._servers.pop(name))
        for name, config in wanted.items():
            server = self._servers.get(name)
            if server is None:
                self._servers[name] = _Server(config, self._opener, self._clock, self._on_change)
            elif server.config != config:
                server.replace(config)
        self._on_change()

    def reports(self) -> list[ServerReport]:
        return [self._servers[name].report() for name in sorted(self._servers)]

    async def call(self, server: str, tool: str, args: Object) -> Object:
        """Raises AgentError."""
        found = self._servers.get(server)
        if found is None:
            known = ", ".join(sorted(self._servers)) or "none"
            raise AgentError(404, f"The workspace has no MCP server {server!r}. Servers: {known}.")
        return await found.call(tool, args, self._call_timeout_s)

    async def close(self) -> None:
        for server in self._servers.values():
            self._close(server)
        self._servers.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    def _close(self, server: _Server) -> None:
        task = asyncio.ensure_future(server.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Opener:
    def __init__(self, environment: CommandEnvironment, timeout_s: float) -> None:
        self._environment = environment
        self._timeout_s = timeout_s

    async def open(
        self, config: McpServerConfig, on_change: Callable[[], None]
    ) -> tuple[McpClient, str]:
        """The client and its list of tools. Raises McpServerError, McpConnectionLost, OSError."""
        client = await self._start(config, on_change)
        try:
            return client, await within(self._shake_hands(client), self._timeout_s)
        except BaseException:
            await client.close()
            raise

    async def list_tools(self, client: McpClient) -> str:
        found: list[Object] = []
        size, cursor = 2, None
        for _ in range(MAX_LIST_PAGES):
            params: Object = {} if cursor is None else {"cursor": cursor}
            page = await client.ask("tools/list", params, self._timeout_s)
            entries = page.get("tools")
            for entry in cast("list[object]", entries) if isinstance(entries, list) else []:
                if isinstance(entry, dict):
                    kept = _kept_fields(cast("Object", entry))
                    size += len(json.dumps(kept)) + 1
                    if size > MAX_TOOLS_BYTES:
                        return json.dumps(found)
                    found.append(kept)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                break
        return json.dumps(found)

    async def _start(self, config: McpServerConfig, on_change: Callable[[], None]) -> McpClient:
        variables = self._environment.build_variables({}, None)
        env = {name: expand(value, variables) for name, value in config.env}
        variables.update(env)
        if config.transport == "http":
            headers = {name: expand(value, variables) for name, value in config.headers}
            return HttpClient(expand(config.url, variables), headers)
        argv = [expand(each, variables) for each in (config.command, *config.args)]
        return await StdioClient.start(
            argv,
            env=self._environment.build_variables(env, None),
            workdir=self._environment.resolve_workdir(None),
            on_change=on_change,
        )

    async def _shake_hands(self, client: McpClient) -> str:
        await client.ask("initialize", initialize_params(), self._timeout_s)
        await client.tell("notifications/initialized")
        return await self.list_tools(client)


def _kept_fields(entry: Object) -> Object:
    wanted = ("name", "title", "description", "inputSchema", "annotations")
    return {name: entry[name] for name in wanted if name in entry}


class _Server:
    """One server: a task opens its connection, again after each failure."""

    def __init__(
        self,
        config: McpServerConfig,
        opener: _Opener,
        clock: AgentClock,
        on_change: Callable[[], None],
    ) -> None:
        self.config = config
        self._opener = opener
        self._clock = clock
        self._on_change = on_change
        self._client: McpClient | None = None
        self._tools = ""
        self._error = config.error
        self._tried = asyncio.Event()
        self._wanted = asyncio.Event()
        self._is_list_stale = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._start()

    def report(self) -> ServerReport:
        return ServerReport(
            self.config.name, self.config.source, self._tools, "" if self._tools else self._error
        )

    def replace(self, config: McpServerConfig) -> None:
        """The former connection serves calls until the new one works."""
        self.config = config
        self._error = config.error
        if self._task is not None:
            self._task.cancel()
        if config.error and self._client is not None:
            former, self._client, self._tools = self._client, None, ""
            self._task = asyncio.ensure_future(former.close())
            return
        self._start()

    async def call(self, tool: str, args: Object, timeout_s: float) -> Object:
        client = await self._live_client(timeout_s)
        try:
            return await client.ask("tools/call", {"name": tool, "arguments": args}, timeout_s)
        except McpServerError as error:
            raise AgentError(400, f"The MCP server refused the call: {error}") from None
        except McpConnectionLost as error:
            self._note_change()
            text = f"The MCP server {self.config.name!r} gave no result: {error}."
            if error.may_have_run:
                text += " The outcome is unknown: check what it would have changed."
                raise AgentError(502, text, code="outcome_unknown") from None
            raise AgentError(503, f"{text} Nothing was done; try again.") from None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _live_client(self, timeout_s: float) -> McpClient:
        if not self.config.error and (self._client is None or not self._client.is_open):
            self._tried.clear()
            self._wanted.set()
            self._note_change()
            with suppress(McpConnectionLost):
                await within(self._tried.wait(), min(timeout_s, MCP_CONNECT_TIMEOUT_S))
        if self._client is None or not self._client.is_open:
            reason = self._error or "it does not answer"
            text = f"The MCP server {self.config.name!r} is not available: {reason}."
            raise AgentError(503, f"{text} Nothing was done.")
        return self._client

    def _start(self) -> None:
        self._task = None if self.config.error else asyncio.ensure_future(self._run(self.config))

    def _note_change(self) -> None:
        """Wake the task: the list or the connection may have changed."""
        self._is_list_stale.set()

    async def _run(self, config: McpServerConfig) -> None:
        failures = 0
        while True:
            try:
                await self._open(config)
            except (McpServerError, McpConnectionLost, OSError, AgentError, ValueError) as error:
                failures += 1
                self._error = str(error)[:1000] or type(error).__name__
                self._on_change()
            else:
                failures = 0
            self._tried.set()
            if not failures:
                await self._watch()
            # A server that ends at once must not be started in a loop.
            delay_s = MCP_FIRST_RETRY_S * 2.0 ** min(max(failures - 1, 0), 10)
            await self._pause(min(delay_s, MCP_MAX_RETRY_S))

    async def _pause(self, seconds: float) -> None:
        """Wait; a call ends the wait."""
        waits = [
            asyncio.ensure_future(self._clock.sleep(seconds, "mcp retry")),
            asyncio.ensure_future(self._wanted.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._wanted.clear()

    async def _open(self, config: McpServerConfig) -> None:
        client, tools = await self._opener.open(config, self._note_change)
        former, self._client = self._client, client
        self._tools, self._error = tools, ""
        self._on_change()
        if former is not None:
            await former.close()

    async def _watch(self) -> None:
        """Wait until the connection ends; its tools stay listed while it is opened again."""
        while (client := self._client) is not None and client.is_open:
            await self._is_list_stale.wait()
            self._is_list_stale.clear()
            if not client.is_open:
                return
            with suppress(McpServerError, McpConnectionLost):
                tools = await self._opener.list_tools(client)
                if tools != self._tools:
                    self._tools = tools
                    self._on_change()
            # A server that announces changes without pause is not asked without pause.
            await self._clock.sleep(MIN_LIST_INTERVAL_S, "mcp list")


# The route by which chats call tools.
#
# A call can take longer than a request should: the route answers `running` after a while, and the
# same request with the same key joins the running call.

CALL_POLL_S = 15.0
"""A request waits this long for the result."""
MAX_RECENT_RESULTS = 16
"""Results that are too large for the journal, kept in memory until they are fetched."""


class McpRoutes:
    def __init__(
        self, servers: WorkspaceServers, journal: IdempotencyJournal, fence: EpochFence
    ) -> None:
        self._servers = servers
        self._journal = journal
        self._fence = fence
        self._recent: OrderedDict[str, Json] = OrderedDict()

    def routes(self) -> list[AgentRoute]:
        return [AgentRoute("POST", "/api/v0/mcp/call", self._call)]

    async def _call(self, request: AgentRouteRequest) -> AgentHttpReply:
        caller, fields = request.caller, request.json()
        server, tool = fields.text("server"), fields.text("tool")
        args = _read_arguments(fields.text("arguments"))
        fields.reject_unknown()
        self._fence.check_owner(caller.chat_id, caller.owner)

        async def effect() -> Json:
            result: Json = {"result": dict(await self._servers.call(server, tool, args))}
            self._remember(caller.key, result)
            return result

        kind = f"mcp {server} {tool}"[:200]
        work = asyncio.ensure_future(self._journal.run_once(caller.key, kind, effect))
        try:
            await asyncio.wait({work}, timeout=CALL_POLL_S)
        finally:
            if not work.done():
                work.cancel()  # the journal lets the effect itself go on
        if not work.done():
            return json_reply({"running": True})
        return json_reply(self._result(caller.key, work))

    def _remember(self, key: str, result: Json) -> None:
        self._recent[key] = result
        while len(self._recent) > MAX_RECENT_RESULTS:
            self._recent.popitem(last=False)

    def _result(self, key: str, work: asyncio.Future[Json]) -> Json:
        try:
            return work.result()
        except AgentError as error:
            if error.code == "result_not_kept" and key in self._recent:
                return self._recent[key]
            raise


def _read_arguments(text: str) -> dict[str, object]:
    try:
        value: object = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise AgentError(400, "The arguments are not JSON.") from None
    if not isinstance(value, dict):
        raise AgentError(400, "The arguments must be a JSON object.")
    return cast("dict[str, object]", value)
