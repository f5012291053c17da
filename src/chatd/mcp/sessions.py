"""Warm connections to MCP servers, one per chat and server, kept between steps and turns.

A server that fails is tried again after a growing delay, never at every step. The first attempt may
hold a step up to its time limit; later ones hold it only a moment.
"""

import asyncio
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.backoff import doubled_s, spread
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, McpServerId, UserId
from chatd.domain.mcp.results import McpFault, error_text
from chatd.domain.mcp.servers import McpAccess, McpDirectory, McpServer
from chatd.domain.ports import Env
from chatd.mcp.http_transport import DEFAULT_LIMITS, PUBLIC_HOSTS, DialPolicy, McpLimits

if TYPE_CHECKING:
    from chatd.mcp.connection import McpConnection

MAX_MCP_CONNECTIONS: Final = 256
"""Limit per process. The least recently used connection makes room for a new one."""
MCP_IDLE_S: Final = 300.0
"""An unused connection is closed after this time."""
MCP_IDLE_CHECK_S: Final = 30.0
MCP_STEP_MARGIN_S: Final = 1.0
"""A step waits this much longer than a new connection may take."""
MCP_RETRY_WAIT_S: Final = 1.0
"""The longest wait of a step for a server that has failed before."""
MCP_FIRST_RETRY_S: Final = 5.0
MCP_MAX_RETRY_S: Final = 300.0
MAX_REMEMBERED_FAILURES: Final = 2000

_Key = tuple[ChatId, McpServerId]
_FailureKey = tuple[UserId, McpServerId]


class _Failure(Struct, frozen=True, kw_only=True):
    """`subject` is what was tried: another version or credential may work at once."""

    subject: tuple[int, str]
    failures: int
    retry_at_s: float
    reason: str


