"""Opens a byte stream to an agent from any replica, and brings a runner's exchange socket to the
replica that holds the runner.

An agent is at an endpoint of a runner. The runner may be connected to this replica, or to another
one, which a row of `tunnels` names. A row may be out of date: the replica that it names refuses,
the row is read again, and the next one is tried. Until a stream is open nothing was sent to the
agent.
"""

from collections.abc import Callable
from typing import Final

from chatd.domain.errors import Unavailable
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import ConnectFailed, RunnerDisconnected
from chatd.domain.workspace.entities import AgentId, Endpoint
from chatd.domain.workspace.runners import POD_PREFIX, Runner
from chatd.store.database.conn import Conn
from chatd.store.workspace import tunnels
from chatd.store.workspace.tunnels import Holder
from chatd.workspaces.tunnels.byte_streams import ByteStream, open_socket
from chatd.workspaces.tunnels.peers import (
    PeerDialler,
    PeerUnknown,
    RunnerSocket,
    log_peer_refused,
    pass_messages,
)
from chatd.workspaces.tunnels.runner_link import RunnerLinks
from chatd.workspaces.tunnels.wire import AgentOpened, MessageSocket, encode

HOLDER_CACHE_S: Final = 5.0
MAX_CACHED_HOLDERS: Final = 1000
MAX_FORWARDED_SOCKETS: Final = 2048


