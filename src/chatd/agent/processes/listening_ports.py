"""The TCP ports on which processes of the workspace listen, and connections to them.

A workspace may share the network of its machine, where other programs listen too, such as a
database or chatd itself. So a port counts only if a process that the agent can see has its socket:
a process of the workspace, and not the agent.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from chatd.agent.errors import AgentError
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply
from chatd.agent.threads import ThreadRunner

PORT_API_PREFIX = "/api/v0/ports"
MAX_LISTED_PORTS = 100
MAX_SOCKET_ROWS = 20_000
MAX_SCANNED_PROCESSES = 4096
MAX_SCANNED_DESCRIPTORS = 4096
"""Limit for one process."""
MAX_PORT_CONNECTIONS = 64
"""Limit for connections at once, so that the others of the agent are left to chats."""
PORT_CONNECT_TIMEOUT_S = 5.0
PORTS_CACHE_S = 2.0
"""A page loads many files at once: the ports are read once for all of them."""
MAX_COMMAND_CHARS = 200
_LISTENING = "0A"
_V4_ANY, _V4_LOOPBACK = "00000000", "7F"
_V6_ANY, _V6_LOOPBACK = "0" * 32, "0" * 24 + "01000000"
_V4_IN_V6 = "0000000000000000FFFF0000"


@dataclass(frozen=True)
class ListeningPort:
    """`host` is the loopback address at which it is reached."""

    port: int
    host: str
    pid: int
    command: str

    def facts(self) -> dict[str, object]:
        return {"port": self.port, "pid": self.pid, "command": self.command}


def list_ports(proc: str = "/proc") -> list[ListeningPort]:
    """Sorted by number. Of several sockets of a port, 127.0.0.1 comes first, then version 4."""
    sockets = {inode: (port, host) for port, host, inode in _sockets(proc)}
    found: dict[int, ListeningPort] = {}
    for pid, inode in _descriptors(proc) if sockets else ():
        if (known := sockets.get(inode)) is None:
            continue
        port, host = known
        if port not in found or _preference(host) < _preference(found[port].host):
            found[port] = ListeningPort(port, host, pid, _command(proc, pid))
    return [found[port] for port in sorted(found)][:MAX_LISTED_PORTS]


def _preference(host: str) -> int:
    return {"127.0.0.1": 0, "::1": 2}.get(host, 1)


def _sockets(proc: str) -> Iterator[tuple[int, str, str]]:
    """Port, address and inode of every listening socket that the loopback reaches."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{proc}/self/net/{name}", encoding="ascii", errors="replace") as table:
                rows = list(islice(table, 1, MAX_SOCKET_ROWS))
        except OSError:
            continue  # no such address family here
        for row in rows:
            words = row.split()
            if len(words) < 10 or words[3] != _LISTENING:
                continue
            address, _, port = words[1].partition(":")
            if (host := loopback_host(address)) is not None:
                yield int(port, 16), host, words[9]


def loopback_host(address: str) -> str | None:
    """Where a socket bound to this address, as the kernel prints it, is reached on the loopback.
    None: nowhere."""
    mapped = address.removeprefix(_V4_IN_V6) if len(address) == 32 else address
    if len(mapped) == 8:  # the bytes of an address of version 4, the last one first
        if mapped == _V4_ANY:
            return "127.0.0.1"
        # Exactly there: at 127.0.0.1 another program of the machine may have the same port.
        own = ".".join(str(byte) for byte in reversed(bytes.fromhex(mapped)))
        return own if mapped.endswith(_V4_LOOPBACK) else None
    # A socket of both families takes connections of version 4; one of version 6 only does not.
    return "::1" if address in (_V6_ANY, _V6_LOOPBACK) else None


def _descriptors(proc: str) -> Iterator[tuple[int, str]]:
    """Every process that the agent can look into, with the inodes of its sockets."""
    try:
        names = [name for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return
    for name in names[:MAX_SCANNED_PROCESSES]:
        place = f"{proc}/{name}/fd"
        try:
            numbers = os.listdir(place)[:MAX_SCANNED_DESCRIPTORS]
        except OSError:
            continue  # ended in between, or of another account
        for number in numbers:
            try:
                target = os.readlink(f"{place}/{number}")
            except OSError:
                continue
            if target.startswith("socket:["):
                yield int(name), target[len("socket:[") : -1]


def _command(proc: str, pid: int) -> str:
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            words = file.read(4 * MAX_COMMAND_CHARS)
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace").strip()[:MAX_COMMAND_CHARS]


class PortRoutes:
    """`hidden` ports are the agent's own."""

    def __init__(
        self,
        threads: ThreadRunner,
        *,
        hidden: Collection[int] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads = threads
        self._hidden = frozenset(hidden)
        self._now = now
        self._known: list[ListeningPort] = []
        self._read_at = float("-inf")
        self._opened: set[asyncio.StreamWriter] = set()

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", f"{PORT_API_PREFIX}/list", self._list),
            AgentRoute("GET", f"{PORT_API_PREFIX}/{{}}/connect", self._connect, is_long_poll=True),
        ]

    async def _list(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        return json_reply({"ports": [each.facts() for each in await self._read()]})

    async def _connect(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        port = int(request.parameter) if request.parameter.isdigit() else 0
        self._opened = {writer for writer in self._opened if not writer.is_closing()}
        if len(self._opened) >= MAX_PORT_CONNECTIONS:
            text = f"The ports of this workspace have {MAX_PORT_CONNECTIONS} connections already."
            raise AgentError(503, text, code="busy")
        listening = await self._find(port)
        connecting = asyncio.ensure_future(asyncio.open_connection(listening.host, port))
        try:
            await asyncio.wait({connecting}, timeout=PORT_CONNECT_TIMEOUT_S)
        finally:
            connecting.cancel()  # no effect on a finished task
        if not connecting.done() or connecting.exception() is not None:
            raise _not_listening(port)
        reader, writer = connecting.result()
        writer.transport.set_write_buffer_limits(high=0)
        self._opened.add(writer)
        return AgentHttpReply(101, relay=(reader, writer))

    async def _find(self, port: int) -> ListeningPort:
        """Look again if the cached list lacks the port: its server may have just been started."""
        if self._now() - self._read_at < PORTS_CACHE_S:
            for known in self._known:
                if known.port == port:
                    return known
        for found in await self._read():
            if found.port == port:
                return found
        raise _not_listening(port)

    async def _read(self) -> list[ListeningPort]:
        found = await self._threads.run(partial(list_ports))
        self._known = [each for each in found if each.port not in self._hidden]
        self._read_at = self._now()
        return self._known


def _not_listening(port: int) -> AgentError:
    return AgentError(404, f"Nothing in the workspace listens on port {port}.", code="no_such_port")