class McpSessions:
    """Opens connections only while `run` runs, which also closes them."""

    def __init__(
        self,
        directory: McpDirectory,
        env: Env,
        policy: DialPolicy = PUBLIC_HOSTS,
        *,
        limits: McpLimits = DEFAULT_LIMITS,
        max_connections: int = MAX_MCP_CONNECTIONS,
    ) -> None:
        self._directory = directory
        self._env = env
        self._policy = policy
        self._limits = limits
        self._max_connections = max_connections
        self._connections: dict[_Key, McpConnection] = {}
        self._failures: dict[_FailureKey, _Failure] = {}
        self._group: asyncio.TaskGroup | None = None
        self._started = asyncio.Event()

    def __len__(self) -> int:
        return len(self._connections)

    async def run(self) -> None:
        """Run until cancelled; then close every connection."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._started.set()
            try:
                while True:
                    await self._env.clock.sleep(MCP_IDLE_CHECK_S, "mcp_idle")
                    self._retire_idle()
            finally:
                self._group = None

    async def wait_started(self) -> None:
        await self._started.wait()

    async def for_step(self, server: McpServer, chat: Chat) -> "McpConnection | None":
        """The connection, or None if the server cannot be used now. Bounded; never raises."""
        failed = self._failures.get((chat.owner_id, server.id))
        wait_s = self._limits.connect_s + MCP_STEP_MARGIN_S if failed is None else MCP_RETRY_WAIT_S
        try:
            async with asyncio.timeout(wait_s):
                return await self._connect(server, chat)
        except (TimeoutError, McpFault):
            return None
        except Exception as error:  # noqa: BLE001 - one server must not fail the step
            self._env.emit(
                "mcp_server_failed",
                chat_id=chat.id,
                server=server.slug,
                error_kind=type(error).__name__,
                reason=error_text(error),
            )
            return None

    async def call(
        self,
        server: McpServer,
        chat: Chat,
        tool: str,
        args: Mapping[str, object],
        show: Callable[[str], None],
    ) -> ToolOutput:
        """A refused credential is refreshed, and a forgotten session opened again, once: neither
        call has run. Raises McpFault."""
        connection = await self._connect(server, chat)
        try:
            return await connection.call(tool, args, show)
        except McpFault as fault:
            if fault.kind not in ("refused", "gone"):
                raise
            connection = await self._reconnect(connection, chat, fault)
        return await connection.call(tool, args, show)

    async def _reconnect(
        self, connection: "McpConnection", chat: Chat, fault: McpFault
    ) -> "McpConnection":
        self._drop(connection, chat)
        access: McpAccess | None = connection.access
        if fault.kind == "refused":
            access = await self._directory.refused(access.server, chat, access)
        if access is None or access.problem:
            reason = "" if access is None else f" {access.problem}"
            raise McpFault("refused", f"{fault.message}{reason} The user must connect it again.")
        return await self._opened(access, chat)

    async def _connect(self, server: McpServer, chat: Chat) -> "McpConnection":
        access = await self._directory.access(server, chat)
        if access.problem:
            raise McpFault("refused", access.problem)
        found = self._connections.get((chat.id, server.id))
        if found is not None and not found.is_retired:
            if _subject(found.access) == _subject(access):
                await asyncio.shield(found.ready)
                found.last_used_s = self._env.clock.monotonic()
                return found
            found.retire()
        self._check_failures(access, chat)
        return await self._opened(access, chat)

    async def _opened(self, access: McpAccess, chat: Chat) -> "McpConnection":
        connection = await self._start(access, chat)
        try:
            await asyncio.shield(connection.ready)
        except McpFault as fault:
            if fault.kind != "refused":
                raise
        else:
            return connection
        renewed = await self._directory.refused(access.server, chat, access)
        if renewed is None or renewed.problem or _subject(renewed) == _subject(access):
            raise McpFault("refused", f"{access.server.slug} refused the credential.")
        connection = await self._start(renewed, chat)
        await asyncio.shield(connection.ready)
        return connection

    async def _start(self, access: McpAccess, chat: Chat) -> "McpConnection":
        # In a thread: the import takes most of a second, once.
        module = await asyncio.to_thread(load_sdk)
        if self._group is None:
            raise McpFault("unreachable", "This process is stopping.")
        self._make_place()
        connection: McpConnection = module.McpConnection(
            access, self._policy, self._limits, self._env
        )
        self._connections[chat.id, access.server.id] = connection
        self._group.create_task(
            self._own(connection, chat), name=f"mcp {access.server.slug} {chat.id}"
        )
        return connection

    async def _own(self, connection: "McpConnection", chat: Chat) -> None:
        try:
            await connection.run()
        finally:
            self._drop(connection, chat)
            self._remember(connection, chat)

    def _drop(self, connection: "McpConnection", chat: Chat) -> None:
        connection.retire()
        key = (chat.id, connection.access.server.id)
        if self._connections.get(key) is connection:
            del self._connections[key]

    # Failures

    def _remember(self, connection: "McpConnection", chat: Chat) -> None:
        key = (chat.owner_id, connection.access.server.id)
        ready = connection.ready
        fault = ready.exception() if ready.done() and not ready.cancelled() else None
        if not isinstance(fault, McpFault) or self._group is None:
            self._failures.pop(key, None)
            return
        former = self._failures.pop(key, None)
        failures = 1 if former is None else former.failures + 1
        delay_s = doubled_s(failures, first_s=MCP_FIRST_RETRY_S, max_s=MCP_MAX_RETRY_S)
        self._failures[key] = _Failure(
            subject=_subject(connection.access),
            failures=failures,
            retry_at_s=self._env.clock.monotonic() + spread(delay_s, self._env.jitter()),
            reason=fault.message,
        )
        while len(self._failures) > MAX_REMEMBERED_FAILURES:
            del self._failures[next(iter(self._failures))]
        self._env.emit(
            "mcp_server_failed",
            chat_id=chat.id,
            server=connection.access.server.slug,
            error_kind=fault.kind,
            failures=failures,
            reason=fault.message,
        )

    def forget_failures(self) -> None:
        """All servers are tried again at the next step."""
        self._failures.clear()

    def _check_failures(self, access: McpAccess, chat: Chat) -> None:
        failed = self._failures.get((chat.owner_id, access.server.id))
        if failed is None or failed.subject != _subject(access):
            return
        if self._env.clock.monotonic() < failed.retry_at_s:
            raise McpFault("unreachable", failed.reason)

    # Bounds

    def _make_place(self) -> None:
        while len(self._connections) >= self._max_connections:
            idle = [key for key, each in self._connections.items() if each.is_idle]
            if not idle:
                raise McpFault("busy", "Too many MCP connections are in use. Call again later.")
            oldest = min(idle, key=lambda key: self._connections[key].last_used_s)
            self._connections.pop(oldest).retire()

    def _retire_idle(self) -> None:
        before = self._env.clock.monotonic() - MCP_IDLE_S
        for connection in list(self._connections.values()):
            if connection.is_idle and connection.last_used_s < before:
                connection.retire()


def load_sdk() -> Any:
    """The module with `McpConnection`, and what the SDK would import at its first call."""
    import_module("jsonschema.validators")
    import_module("referencing")
    return import_module("chatd.mcp.connection")


def _subject(access: McpAccess) -> tuple[int, str]:
    return access.server.version, access.credential_version
