"""The supervisor's door: one question and one answer to a connection, a line of JSON each.

Owns who may ask (the account that runs it, by the kernel's word), how much and how long, and what
each question does. A workspace has one sandbox; a build with a higher number replaces it, a lower
one is refused. Standard library only.
"""

import asyncio
import json
import os
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from chatd.workspaces.local import disk
from chatd.workspaces.local.plan import PROTOCOL, Order, decode_order, encode
from chatd.workspaces.local.remembering import Memory
from chatd.workspaces.local.sandbox import Sandbox

MAX_LINE: Final = 512 * 1024
MAX_ASKING: Final = 64
LOCKS: Final = 64
ASK_S: Final = 10.0
READY_S: Final = 30.0


class Refused(Exception):
    """`code` is for the server, the text for whoever reads its log."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Control:
    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        memory: Memory,
        *,
        births: Path,
        say: Callable[[str], None],
    ) -> None:
        self.closing = asyncio.Event()
        self.asked = 0
        """How many questions there were, for whoever wants to know whether it is quiet."""
        self._tasks = tasks
        self._memory = memory
        self._remembered: dict[str, bytes] = {}
        self._births = births
        self._say = say
        self._sandboxes: dict[str, Sandbox] = {}
        # Few and shared: a lock per name would be one more thing that only ever grows.
        self._locks = [asyncio.Lock() for _ in range(LOCKS)]
        self._asking = 0

    @property
    def idle(self) -> bool:
        return not self._sandboxes and not self._asking

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """For one connection. Whoever asks badly or slowly harms only itself."""
        self.asked += 1
        self._asking += 1
        try:
            reply = await self._reply(reader, writer)
            writer.write(json.dumps({"protocol": PROTOCOL, **reply}).encode() + b"\n")
            async with asyncio.timeout(ASK_S):
                await writer.drain()
        except (OSError, TimeoutError):
            pass
        finally:
            self._asking -= 1
            writer.close()

    def resume(self) -> None:
        """Keep what the one before us kept, if it was killed."""
        for line in self._memory.read():
            order = decode_order(json.loads(line))
            self._remembered[order.workspace] = line
            self._open(order)
        self._remember()

    async def close(self) -> None:
        self.closing.set()
        self._remembered.clear()
        self._remember()
        for sandbox in list(self._sandboxes.values()):
            await sandbox.stop()

    async def _reply(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> dict[str, object]:
        try:
            _check_caller(writer.get_extra_info("socket"))
            async with asyncio.timeout(ASK_S):
                line = await reader.readline()
            if self._asking > MAX_ASKING:
                raise Refused("busy", "too many questions at once")
            return {"ok": True, **await self._do(_decode(line))}
        except Refused as refusal:
            return {"ok": False, "code": refusal.code, "error": str(refusal)}
        except (KeyError, TypeError, ValueError) as error:
            return {"ok": False, "code": "bad_question", "error": repr(error)}

    async def _do(self, question: dict[str, Any]) -> dict[str, object]:
        if question.get("protocol") != PROTOCOL:
            raise Refused("protocol", f"this supervisor speaks version {PROTOCOL}")
        match question["op"]:
            case "hello":
                return {"pid": os.getpid(), "workspaces": len(self._sandboxes)}
            case "list":
                return {"workspaces": {name: _told(it) for name, it in self._sandboxes.items()}}
            case "inspect":
                found = self._sandboxes.get(str(question["workspace"]))
                return {"found": found is not None, **(_told(found) if found else {})}
            case "start":
                return await self._start(decode_order(question["order"]))
            case "stop":
                return await self._stop(str(question["workspace"]), int(question["build"]))
            case "mentioned":
                kept = b"\n".join(self._remembered.values())
                words = [str(word) for word in question["words"]]
                return {"words": [word for word in words if word.encode() in kept]}
            case "shutdown":
                self.closing.set()
                return {}
            case other:
                raise Refused("bad_question", f"there is no {other!r}")

    async def _start(self, order: Order) -> dict[str, object]:
        if not order.workspace or "/" in order.workspace or order.workspace.startswith("."):
            raise Refused("bad_question", "a workspace has a plain name")
        async with self._lock(order.workspace):
            sandbox = self._sandboxes.get(order.workspace)
            if sandbox is not None and sandbox.order.build > order.build:
                raise Refused("stale", f"build {sandbox.order.build} has taken its place")
            if sandbox is not None and sandbox.order.build < order.build:
                await self._end(sandbox)
                sandbox = None
            if self.closing.is_set():
                raise Refused("closing", "the supervisor ends")
            if sandbox is None:
                sandbox = self._open(order)
                self._remembered[order.workspace] = json.dumps(encode(order)).encode()
                self._remember()
        ready = await sandbox.started(READY_S)
        return {"ready": ready, "log": sandbox.log.tail(), **_told(sandbox)}

    def _open(self, order: Order) -> Sandbox:
        sandbox = Sandbox(order, births=self._births, say=self._say)
        self._sandboxes[order.workspace] = sandbox
        self._tasks.create_task(sandbox.keep(), name=f"sandbox {order.workspace}")
        if order.disk_bytes:
            self._tasks.create_task(disk.watch(sandbox), name=f"disk of {order.workspace}")
        return sandbox

    async def _stop(self, workspace: str, build: int) -> dict[str, object]:
        async with self._lock(workspace):
            sandbox = self._sandboxes.get(workspace)
            if sandbox is not None:
                if sandbox.order.build > build:
                    raise Refused("stale", f"build {sandbox.order.build} has taken its place")
                await self._end(sandbox)
        return {"stopped": sandbox is not None}

    def _lock(self, workspace: str) -> asyncio.Lock:
        return self._locks[zlib.crc32(workspace.encode()) % LOCKS]

    async def _end(self, sandbox: Sandbox) -> None:
        """Forgotten first: if we are killed in the middle, it shall not come back."""
        self._remembered.pop(sandbox.order.workspace, None)
        self._remember()
        await sandbox.stop()
        self._sandboxes.pop(sandbox.order.workspace, None)

    def _remember(self) -> None:
        self._memory.write(self._remembered.values())


def _told(sandbox: Sandbox) -> dict[str, object]:
    status = sandbox.status
    return {
        "build": sandbox.order.build,
        "state": status.state,
        "starts": status.starts,
        "pid": status.pid,
        "exit_code": status.exit_code,
        "detail": status.detail,
    }


def _check_caller(connection: socket.socket) -> None:
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    if uid != os.geteuid():
        raise Refused("forbidden", "another account")


def _decode(line: bytes) -> dict[str, Any]:
    question = json.loads(line)
    if not isinstance(question, dict):
        raise TypeError("a question is an object")
    return cast("dict[str, Any]", question)
