"""The messages of MCP: requests, notifications and replies in JSON-RPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import TypeVar, cast

PROTOCOL_VERSION = "2025-06-18"
MAX_MESSAGE_BYTES = 16 << 20
METHOD_NOT_FOUND = -32601

Object = Mapping[str, object]
T = TypeVar("T")


class McpServerError(Exception):
    """The server replied with an error, or with something that is no reply."""


class McpConnectionLost(Exception):
    """The connection ended. `may_have_run`: a request was sent and not answered."""

    def __init__(self, message: str, *, may_have_run: bool = True) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run


class McpTimeout(McpConnectionLost):
    """The server did not answer in time."""


async def within(work: Awaitable[T], timeout_s: float) -> T:
    """Raises McpTimeout, and what the work raises."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            raise McpTimeout(f"the server did not answer within {timeout_s:g} s")
        return task.result()
    finally:
        task.cancel()


def request(number: int, method: str, params: Object) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notification(method: str, params: Object | None = None) -> bytes:
    return _encode(
        {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}
    )


def reply_to(message: Object) -> bytes:
    """To a request of the server: a ping is answered, all else is not supported."""
    reply: dict[str, object] = {"jsonrpc": "2.0", "id": message.get("id")}
    if message.get("method") == "ping":
        reply["result"] = {}
    else:
        reply["error"] = {"code": METHOD_NOT_FOUND, "message": "not supported by this client"}
    return _encode(reply)


def initialize_params() -> Object:
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "chatd", "version": "1"},
    }


def decode(data: bytes | str) -> Object | None:
    """One message; None if it is none."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("Object", value) if isinstance(value, dict) else None


def result_of(message: Object) -> Object:
    """Raises McpServerError."""
    error = message.get("error")
    if isinstance(error, dict):
        raise McpServerError(str(cast("Object", error).get("message"))[:1000])
    result = message.get("result")
    if not isinstance(result, dict):
        raise McpServerError("the reply has no result")
    return cast("Object", result)


def _encode(value: Object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
