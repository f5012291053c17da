"""The supervisor's socket: one request and one reply per connection, a line of JSON each.

Checks the caller's account by its socket credentials and bounds the size, time and number of
requests. A workspace has one sandbox; a build with a higher number replaces it, a lower one is
refused. Standard library only.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, cast

from chatd.workspaces.local.supervisor import disk_quota
from chatd.workspaces.local.supervisor.plan import PROTOCOL, SandboxOrder, decode_order, encode_json
from chatd.workspaces.local.supervisor.sandbox import Sandbox

# Orders saved for the supervisor that replaces this one after a crash.
#
# They are in anonymous memory and never on disk, because orders contain keys. The process that
# restarts the supervisor holds the memory open. There are two copies, so that a writer killed in
# the middle of a write leaves the previous orders intact.

NEVER_WRITTEN: Final = 0
WRITE_FAILED: Final = 3


class SavedOrders:
    """Lines without line ends. Created before the fork and used by both processes."""

    def __init__(self) -> None:
        self._copies = (os.memfd_create("orders"), os.memfd_create("orders"))
        self._selector = os.memfd_create("which")
        self._select(NEVER_WRITTEN)

    @property
    def is_started(self) -> bool:
        """Whether a supervisor has ever written orders."""
        return self._selected() != NEVER_WRITTEN

    def write(self, lines: Iterable[bytes]) -> None:
        """Replace all lines. A failed write leaves none: a stopped sandbox must not restart."""
        number = 2 if self._selected() == 1 else 1
        copy = self._copies[number - 1]
        data = memoryview(b"".join(line + b"\n" for line in lines))
        try:
            os.truncate(copy, 0)
            written = 0
            while written < len(data):
                written += os.pwrite(copy, data[written:], written)
        except OSError:
            number = WRITE_FAILED
        self._select(number)
        with contextlib.suppress(OSError):
            os.truncate(self._copies[0 if number == 2 else 1], 0)

    def read(self) -> list[bytes]:
        number = self._selected()
        if number not in (1, 2):
            return []
        copy = self._copies[number - 1]
        return os.pread(copy, os.fstat(copy).st_size, 0).splitlines()

    def _selected(self) -> int:
        return os.pread(self._selector, 1, 0)[0]

    def _select(self, number: int) -> None:
        os.pwrite(self._selector, bytes([number]), 0)  # One byte: atomic.


MAX_REQUEST_BYTES: Final = 512 * 1024
MAX_CONNECTIONS: Final = 64
WORKSPACE_LOCKS: Final = 64
REQUEST_TIMEOUT_S: Final = 10.0
SANDBOX_READY_TIMEOUT_S: Final = 30.0


class ControlRefused(Exception):
    """The server acts on `code`; the text is for the operator."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class ControlServer:
    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        saved: SavedOrders,
        *,
        processes_dir: Path,
        log_event: Callable[[str], None],
    ) -> None:
        self.closing = asyncio.Event()
        self.request_count = 0
        self._tasks = tasks
        self._saved = saved
        self._orders: dict[str, bytes] = {}
        self._processes_dir = processes_dir
        self._log_event = log_event
        self._sandboxes: dict[str, Sandbox] = {}
        # A fixed number, shared by hash: one lock per name would never be freed.
        self._locks = [asyncio.Lock() for _ in range(WORKSPACE_LOCKS)]
        self._connections = 0

    @property
    def is_idle(self) -> bool:
        return not self._sandboxes and not self._connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. A bad or slow client affects only its own connection."""
        self.request_count += 1
        self._connections += 1
        try:
            reply = await self._reply(reader, writer)
            writer.write(json.dumps({"protocol": PROTOCOL, **reply}).encode() + b"\n")
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await writer.drain()
        except (OSError, TimeoutError):
            pass
        finally:
            self._connections -= 1
            writer.close()

    def resume(self) -> None:
        """Start the sandboxes that a killed supervisor was running."""
        for line in self._saved.read():
            order = decode_order(json.loads(line))
            self._orders[order.workspace] = line
            self._open(order)
        self._save()

    async def close(self) -> None:
        self.closing.set()
        self._orders.clear()
        self._save()
        for sandbox in list(self._sandboxes.values()):
            await sandbox.stop()

    async def _reply(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> dict[str, object]:
        try:
            _check_caller(writer.get_extra_info("socket"))
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                line = await reader.readline()
            if self._connections > MAX_CONNECTIONS:
                raise ControlRefused("busy", "too many requests at once")
            return {"ok": True, **await self._run(_decode(line))}
        except ControlRefused as refusal:
            return {"ok": False, "code": refusal.code, "error": str(refusal)}
        except (KeyError, TypeError, ValueError) as error:
            return {"ok": False, "code": "bad_question", "error": repr(error)}

    async def _run(self, request: dict[str, Any]) -> dict[str, object]:
        if request.get("protocol") != PROTOCOL:
            raise ControlRefused("protocol", f"this supervisor speaks version {PROTOCOL}")
        match request["op"]:
            case "hello":
                return {"pid": os.getpid(), "workspaces": len(self._sandboxes)}
            case "list":
                return {"workspaces": {name: _status(it) for name, it in self._sandboxes.items()}}
            case "inspect":
                found = self._sandboxes.get(str(request["workspace"]))
                return {"found": found is not None, **(_status(found) if found else {})}
            case "start":
                return await self._start(decode_order(request["order"]))
            case "stop":
                return await self._stop(str(request["workspace"]), int(request["build"]))
            case "mentioned":
                orders = b"\n".join(self._orders.values())
                words = [str(word) for word in request["words"]]
                return {"words": [word for word in words if word.encode() in orders]}
            case "shutdown":
                self.closing.set()
                return {}
            case other:
                raise ControlRefused("bad_question", f"there is no operation {other!r}")

    async def _start(self, order: SandboxOrder) -> dict[str, object]:
        if not order.workspace or "/" in order.workspace or order.workspace.startswith("."):
            raise ControlRefused("bad_question", "the workspace's name must be a plain file name")
        async with self._lock(order.workspace):
            sandbox = self._sandboxes.get(order.workspace)
            if sandbox is not None:
                _check_not_stale(sandbox, order.build)
                if sandbox.order.build < order.build:
                    await self._end(sandbox)
                    sandbox = None
            if self.closing.is_set():
                raise ControlRefused("closing", "the supervisor is shutting down")
            if sandbox is None:
                sandbox = self._open(order)
                self._orders[order.workspace] = json.dumps(encode_json(order)).encode()
                self._save()
        ready = await sandbox.wait_ready(SANDBOX_READY_TIMEOUT_S)
        return {"ready": ready, "log": sandbox.log.tail(), **_status(sandbox)}

    def _open(self, order: SandboxOrder) -> Sandbox:
        sandbox = Sandbox(order, processes_dir=self._processes_dir, log_event=self._log_event)
        self._sandboxes[order.workspace] = sandbox
        self._tasks.create_task(sandbox.run(), name=f"sandbox {order.workspace}")
        if order.disk_bytes:
            quota = disk_quota.enforce_limit(sandbox)
            self._tasks.create_task(quota, name=f"disk of {order.workspace}")
        return sandbox

    async def _stop(self, workspace: str, build: int) -> dict[str, object]:
        async with self._lock(workspace):
            sandbox = self._sandboxes.get(workspace)
            if sandbox is not None:
                _check_not_stale(sandbox, build)
                await self._end(sandbox)
        return {"stopped": sandbox is not None}

    def _lock(self, workspace: str) -> asyncio.Lock:
        return self._locks[zlib.crc32(workspace.encode()) % WORKSPACE_LOCKS]

    async def _end(self, sandbox: Sandbox) -> None:
        """Remove the order first: if we are killed here, the sandbox must not restart."""
        self._orders.pop(sandbox.order.workspace, None)
        self._save()
        await sandbox.stop()
        self._sandboxes.pop(sandbox.order.workspace, None)

    def _save(self) -> None:
        self._saved.write(self._orders.values())


def _check_not_stale(sandbox: Sandbox, build: int) -> None:
    if sandbox.order.build > build:
        raise ControlRefused("stale", f"build {sandbox.order.build} has replaced it")


def _status(sandbox: Sandbox) -> dict[str, object]:
    state = sandbox.state
    return {
        "build": sandbox.order.build,
        "state": state.phase,
        "starts": state.starts,
        "pid": state.pid,
        "exit_code": state.exit_code,
        "detail": state.detail,
        "controllers": state.controllers,
    }


def _check_caller(connection: socket.socket) -> None:
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    if uid != os.geteuid():
        raise ControlRefused("forbidden", "another account")


def _decode(line: bytes) -> dict[str, Any]:
    request = json.loads(line)
    if not isinstance(request, dict):
        raise TypeError("a request is an object")
    return cast("dict[str, Any]", request)
