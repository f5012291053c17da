"""JSON-RPC on standard input and output, in both directions: an editor asks, and is asked.

Standard output carries messages of the protocol only.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from chatd.cli.mcp_stdio import InputLines, as_object, write_line

Json = dict[str, Any]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
AUTH_REQUIRED: Final = -32000
RESOURCE_NOT_FOUND: Final = -32002
MAX_OPEN_REQUESTS: Final = 64


class RpcError(Exception):
    """An error that the other side is told, or has told."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Handler(Protocol):
    async def answer(self, method: str, params: Json) -> Json:
        """Raises RpcError."""
        ...

    async def hear(self, method: str, params: Json) -> None:
        """A notification. Does not raise."""
        ...


class Peer:
    def __init__(self, write: Callable[[bytes], None] = write_line) -> None:
        self._write_line = write
        self._writing = asyncio.Lock()
        self._open: set[asyncio.Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Json]] = {}
        self._last_id = 0

    async def run(self, lines: InputLines, handler: Handler) -> None:
        """Until the input ends."""
        async with asyncio.TaskGroup() as group:
            while (line := await lines.next()) is not None:
                await self._take(line, handler, group)
            for task in self._open:
                task.cancel()
        for waiting in self._asked.values():
            waiting.cancel()

    async def notify(self, method: str, params: Json) -> None:
        await self._write({"jsonrpc": "2.0", "method": method, "params": params})

    async def request(self, method: str, params: Json) -> Json:
        """Raises RpcError."""
        self._last_id += 1
        number = self._last_id
        answered: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        try:
            await self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return await answered
        finally:
            del self._asked[number]

    async def _take(self, line: bytes, handler: Handler, group: asyncio.TaskGroup) -> None:
        if not line.strip():
            return
        try:
            message = msgspec.json.decode(line, type=Json)
        except (msgspec.MsgspecError, RecursionError):
            error = RpcError(PARSE_ERROR, "A line must be one JSON-RPC message of at most 4 MiB.")
            await self._refuse(None, error)
            return
        method, number = message.get("method"), message.get("id")
        params = as_object(message.get("params"))
        if not isinstance(method, str):
            self._on_answer(number, message)
        elif "id" not in message:
            await handler.hear(method, params)
        elif len(self._open) >= MAX_OPEN_REQUESTS:
            text = f"There are {MAX_OPEN_REQUESTS} open requests. Wait for one."
            await self._refuse(number, RpcError(INVALID_REQUEST, text))
        else:
            task = group.create_task(self._serve(number, handler.answer(method, params)))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    def _on_answer(self, number: object, message: Json) -> None:
        answered = self._asked.get(number) if isinstance(number, int) else None
        if answered is None or answered.done():
            return
        if "error" in message:
            error = as_object(message["error"])
            code, text = error.get("code"), error.get("message")
            answered.set_exception(
                RpcError(code if isinstance(code, int) else INTERNAL_ERROR, str(text))
            )
        else:
            answered.set_result(as_object(message.get("result")))

    async def _serve(self, number: object, answer: Awaitable[Json]) -> None:
        try:
            result = await answer
        except RpcError as error:
            await self._refuse(number, error)
            return
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:  # such as a path that the system refuses
            await self._refuse(number, RpcError(INTERNAL_ERROR, str(error)))
            return
        await self._write({"jsonrpc": "2.0", "id": number, "result": result})

    async def _refuse(self, number: object, error: RpcError) -> None:
        body = {"code": error.code, "message": error.message}
        await self._write({"jsonrpc": "2.0", "id": number, "error": body})

    async def _write(self, message: Json) -> None:
        line = msgspec.json.encode(message) + b"\n"
        async with self._writing:
            await asyncio.to_thread(self._write_line, line)
