"""Names and public addresses for tests of the proxy, which lead to servers of the test."""

import asyncio
from collections.abc import Mapping, Sequence

from chatd.guarded_dial import Connection, resolve_host
from chatd.workspaces.network.network_proxy import Dialer

CLIENT_ADDRESS = "127.0.0.2"
"""From which the proxy of a test connects: a server on the same address would be its own host."""


class TestNetwork:
    """`names` maps a host to the addresses that each resolution returns, one after the other; the
    last one stays. `servers` maps a public address to a port of the test's loopback."""

    __test__ = False

    def __init__(
        self, names: Mapping[str, Sequence[Sequence[str]]], servers: Mapping[str, int]
    ) -> None:
        self.resolved: list[str] = []
        self.connected: list[tuple[str, int]] = []
        self.names = {host: list(replies) for host, replies in names.items()}
        self._servers = servers

    @property
    def dialer(self) -> Dialer:
        return Dialer(resolve=self._resolve, connect=self._connect)

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        replies = self.names.get(host)
        if replies is None:
            return await resolve_host(host, port)
        return replies.pop(0) if len(replies) > 1 else replies[0]

    async def _connect(self, address: str, port: int) -> Connection:
        self.connected.append((address, port))
        if address in self._servers:
            return await asyncio.open_connection(
                "127.0.0.1", self._servers[address], local_addr=(CLIENT_ADDRESS, 0)
            )
        return await asyncio.open_connection(address, port)
