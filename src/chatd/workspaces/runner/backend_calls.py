"""Calls of the server to the backends of this runner.

A build belongs to the runner and not to the connection that asked for it: it goes on when the
connection breaks, and a call that is repeated for the same build joins it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.errors import ChatdError
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import AgentId, LogLevel
from chatd.workspaces.build_backend import Backend, BuildContext, BuildFailed
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from chatd.workspaces.tunnels.wire import (
    INVENTORY_PAGE,
    BackendCall,
    CallError,
    CallLog,
    CallReply,
)

MAX_KEPT_LINES: Final = 500
"""How many log lines of a build are kept while no server is connected."""
MAX_LINE_CHARS: Final = 4000
BUILD_METHODS: Final = ("start", "stop", "delete")

Send = Callable[[CallReply | CallLog], Awaitable[None]]
"""Sends to the server of the present connection. Raises ConnectionError."""


class RunnerBackend(Backend, Protocol):
    """A backend of a runner."""

    def is_agent_socket(self, path: str) -> bool:
        """Whether the server may be connected to this socket."""
        ...

    async def running(self) -> int:
        """How many workspaces run."""
        ...


class _Build:
    """A build that runs here, whichever connection asked for it. Starts it."""

    def __init__(self, backend: RunnerBackend, call: BackendCall) -> None:
        if call.workspace is None or call.build is None or call.spec is None:
            raise BuildFailed("The server's call has no build.")
        try:
            keys = {
                AgentId(UUID(name)): bytes.fromhex(key) for name, key in call.agent_keys.items()
            }
        except ValueError:
            raise BuildFailed("The server's call has keys that cannot be read.") from None
        self.context = BuildContext(
            workspace=call.workspace,
            build=call.build,
            spec=call.spec,
            params=call.params,
            log=self._log,
            agent_key=keys.__getitem__,
            credentials=call.credentials,
        )
        self._lines: deque[tuple[str, LogLevel, str]] = deque(maxlen=MAX_KEPT_LINES)
        self._has_lines = asyncio.Event()
        self.work = asyncio.get_running_loop().create_task(
            _run_build(backend, call.method, self.context), name=f"build {call.build.id}"
        )

    def _log(self, stage: str, level: LogLevel, text: str) -> None:
        self._lines.append((stage[:100], level, text[:MAX_LINE_CHARS]))
        self._has_lines.set()

    async def pass_lines(self, call: int, send: Send) -> None:
        while True:
            await self._has_lines.wait()
            self._has_lines.clear()
            await self.flush_lines(call, send)

    async def flush_lines(self, call: int, send: Send) -> None:
        while self._lines:
            stage, level, text = self._lines.popleft()
            await send(CallLog(call=call, stage=stage, level=level, text=text))


class BackendCalls:
    """`networks` has the proxies of all backends here. `only_socket` is that of the one agent of a
    pod, which has no backend."""

    def __init__(
        self,
        backends: Mapping[str, RunnerBackend],
        networks: WorkspaceNetworks | None = None,
        *,
        only_socket: str | None = None,
    ) -> None:
        self._backends = backends
        self._networks = networks
        self._only_socket = only_socket
        self._builds: dict[tuple[WorkspaceId | None, int | None, str], _Build] = {}

    async def running(self) -> int:
        """The number for all backends that can tell."""
        total = 0
        for backend in self._backends.values():
            try:
                total += await backend.running()
            except (ChatdError, OSError):
                continue
        return total

    def agent_socket(self, path: str) -> str | None:
        """The socket to connect to if the server names this one; None if it is not an agent's."""
        if self._only_socket is not None:
            return self._only_socket
        is_known = any(backend.is_agent_socket(path) for backend in self._backends.values())
        return path if is_known else None

    async def answer(self, call: BackendCall, send: Send, cancelled: asyncio.Event) -> None:
        """Run the call and send its reply. Raises ConnectionError if the connection breaks."""
        try:
            backend = self._backends.get(call.backend)
            if call.method == "grant":
                await send(replace(self._grant(call), call=call.call))
                return
            if backend is None:
                raise BuildFailed(f"This runner has no backend of the kind {call.backend!r}.")
            if call.method in BUILD_METHODS:
                reply = await self._build(backend, call, send, cancelled)
            else:
                reply = await self._ask_contained(backend, call)
        except ChatdError as error:
            reply = _error_reply(error)
        await send(replace(reply, call=call.call))

    def _grant(self, call: BackendCall) -> CallReply:
        if self._networks is None:
            return _error_reply(BuildFailed("This runner has no proxies."))
        for grant in call.grants:
            with suppress(ValueError):
                workspace_id = WorkspaceId(UUID(grant.workspace_id))
                self._networks.grant(workspace_id, grant.credentials)
        return CallReply(call=0)

    async def close(self) -> None:
        """Cancel the builds that run; processes in workspaces go on."""
        works = [build.work for build in self._builds.values()]
        for build in self._builds.values():
            build.context.cancelled.set()
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)

    async def _ask_contained(self, backend: RunnerBackend, call: BackendCall) -> CallReply:
        try:
            return await self._ask(backend, call)
        except Exception as error:  # noqa: BLE001 - one call must not end the runner
            return _error_reply(error)

    async def _ask(self, backend: RunnerBackend, call: BackendCall) -> CallReply:
        match call.method:
            case "validate" if call.spec is not None:
                problems = await backend.validate(call.spec, call.params)
                return CallReply(call=0, problems=tuple(problems)[:100])
            case "inspect" if call.workspace is not None:
                return CallReply(call=0, state=await backend.inspect(call.workspace))
            case "workspaces":
                found = sorted(str(each) for each in await backend.workspaces())
                page = [each for each in found if each > call.workspace_id][:INVENTORY_PAGE]
                return CallReply(call=0, workspaces=tuple(page))
            case "remove":
                try:
                    workspace_id = WorkspaceId(UUID(call.workspace_id))
                except ValueError:
                    raise BuildFailed("The workspace's id cannot be read.") from None
                await backend.remove(workspace_id)
                return CallReply(call=0)
            case _:
                raise BuildFailed(
                    f"This runner does not know the method {call.method!r}. Upgrade the runner."
                )

    async def _build(
        self, backend: RunnerBackend, call: BackendCall, send: Send, cancelled: asyncio.Event
    ) -> CallReply:
        workspace_id = None if call.workspace is None else call.workspace.id
        number = None if call.build is None else call.build.build_number
        key = (workspace_id, number, call.method)
        while (build := self._builds.get(key)) is not None and build.context.cancelled.is_set():
            # A server that gave it up has cancelled it: this one wants it again.
            await asyncio.wait({build.work})
        if build is None:
            build = self._builds[key] = _Build(backend, call)
            build.work.add_done_callback(lambda _: self._builds.pop(key, None))
        loop = asyncio.get_running_loop()
        passing = loop.create_task(build.pass_lines(call.call, send))
        cancelling = loop.create_task(_cancel_when(cancelled, build))
        try:
            # The build goes on if this call is given up because its connection broke.
            await asyncio.wait({build.work, passing}, return_when=asyncio.FIRST_COMPLETED)
            if not build.work.done():
                passing.result()  # raises ConnectionError
            await build.flush_lines(call.call, send)
            return build.work.result()
        finally:
            passing.cancel()
            cancelling.cancel()
            await asyncio.wait({passing, cancelling})


async def _run_build(backend: RunnerBackend, method: str, context: BuildContext) -> CallReply:
    try:
        match method:
            case "start":
                return CallReply(call=0, agents=tuple(await backend.start(context)))
            case "stop":
                await backend.stop(context)
            case _:
                await backend.delete(context)
        return CallReply(call=0)
    except asyncio.CancelledError:
        return CallReply(call=0, error=CallError(code="build_canceled", message=""))
    except Exception as error:  # noqa: BLE001 - one build must not end the runner
        return _error_reply(error)


def _error_reply(error: Exception) -> CallReply:
    if isinstance(error, ChatdError):
        failure = CallError(code=error.code, message=error.message[:MAX_LINE_CHARS])
    else:
        text = f"The runner failed with an unexpected error ({type(error).__name__})."
        failure = CallError(code="internal", message=text)
    return CallReply(call=0, error=failure)


async def _cancel_when(cancelled: asyncio.Event, build: _Build) -> None:
    await cancelled.wait()
    build.context.cancelled.set()
