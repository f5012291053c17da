"""The methods that are answered at once, and the shape of results in each version."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from chatd.api.auth import ApiCaller
from chatd.api.mcp.messages import METHOD_NOT_FOUND, Json, ProtocolError, RpcMessage
from chatd.api.mcp.toolset import ToolReply, ToolSet
from chatd.api.mcp.versions import SERVER_INFO_KEY, STATELESS_VERSIONS, VERSIONS, negotiate_version

_CAPABILITIES: Final[Json] = {"tools": {}}
_NOT_CACHED: Final[Json] = {"ttlMs": 0, "cacheScope": "private"}
"""The list of tools depends on the caller's rights, which can change."""


class McpMethods:
    def __init__(self, tools: ToolSet, server_version: str) -> None:
        self._tools = tools
        self._info: Final[Json] = {"name": "chatd", "title": "chatd", "version": server_version}
        self._handshake: Mapping[str, Callable[[RpcMessage, ApiCaller], Json]] = {
            "initialize": self._initialize,
            "ping": lambda _message, _caller: {},
            "tools/list": self._list_tools,
        }
        self._stateless: Mapping[str, Callable[[RpcMessage, ApiCaller], Json]] = {
            "server/discover": self._discover,
            "tools/list": self._list_tools,
        }

    def answer(self, message: RpcMessage, version: str, caller: ApiCaller) -> Json:
        """Raises ProtocolError."""
        is_stateless = version in STATELESS_VERSIONS
        method = (self._stateless if is_stateless else self._handshake).get(message.method)
        if method is None:
            raise ProtocolError(
                METHOD_NOT_FOUND,
                "This server has no such method; it has tools.",
                data=message.method,
            )
        result = method(message, caller)
        return self.complete(result | _NOT_CACHED, version) if is_stateless else result

    def complete(self, result: Json, version: str) -> Json:
        """The result of a method, with what the version demands of every result."""
        if version not in STATELESS_VERSIONS:
            return result
        return {**result, "resultType": "complete", "_meta": {SERVER_INFO_KEY: self._info}}

    def tool_result(self, reply: ToolReply, version: str) -> Json:
        result: Json = {"content": list(reply.content), "isError": reply.is_error}
        if reply.structured is not UNSET:
            result["structuredContent"] = reply.structured
        return self.complete(result, version)

    def _initialize(self, message: RpcMessage, caller: ApiCaller) -> Json:
        del caller
        return {
            "protocolVersion": negotiate_version(message.params.get("protocolVersion")),
            "capabilities": _CAPABILITIES,
            "serverInfo": self._info,
            "instructions": self._tools.instructions,
        }

    def _discover(self, message: RpcMessage, caller: ApiCaller) -> Json:
        del message, caller
        return {
            "supportedVersions": list(VERSIONS),
            "capabilities": _CAPABILITIES,
            "instructions": self._tools.instructions,
        }

    def _list_tools(self, message: RpcMessage, caller: ApiCaller) -> Json:
        del message
        return {"tools": msgspec.to_builtins(self._tools.listed(caller))}
