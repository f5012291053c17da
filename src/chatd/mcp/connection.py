"""One connection to an MCP server. A session of the SDK must be opened, used and closed in one
task: `McpConnection.run` is that task, and calls reach it through a queue.

Importing this module loads the SDK (0.8 s, 63 MB).
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from functools import cache
from typing import Any, Final, cast

import httpx2
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, Implementation
from mcp_types import ToolListChangedNotification as ToolsChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.mcp.results import McpFault, convert_result, error_text
from chatd.domain.mcp.servers import McpAccess
from chatd.domain.mcp.tools import ListedTool, ToolList
from chatd.domain.ports import Clock, Env
from chatd.domain.text import clip, replace_surrogates
from chatd.mcp.http_transport import (
    EXCHANGE,
    MAX_REPLY_BYTES,
    BoundedTransport,
    DialPolicy,
    Exchange,
    McpLimits,
)

# Progress of an MCP call as lines for viewers, few enough for a server that sends thousands.

MAX_PROGRESS_LINES: Final = 200
MIN_PROGRESS_GAP_S: Final = 0.1
_MAX_LINE_CHARS: Final = 500


class ProgressLines:
    def __init__(self, show: Callable[[str], None], clock: Clock) -> None:
        self._show = show
        self._clock = clock
        self._lines = 0
        self._next_at = 0.0

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = self._clock.monotonic()
        if self._lines >= MAX_PROGRESS_LINES or now < self._next_at:
            return
        self._lines += 1
        self._next_at = now + MIN_PROGRESS_GAP_S
        self._show(f"{progress_line(progress, total, message)}\n")


def progress_line(progress: float, total: float | None, message: str | None) -> str:
    share = f"{progress:g}" if not total else f"{progress:g} of {total:g}"
    text = clip(" ".join(replace_surrogates(message or "").split()), _MAX_LINE_CHARS)
    return f"{share}: {text}" if text else share


MAX_CALLS_PER_CONNECTION: Final = 32
MAX_LIST_PAGES: Final = 50
MIN_LIST_INTERVAL_S: Final = 1.0
"""Minimum time between two lists that a server's notices cause."""
_CLIENT_INFO: Final = Implementation(name="chatd", version="1")

for _name in ("mcp", "httpx2", "httpcore2", "client"):
    # They log whole messages and URLs with queries.
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class _Call(Struct, kw_only=True, eq=False):
    tool: str
    args: dict[str, Any]
    show: Callable[[str], None]
    reply: asyncio.Future[ToolOutput]
    context: Context


