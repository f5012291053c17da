"""An MCP server as a child process that speaks JSON lines on its standard streams."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from chatd.agent.mcp.json_rpc import (
    MAX_MESSAGE_BYTES,
    McpConnectionLost,
    McpTimeout,
    Object,
    decode,
    notification,
    reply_to,
    request,
    result_of,
    within,
)

CLOSE_GRACE_S = 2.0
LAST_ERROR_WAIT_S = 0.5
MAX_LAST_ERROR_BYTES = 500
# When memory is short, the kernel kills servers before the agent.
_DIE_FIRST = '{ echo 1000 >>/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"'


class StdioClient:
    """Open it with `start`. Its replies are read by a task until the process ends."""

    def __init__(self, process: asyncio.subprocess.Process, on_change: Callable[[], None]) -> None:
        self._process = process
        self._on_change = on_change
        self._waiting: dict[int, asyncio.Future[Object]] = {}
        self._last_id = 0
        self._end = ""
        self._last_error = b""
        self._error_reader = asyncio.ensure_future(self._read_errors())
        self._reader = asyncio.ensure_future(self._read())

    @staticmethod
    async def start(
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        workdir: str,
        on_change: Callable[[], None],
    ) -> StdioClient:
        """Raises OSError. The process has a session of its own, so that it ends with its
        children."""
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _DIE_FIRST, "sh", *argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            cwd=workdir,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        return StdioClient(process, on_change)

    @property
    def is_open(self) -> bool:
        return not self._end

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        """Raises McpServerError and McpConnectionLost. A request that is given up is cancelled on
        the server."""
        if self._end:
            raise McpConnectionLost(self._end, may_have_run=False)
        self._last_id += 1
        number = self._last_id
        reply: asyncio.Future[Object] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            await self._write(request(number, method, params))
            return result_of(await within(reply, timeout_s))
        except (McpTimeout, asyncio.CancelledError):
            self._send(notification("notifications/cancelled", {"requestId": number}))
            raise
        finally:
            self._waiting.pop(number, None)

    async def tell(self, method: str) -> None:
        await self._write(notification(method))

    async def close(self) -> None:
        """End of input first: well-behaved servers exit then. The group is killed after that."""
        self._stop("the server was closed")
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(McpTimeout):
            await within(self._process.wait(), CLOSE_GRACE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._reader.cancel()
        self._error_reader.cancel()

    async def _write(self, data: bytes) -> None:
        """To a server that has just ended nothing is written: the reader says so to all waits."""
        self._send(data)
        assert self._process.stdin is not None
        with suppress(ConnectionError, RuntimeError):
            await self._process.stdin.drain()

    def _send(self, data: bytes) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(data + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        reason = ""
        try:
            while line := await self._process.stdout.readline():
                self._take(line)
        except ValueError:
            reason = f"the server sent a line of more than {MAX_MESSAGE_BYTES} bytes"
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        except OSError:
            pass
        # A child of the server may hold the stream open.
        await asyncio.wait({self._error_reader}, timeout=LAST_ERROR_WAIT_S)
        self._stop(reason or self._explain_end())
        self._on_change()

    async def _read_errors(self) -> None:
        """Servers log here. Only the end is kept: it may say why a server has ended."""
        assert self._process.stderr is not None
        with suppress(OSError):
            while chunk := await self._process.stderr.read(64 << 10):
                self._last_error = (self._last_error + chunk)[-MAX_LAST_ERROR_BYTES:]

    def _explain_end(self) -> str:
        lines = self._last_error.decode("utf-8", "replace").strip().splitlines()
        return f"the server has ended: {lines[-1]}" if lines else "the server has ended"

    def _take(self, line: bytes) -> None:
        message = decode(line)
        if message is None:
            return  # some servers print other lines
        number, method = message.get("id"), message.get("method")
        if isinstance(method, str):
            if "id" in message:
                self._send(reply_to(message))
            elif method == "notifications/tools/list_changed":
                self._on_change()
            return
        reply = self._waiting.get(number) if isinstance(number, int) else None
        if reply is not None and not reply.done():
            reply.set_result(message)

    def _stop(self, reason: str) -> None:
        self._end = self._end or reason
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(McpConnectionLost(self._end))
