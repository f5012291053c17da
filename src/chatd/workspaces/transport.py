"""Opening a connection to an agent by the ways its backend has named, best first.

Owns the choice of a way and that everything that was opened is closed. A connection comes with
its release, which may be called any number of times and by anybody.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct

from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentLifecycle, AgentRow, Endpoint
from chatd.workspaces.agent_wire import Hello
from chatd.workspaces.asking import Line
from chatd.workspaces.client import AgentClient, Boot, greet
from chatd.workspaces.signing import Signer, dial_key

OPEN_S: Final = 25.0
"""For all ways together: less than whoever dials is willing to wait."""
PING_S: Final = 5.0
ELSEWHERE: Final = "agent_elsewhere"

C = TypeVar("C")


class Dialled(Struct, Generic[C], frozen=True, kw_only=True):
    conn: C
    release: Callable[[], Awaitable[None]]


class Opened(Dialled[AgentClient], frozen=True, kw_only=True):
    hello: Hello


class Transport:
    """`host_id` is this machine: a socket in a file system can be dialled nowhere else."""

    def __init__(self, *, secret: bytes, host_id: str, clock: Clock) -> None:
        self._secret = secret
        self._host_id = host_id
        self._clock = clock

    async def open(
        self, agent_id: AgentId, endpoints: Sequence[Endpoint], *, within_s: float = OPEN_S
    ) -> Opened:
        """Raises AgentLost, with the reason of the first way, if none leads to the agent."""
        near = [each for each in endpoints if each.host_id in ("", self._host_id)]
        lost: AgentUnreachable | None = None
        until = self._clock.monotonic() + within_s
        for endpoint in near:
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            try:
                return await self._open(agent_id, endpoint, left)
            except AgentUnreachable as error:
                lost = lost or error
        if lost is not None:
            raise lost
        if endpoints:
            text = "The workspace is on another host, and this server has no way to it."
            raise AgentUnreachable(text, code=ELSEWHERE)
        raise AgentUnreachable("Nobody knows a way to the workspace agent.")

    async def open_agent(self, agent: AgentRow) -> Opened:
        return await self.open(agent.id, agent.endpoints)

    async def ping(self, agent: AgentRow, *, within_s: float = PING_S) -> AgentHealth:
        """Whether it lives, and how. Raises AgentLost."""
        opened = await self.open(agent.id, agent.endpoints, within_s=within_s)
        await opened.release()
        hello = opened.hello
        lifecycle: AgentLifecycle = "ready" if hello.ready else "starting"
        return AgentHealth(boot_id=hello.boot_id, lifecycle=lifecycle, directory=hello.directory)

    async def _open(self, agent_id: AgentId, endpoint: Endpoint, within_s: float) -> Opened:
        key = dial_key(self._secret, agent_id)
        line = Line(endpoint, Signer(agent_id, key, lambda: self._clock.now().timestamp()))
        opened = False
        try:
            hello = await greet(line, agent_id, within_s=within_s)
            opened = True
        except AgentRefused as error:
            raise AgentUnreachable(f"The workspace agent refuses: {error.message}.") from None
        finally:
            if not opened:
                await line.close()
        conn = AgentClient(line, agent_id, Boot(hello.boot_id), self._clock)
        return Opened(conn=conn, release=line.close, hello=hello)