class McpConnection:
    """`tools` is empty until `ready` is done. After `retire` no call is accepted, and the
    connection closes when its calls have ended."""

    def __init__(self, access: McpAccess, policy: DialPolicy, limits: McpLimits, env: Env) -> None:
        self.access = access
        self.tools: tuple[ListedTool, ...] = ()
        self.is_retired = False
        self.open_calls = 0
        self.last_used_s = env.clock.monotonic()
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ready.add_done_callback(_retrieve)
        self._policy = policy
        self._limits = limits
        self._env = env
        self._inbox: asyncio.Queue[_Call | None] = asyncio.Queue()
        self._is_list_stale = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        return self.open_calls == 0

    def retire(self) -> None:
        if not self.is_retired:
            self.is_retired = True
            self._inbox.put_nowait(None)

    async def call(
        self, tool: str, args: Mapping[str, object], show: Callable[[str], None]
    ) -> ToolOutput:
        """Raises McpFault if the server gave no reply."""
        if self.is_retired:
            raise McpFault("unreachable", "The connection was closed before the call.")
        if self.open_calls >= MAX_CALLS_PER_CONNECTION:
            text = f"{MAX_CALLS_PER_CONNECTION} calls to this server run already. Call again later."
            raise McpFault("busy", text)
        reply = asyncio.get_running_loop().create_future()
        self.open_calls += 1
        try:
            self._inbox.put_nowait(
                _Call(tool=tool, args=dict(args), show=show, reply=reply, context=copy_context())
            )
            return await reply
        finally:
            self.open_calls -= 1
            self.last_used_s = self._env.clock.monotonic()

    # The owner task

    async def run(self) -> None:
        """Return when the connection is closed. The future `ready` tells whether it was opened."""
        exchange = Exchange()
        EXCHANGE.set(exchange)
        try:
            async with asyncio.timeout(self._limits.connect_s) as limit, self._open() as client:
                self.tools = await _list_tools(client)
                limit.reschedule(None)
                self.ready.set_result(None)
                await self._serve(client)
        except asyncio.CancelledError:
            raise
        except TimeoutError:
            text = f"The server did not answer within {self._limits.connect_s:g} s."
            self._fail(exchange.fault or McpFault("unreachable", text))
        except Exception as error:  # noqa: BLE001 - the SDK raises many kinds, in groups too
            text = f"The server cannot be used: {_reason(error)}."
            self._fail(exchange.fault or McpFault("failed", text))
        finally:
            self._fail(McpFault("lost", "The connection was closed."))

    def _fail(self, fault: McpFault) -> None:
        self.is_retired = True
        if not self.ready.done():
            self.ready.set_exception(fault)
        while not self._inbox.empty():
            call = self._inbox.get_nowait()
            if call is not None and not call.reply.done():
                call.reply.set_exception(McpFault("unreachable", fault.message))

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Client]:
        server, headers = self.access.server, dict(self.access.headers)
        if server.transport == "sse":

            def client_factory(**given: Any) -> httpx2.AsyncClient:
                return self._http_client(needs_stop=True, **given)

            transport = sse_client(
                server.url,
                headers=headers,
                timeout=self._limits.connect_s,
                httpx_client_factory=cast("Any", client_factory),
            )
            async with self._client(transport, "legacy") as client:
                yield client
            return
        http = self._http_client(
            headers=headers,
            timeout=httpx2.Timeout(self._limits.connect_s, read=self._limits.call_s + 5),
        )
        async with http:
            transport = streamable_http_client(
                server.url, http_client=http, max_sse_event_size=MAX_REPLY_BYTES
            )
            async with self._client(transport, "auto") as client:
                yield client

    def _http_client(self, *, needs_stop: bool = False, **given: Any) -> httpx2.AsyncClient:
        transport = BoundedTransport(self._policy, _tls_context(), needs_stop=needs_stop)
        given.pop("auth", None)
        return httpx2.AsyncClient(transport=transport, trust_env=False, **given)

    def _client(self, transport: Any, mode: str) -> Client:
        return Client(
            transport,
            mode=mode,
            client_info=_CLIENT_INFO,
            cache=None,
            message_handler=self._on_message,
        )

    async def _on_message(self, message: object) -> None:
        if isinstance(message, ToolsChanged):
            self._is_list_stale.set()

    async def _serve(self, client: Client) -> None:
        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(self._refresh(client))]
            if _sends_changes(client):
                watches.append(group.create_task(self._listen(client)))
            while (call := await self._inbox.get()) is not None:
                # In the caller's context, so that the request carries its trace context.
                task = group.create_task(self._answer(client, call), context=call.context)
                call.reply.add_done_callback(_canceller(task))
            for watch in watches:
                watch.cancel()

    async def _answer(self, client: Client, call: _Call) -> None:
        exchange = Exchange()
        EXCHANGE.set(exchange)
        try:
            output = await self._send(client, call, exchange)
        except McpFault as fault:
            if fault.kind != "busy":
                self.retire()
            if not call.reply.done():
                call.reply.set_exception(fault)
        except asyncio.CancelledError:
            if not call.reply.done():
                text = "The connection was closed before the reply."
                call.reply.set_exception(McpFault("lost", text))
            raise
        else:
            if not call.reply.done():
                call.reply.set_result(output)

    async def _send(self, client: Client, call: _Call, exchange: Exchange) -> ToolOutput:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.call_s) as limit:
                exchange.stop = lambda: limit.reschedule(loop.time())
                result = await client.call_tool(
                    call.tool,
                    call.args,
                    progress_callback=ProgressLines(call.show, self._env.clock),
                )
        except TimeoutError:
            text = f"The server did not answer within {self._limits.call_s:g} s."
            raise exchange.fault or McpFault("timeout", text) from None
        except MCPError as error:
            if exchange.fault is not None:
                raise exchange.fault from None
            if error.code == CONNECTION_CLOSED:
                kind = "lost" if exchange.is_sent else "gone"
                raise McpFault(kind, _lost_text(error)) from None
            return error_output(f"The server refused the call: {error_text(error.message)}")
        except Exception as error:  # noqa: BLE001 - a reply that the SDK cannot read
            if exchange.fault is not None:
                raise exchange.fault from None
            return error_output(f"The tool ran, but its reply cannot be used: {_reason(error)}")
        return convert_result(result.model_dump(mode="json", by_alias=True, exclude_none=True))

    # Changes of the list

    async def _refresh(self, client: Client) -> None:
        while True:
            await self._is_list_stale.wait()
            self._is_list_stale.clear()
            try:
                async with asyncio.timeout(self._limits.connect_s):
                    self.tools = await _list_tools(client)
            except Exception as error:  # noqa: BLE001 - the former list stays
                self._env.emit(
                    "mcp_list_failed",
                    server=self.access.server.slug,
                    error_kind=type(error).__name__,
                    reason=_reason(error),
                )
            else:
                self._env.emit("mcp_tools_changed", server=self.access.server.slug)
            # A server that announces changes without pause is not asked without pause.
            await self._env.clock.sleep(MIN_LIST_INTERVAL_S, "mcp_list")

    async def _listen(self, client: Client) -> None:
        """Listen for changes: servers of the newest protocol send them on a stream of their own."""
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._is_list_stale.set()
        except Exception as error:  # noqa: BLE001 - without the stream the list just gets older
            self._env.emit(
                "mcp_listen_ended", server=self.access.server.slug, reason=_reason(error)
            )


async def _list_tools(client: Client) -> tuple[ListedTool, ...]:
    if client.server_capabilities.tools is None:
        return ()
    listed = ToolList()
    cursor: str | None = None
    for _ in range(MAX_LIST_PAGES):
        page = await client.list_tools(cursor=cursor)
        for entry in page.tools:
            listed.add(entry.model_dump(mode="json", by_alias=True, exclude_none=True))
        if listed.is_full or page.next_cursor in (None, cursor):
            break
        cursor = page.next_cursor
    return listed.tools()


def _sends_changes(client: Client) -> bool:
    tools = client.server_capabilities.tools
    is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
    return is_modern and tools is not None and bool(tools.list_changed)


def _canceller(task: asyncio.Task[None]) -> Callable[[asyncio.Future[ToolOutput]], None]:
    def cancel(reply: asyncio.Future[ToolOutput]) -> None:
        if reply.cancelled():
            task.cancel()

    return cancel


def _retrieve(ready: asyncio.Future[None]) -> None:
    """Retrieve the exception, which asyncio would log otherwise."""
    if not ready.cancelled():
        ready.exception()


def _lost_text(error: MCPError) -> str:
    return f"The connection broke before the reply: {error_text(error.message)}."


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return (error_text(error) or type(error).__name__).rstrip(".")


@cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()