class Reach:
    """`is_own_socket` says whether a path is the socket of an agent of this host."""

    def __init__(
        self,
        conn: Conn,
        clock: Clock,
        *,
        replica: WorkerId,
        host_id: str,
        is_own_socket: Callable[[str], bool],
        links: RunnerLinks,
        peers: PeerDialler,
    ) -> None:
        self._conn = conn
        self._clock = clock
        self._replica = replica
        self._host_id = host_id
        self._is_own_socket = is_own_socket
        self._links = links
        self._peers = peers
        self._holders: dict[str, tuple[float, Holder]] = {}
        self._forwarded = 0

    async def open(self, agent_id: AgentId, endpoint: Endpoint) -> ByteStream:
        """Raises RunnerDisconnected if no replica reaches the runner, ConnectFailed if the runner
        does not reach the agent."""
        if (link := self._links.get(endpoint.host_id)) is not None:
            return await link.open(agent_id, endpoint)
        cached = self._cached(endpoint.host_id)
        if cached is not None and (stream := await self._open_at(cached, agent_id, endpoint)):
            return stream
        holder = await self._find(endpoint.host_id)
        if stream := await self._open_at(holder, agent_id, endpoint):
            return stream
        raise RunnerDisconnected(_missing_text(holder))

    async def open_here(self, agent_id: AgentId, endpoint: Endpoint) -> ByteStream:
        """Called for another replica. Raises PeerUnknown if this replica does not reach the runner
        by itself, ConnectFailed if the agent is not reached."""
        if (link := self._links.get(endpoint.host_id)) is not None:
            return await link.open(agent_id, endpoint)
        if endpoint.host_id != self._host_id:
            raise PeerUnknown("This server does not reach the workspace's runner.")
        if endpoint.kind != "unix" or not self._is_own_socket(endpoint.path):
            raise ConnectFailed("The workspace agent has no socket on this host.")
        try:
            return await open_socket(endpoint.path)
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise ConnectFailed(f"The workspace agent cannot be reached: {reason}.") from None

    async def serve_runner_socket(self, messages: MessageSocket, request: RunnerSocket) -> None:
        """Use an exchange socket of a runner, which another replica may hold, until it ends."""
        if self._serves(request) or self._forwarded >= MAX_FORWARDED_SOCKETS:
            await self._serve_here(messages, request)
            return
        self._forwarded += 1
        try:
            there = await self._hand_over(request)
            if there is None:
                await messages.close(1008, "the runner is not connected")
            else:
                await pass_messages(messages, there)
        finally:
            self._forwarded -= 1

    async def serve_handed_over(self, messages: MessageSocket, request: RunnerSocket) -> None:
        """Called for another replica, to which the runner's socket came."""
        is_here = self._serves(request)
        error = "" if is_here else "This server does not hold the runner."
        await messages.send(encode(AgentOpened(error=error, unknown=not is_here)))
        await self._serve_here(messages, request)

    async def _serve_here(self, messages: MessageSocket, request: RunnerSocket) -> None:
        link = self._links.get(request.runner_id)
        if link is None or not self._serves(request):
            await messages.close(1008, "the runner is not connected to this server")
        else:
            await link.serve_exchange(messages)

    def _serves(self, request: RunnerSocket) -> bool:
        link = self._links.get(request.runner_id)
        return link is not None and _is_of(request, link.runner)

    async def _hand_over(self, request: RunnerSocket) -> MessageSocket | None:
        """None if no replica holds the runner under this epoch."""
        cached = self._cached(request.runner_id)
        if cached is not None and (there := await self._hand_over_to(cached, request)):
            return there
        try:
            return await self._hand_over_to(await self._find(request.runner_id), request)
        except ConnectFailed:
            return None

    async def _hand_over_to(self, holder: Holder, request: RunnerSocket) -> MessageSocket | None:
        if not _is_of(request, holder.runner):
            return None
        for replica, address in holder.addresses:
            if replica == self._replica or not address:
                continue
            try:
                return await self._peers.hand_over(address, request)
            except PeerUnknown as error:
                self._holders.pop(request.runner_id, None)
                log_peer_refused(address, error.message)
        return None

    async def _open_at(
        self, holder: Holder, agent_id: AgentId, endpoint: Endpoint
    ) -> ByteStream | None:
        """None if no replica of these reaches the runner."""
        for replica, address in holder.addresses:
            if replica == self._replica or not address:
                continue
            try:
                return await self._peers.open(address, agent_id, endpoint)
            except PeerUnknown as error:
                self._holders.pop(endpoint.host_id, None)
                log_peer_refused(address, error.message)
        return None

    def _cached(self, runner_id: str) -> Holder | None:
        found = self._holders.get(runner_id)
        if found is None or found[0] <= self._clock.monotonic():
            return None
        return found[1]

    async def _find(self, runner_id: str) -> Holder:
        try:
            holder = await tunnels.find_holder(self._conn, runner_id)
        except Unavailable as error:
            raise ConnectFailed(
                "chatd's own database did not say which server reaches the workspace."
            ) from error
        if holder is None:
            raise RunnerDisconnected("The runner of this workspace was removed.")
        if len(self._holders) >= MAX_CACHED_HOLDERS:
            self._holders.clear()
        self._holders[runner_id] = (self._clock.monotonic() + HOLDER_CACHE_S, holder)
        return holder


def _is_of(request: RunnerSocket, runner: Runner) -> bool:
    """Whether the socket belongs to this connection of the runner."""
    asked = (request.runner_id, request.epoch, request.pool, request.owner_id)
    return asked == (runner.id, runner.epoch, runner.pool, runner.owner_id)


def _missing_text(holder: Holder) -> str:
    """Why no replica reaches it, for people and models."""
    runner = holder.runner
    is_pod = runner.id.startswith(POD_PREFIX)
    place = "in a pod" if is_pod else f"on {runner.name}"
    if any(address == "" for _, address in holder.addresses):
        return (
            f"The workspace is {place}, which only another server reaches, and that server"
            " has no peer address (server.peer_address)."
        )
    if is_pod:
        return f"The workspace is in a pod, which is not connected{_since(runner)}."
    if runner.builtin:
        return (
            f"The workspace is on the server {runner.name}, which is not running{_since(runner)}."
        )
    return f"The workspace is on the machine {runner.name}, which is not connected{_since(runner)}."


def _since(runner: Runner) -> str:
    gone = runner.disconnected_at or runner.seen_at
    return f" since {gone:%Y-%m-%d %H:%M:%S} UTC"
