"""Which hosts MCP connections may reach, and how long they may take."""

from typing import Final

from msgspec import Struct

from chatd.guarded_dial import Resolve, resolve_host

CONNECT_TIMEOUT_S: Final = 10.0
"""For a connection to an MCP server, its handshake and the list of tools together."""
CALL_TIMEOUT_S: Final = 60.0
"""For one call of a tool of an MCP server."""


class McpLimits(Struct, frozen=True, kw_only=True):
    connect_s: float = CONNECT_TIMEOUT_S
    call_s: float = CALL_TIMEOUT_S


class DialPolicy(Struct, frozen=True, kw_only=True):
    """`private_hosts` may have private addresses, in lower case; `allow_private`: all may."""

    private_hosts: frozenset[str] = frozenset()
    allow_private: bool = False
    resolve: Resolve = resolve_host

    def allows_private(self, host: str) -> bool:
        return self.allow_private or host.lower() in self.private_hosts


DEFAULT_LIMITS: Final = McpLimits()
PUBLIC_HOSTS: Final = DialPolicy()
