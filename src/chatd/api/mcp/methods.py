"""The methods that are answered at once, and the shape of results in each version."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from chatd.api.mcp.messages import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Json,
    ProtocolError,
    RpcMessage,
)
from chatd.api.mcp.resources import Requester, ResourceSet
from chatd.api.mcp.toolset import ToolReply, ToolSet
from chatd.api.mcp.versions import SERVER_INFO_KEY, STATELESS_VERSIONS, VERSIONS, negotiate_version
from chatd.domain.errors import NotFound

RESOURCE_NOT_FOUND: Final = -32002
"""Up to 2025-11-25; later versions have INVALID_PARAMS for it."""

_CAPABILITIES: Final[Json] = {"tools": {}, "resources": {}}
_NOT_CACHED: Final[Json] = {"ttlMs": 0, "cacheScope": "private"}
"""What is listed depends on the caller's rights, which can change."""

Method = Callable[[RpcMessage, Requester], Awaitable[Json]]


class McpMethods:
    def __init__(self, tools: ToolSet, resources: ResourceSet, server_version: str) -> None:
        self._tools = tools
        self._resources = resources
        self._info: Final[Json] = {"name": "chatd", "title": "chatd", "version": server_version}
        both: Mapping[str, Method] = {
            "tools/list": self._list_tools,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
        }
        self._handshake = {**both, "initialize": self._initialize, "ping": self._ping}
        self._stateless = {**both, "server/discover": self._discover}

    async def answer(self, message: RpcMessage, version: str, by: Requester) -> Json:
        """Raises ProtocolError, ChatdError."""
        is_stateless = version in STATELESS_VERSIONS
        method = (self._stateless if is_stateless else self._handshake).get(message.method)
        if method is None:
            raise ProtocolError(
                METHOD_NOT_FOUND,
                "This server has no such method; it has tools and resources.",
                data=message.method,
            )
        try:
            result = await method(message, by)
        except NotFound as error:
            code = INVALID_PARAMS if is_stateless else RESOURCE_NOT_FOUND
            raise ProtocolError(code, error.message) from None
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

    async def _initialize(self, message: RpcMessage, by: Requester) -> Json:
        del by
        return {
            "protocolVersion": negotiate_version(message.params.get("protocolVersion")),
            "capabilities": _CAPABILITIES,
            "serverInfo": self._info,
            "instructions": self._tools.instructions,
        }

    async def _discover(self, message: RpcMessage, by: Requester) -> Json:
        del message, by
        return {
            "supportedVersions": list(VERSIONS),
            "capabilities": _CAPABILITIES,
            "instructions": self._tools.instructions,
        }

    async def _ping(self, message: RpcMessage, by: Requester) -> Json:
        del message, by
        return {}

    async def _list_tools(self, message: RpcMessage, by: Requester) -> Json:
        del message
        return {"tools": msgspec.to_builtins(self._tools.listed(by.caller))}

    async def _list_resources(self, message: RpcMessage, by: Requester) -> Json:
        page = await self._resources.list_page(by, _text(message, "cursor", optional=True))
        return msgspec.to_builtins(page)

    async def _list_templates(self, message: RpcMessage, by: Requester) -> Json:
        del message, by
        return {"resourceTemplates": msgspec.to_builtins(self._resources.templates)}

    async def _read_resource(self, message: RpcMessage, by: Requester) -> Json:
        uri = _text(message, "uri") or ""
        return {"contents": list(await self._resources.read(by, uri))}


def _text(message: RpcMessage, name: str, *, optional: bool = False) -> str | None:
    value = message.params.get(name)
    if isinstance(value, str) or (optional and value is None):
        return value
    raise ProtocolError(INVALID_PARAMS, f"params.{name} must be a text.")
