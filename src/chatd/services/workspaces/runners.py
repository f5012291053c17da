"""The runners that this replica reaches: that of its own host, and those that are connected to it.

Owns what keeps their workspaces: the build worker, the checks of agents, the comparison of rows
with what runners really have, and the streams to agents for this replica and its peers. Every
replica has it, also one that serves the API only, because runners connect to the API.
"""

import asyncio
import logging
import platform
import re
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib import metadata
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec.structs import replace

from chatd.aio import InterruptibleSleep, run_contained
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkerId, WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.workspace.agent_api import WorkspaceContext
from chatd.domain.workspace.entities import AgentRow, FieldProblem, TemplateSpec
from chatd.domain.workspace.host_credentials import HostCredential
from chatd.domain.workspace.runners import (
    POD_PREFIX,
    BackendOffer,
    BuildPlace,
    Runner,
    RunnerId,
    explain_version_gap,
    pod_holder,
    takes_new,
)
from chatd.domain.workspace.templates import DEFAULT_MAX_COPY_BYTES
from chatd.git_hosts.host_apis import HostApis
from chatd.log_event import LogEvent
from chatd.sealed_secrets import KeyRing
from chatd.services.workspaces.host_credentials import CredentialDelivery, Receive
from chatd.services.workspaces.workspace_copy import WorkspaceCopier
from chatd.store.database.pool import Pool
from chatd.store.workspace import tunnels
from chatd.store.workspace.builds import AcquiredBuild
from chatd.store.workspace.tunnels import ConnectedRunner, RunnerIdentity
from chatd.workspaces.agents.agent_client import AgentClient
from chatd.workspaces.agents.agent_monitor import AGENT_CHECK_INTERVAL_S as HEARTBEAT_S
from chatd.workspaces.agents.agent_monitor import CONTEXT_CHECK_INTERVAL_S as CONTEXTS_S
from chatd.workspaces.agents.agent_monitor import AgentMonitor, ContextMonitor, ContextSync
from chatd.workspaces.agents.agent_resolver import AgentConnector
from chatd.workspaces.agents.agent_session import derive_agent_key
from chatd.workspaces.build_backend import Backend, BuildCancelled, BuildFailed
from chatd.workspaces.build_maintenance import Reconciler
from chatd.workspaces.build_worker import BuildWorker, BuildWorkerConfig, OfferedBackend
from chatd.workspaces.local.local_backend import LocalBackend
from chatd.workspaces.tunnels.peer_sockets import bind_peer_address
from chatd.workspaces.tunnels.peers import PeerDialler, PeerServer, RunnerSocket
from chatd.workspaces.tunnels.pod_tunnels import PodTunnels
from chatd.workspaces.tunnels.reach import Reach
from chatd.workspaces.tunnels.remote_backend import RemoteBackend, send_grants
from chatd.workspaces.tunnels.runner_link import IDLE_EXCHANGES, RunnerLink, RunnerLinks, refuse
from chatd.workspaces.tunnels.wire import (
    CLOSE_REFUSED,
    CLOSE_SUPERSEDED,
    EPOCH_HEADER,
    PROTOCOL,
    RUNNER_HEADER,
    RUNNER_MESSAGES,
    Hello,
    MessageSocket,
    NetworkGrant,
    Welcome,
    encode,
)

__all__ = ["EPOCH_HEADER", "RUNNER_HEADER", "RunnerIdentity", "RunnerServices"]

log = logging.getLogger(__name__)

RENEW_INTERVAL_S: Final = 5.0
RECONCILE_INTERVAL_S: Final = 30.0
CONTEXT_CONNECT_TIMEOUT_S: Final = 5.0
HELLO_TIMEOUT_S: Final = 10.0
STORE_TIMEOUT_S: Final = 5.0
COUNT_TIMEOUT_S: Final = 5.0
MAX_RUNNERS: Final = 500
"""Connected to one replica."""
MAX_NAME_CHARS: Final = 64
MAX_LABELS: Final = 32
MAX_BACKENDS: Final = 8
EPOCH: Final = re.compile("[0-9]{1,18}")
RUNNER_ID: Final = re.compile("[A-Za-z0-9._-]{1,128}")
BUILD_WORKER_GONE_AFTER_S: Final = 15.0
"""A build without a heartbeat for this long is taken over if the row of its worker is deleted. It
is several heartbeats: a draining worker has no row but still builds."""
RUNNER_POOL_SIZE: Final = 6
LOOPBACK_PEER: Final = "127.0.0.1:0"


class RunnerServicesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas share `secret`, from which the agents' keys derive. `peer_address` is where
    other
    replicas reach this one; None: they do not."""

    host_id: str
    secret: bytes
    peer_address: str | None = None
    build_slots: int = BuildWorkerConfig().slots
    max_copy_bytes: int = DEFAULT_MAX_COPY_BYTES
    runners_per_user: int = 20
    has_worker: bool = True
    """Whether this process is registered as a worker of chats under its id."""


def default_peer_address(dsn: str) -> str | None:
    """Replicas whose database is on this machine are on this machine: they meet on loopback. Others
    need the setting."""
    host = urlsplit(dsn).hostname if "://" in dsn else None
    is_local = host in (None, "", "localhost", "127.0.0.1", "::1") or host.startswith("/")
    return LOOPBACK_PEER if is_local else None


class RunnerServices:
    """`running` starts it, and closes the pool at its end. `own` makes the workspaces of this host;
    None where no chats run. `ring` opens the credentials that proxies add to requests."""

    def __init__(
        self,
        config: RunnerServicesConfig,
        env: Env,
        replica: WorkerId,
        pool: Pool,
        *,
        own: LocalBackend | None,
        may_build: Callable[[], bool] = lambda: True,
        ring: KeyRing | None = None,
        git_hosts: HostApis | None = None,
    ) -> None:
        """No build is taken while `may_build` is false."""
        ring = ring or KeyRing()
        self.git_hosts = git_hosts or HostApis(ring, env, allow_private=False)
        self._config = config
        self._env = env
        self._replica = replica
        self._own = own
        self._may_build = may_build
        self.max_copy_bytes = config.max_copy_bytes
        self._version = metadata.version("chatd")
        self.pool = pool
        self.links = RunnerLinks()
        self.peers = PeerDialler(config.secret)
        self._reach = Reach(
            pool,
            env.clock,
            replica=replica,
            host_id=config.host_id,
            is_own_socket=_no_sockets if own is None else own.is_agent_socket,
            links=self.links,
            peers=self.peers,
        )
        self.open_stream = self._reach.open
        self.pods = PodTunnels(
            pool,
            env,
            replica=replica,
            secret=config.secret,
            version=self._version,
            links=self.links,
        )
        self.connector = AgentConnector(
            secret=config.secret,
            host_id=config.host_id,
            clock=env.clock,
            open_stream=self.open_stream,
        )
        self.credentials = CredentialDelivery(pool, ring, env, self.git_hosts)
        self.build_worker = BuildWorker(
            replica,
            pool,
            self._offers,
            env,
            BuildWorkerConfig(
                slots=config.build_slots,
                worker_gone_after_s=BUILD_WORKER_GONE_AFTER_S if config.has_worker else None,
            ),
            agent_key=partial(derive_agent_key, config.secret),
            copy=WorkspaceCopier(
                pool, self.connector, env, max_copy_bytes=config.max_copy_bytes
            ).copy,
            credentials=self._build_credentials,
        )
        self.context_sync = ContextSync(pool, env)
        self._reconcilers: dict[tuple[RunnerId, str], Reconciler] = {}
        self._own_running = 0
        self._peer_address = ""
        self._renewal = InterruptibleSleep(env.clock)

    def new_host(self, backend: str, spec: TemplateSpec) -> str | None:
        """The runner of a new workspace: this host if it fits, because a chat that runs here then
        has the shortest way. None: the first runner that fits takes it."""
        is_own = self._own is not None and backend == self._own.kind
        return self._config.host_id if is_own and not spec.pool and not spec.labels else None

    async def find_problems(
        self, kind: str, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        """Problems that would certainly make a start fail, as far as a backend that is reached from
        here can tell. Else the build itself reports them."""
        backend: Backend | None = None
        if self._own is not None and kind == self._own.kind and not spec.pool:
            backend = self._own
        for link in self.links.all():
            offered = any(offer.kind == kind for offer in link.runner.backends)
            if offered and link.runner.pool == spec.pool and link.runner.owner_id is None:
                backend = backend or RemoteBackend(link, kind)
        try:
            return () if backend is None else await backend.validate(spec, values)
        except (Unavailable, BuildFailed, BuildCancelled):
            return ()

    # Runners that dial in

    async def serve_control(self, messages: MessageSocket, identity: RunnerIdentity) -> None:
        """Serve a runner's control socket until it ends. Never raises but CancelledError."""
        hello = await _read_hello(messages)
        if hello is None:
            await refuse(messages, "invalid_hello", "The first message is not a runner's hello.")
            return
        if identity.pod_of is not None:
            # Of any version: a pod outlives upgrades, and its protocol is negotiated.
            await self.pods.serve(messages, identity.pod_of, hello.protocol)
            return
        if problem := explain_version_gap(hello.version, self._version):
            await refuse(messages, "version_gap", problem)
            return
        if len(self.links.all()) >= MAX_RUNNERS:
            text = "Too many runners are connected to this server."
            await refuse(messages, "too_many_runners", text, final=False)
            return
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                connected = self._connected(hello, identity)
                most = self._config.runners_per_user
                async with self.pool.transaction() as session:
                    others = await tunnels.count_others(session, connected)
                    is_one_too_many = others >= most
                    row = None if is_one_too_many else await tunnels.connect(session, connected)
        except (ChatdError, TimeoutError):
            text = "The server's database does not answer."
            await refuse(messages, "unavailable", text, final=False)
            return
        if is_one_too_many:
            text = (
                f"You have {others} connected runners, and may have {most}. Stop one of them, or"
                " ask an administrator to raise workspaces.runners_per_user."
            )
            await refuse(messages, "too_many_own_runners", text)
            return
        if row is None:
            text = (
                "A runner with this id belongs to another pool or user. Use another data directory."
            )
            await refuse(messages, "runner_id_taken", text)
            return
        await self._serve_link(RunnerLink(messages, row, hello.protocol), messages)

    def _connected(self, hello: Hello, identity: RunnerIdentity) -> ConnectedRunner:
        return ConnectedRunner(
            id=RunnerId(hello.runner_id),
            name=hello.name,
            identity=identity,
            version=hello.version,
            labels=hello.labels,
            backends=hello.backends,
            capacity=hello.capacity,
            os=hello.os,
            arch=hello.arch,
            replica=self._replica,
            address=self._peer_address,
        )

    async def _serve_link(self, link: RunnerLink, messages: MessageSocket) -> None:
        before = self.links.add(link)
        if before is not None:
            before.close(CLOSE_SUPERSEDED, "another process with this runner's id has connected")
        runner = link.runner
        self._env.emit("runner_connected", runner_id=runner.id, name=runner.name, pool=runner.pool)
        welcome = Welcome(
            epoch=runner.epoch,
            version=self._version,
            idle_exchanges=IDLE_EXCHANGES,
            protocol=PROTOCOL,
        )
        try:
            with suppress(OSError):
                await messages.send(encode(welcome))
                self.build_worker.wake()
                self.credentials.wake()
                await link.run()
        finally:
            self.links.remove(link)
            self._env.emit("runner_disconnected", runner_id=runner.id, name=runner.name)
            with suppress(ChatdError, TimeoutError):
                if self.links.get(runner.id) is None:
                    async with asyncio.timeout(STORE_TIMEOUT_S):
                        await tunnels.disconnect(self.pool, self._replica, runner.id, runner.epoch)

    async def serve_exchange(
        self, messages: MessageSocket, identity: RunnerIdentity, runner_id: str, epoch: str
    ) -> None:
        """Keep an exchange socket until it ends. It may have come to another replica than the
        runner's control socket."""
        if identity.pod_of is None and runner_id.startswith(POD_PREFIX):
            await messages.close(1008, "the token is not that of a pod")
            return
        request = RunnerSocket(
            runner_id=runner_id if identity.pod_of is None else pod_holder(identity.pod_of),
            epoch=int(epoch) if EPOCH.fullmatch(epoch) else 0,
            pool=identity.pool,
            owner_id=identity.owner_id,
        )
        await self._reach.serve_runner_socket(messages, request)

    # What this replica does for its runners

    def _offers(self) -> Sequence[OfferedBackend]:
        if not self._may_build():
            return []
        own = []
        if self._own is not None:
            place = BuildPlace(runner_id=RunnerId(self._config.host_id), backend=self._own.kind)
            own = [OfferedBackend(place, self._own)]
        # Of several runners that fit, the one with the least to do takes a new workspace.
        links = sorted(self.links.all(), key=lambda link: _load(link.runner))
        return [
            *own,
            *(
                OfferedBackend(
                    BuildPlace(
                        runner_id=link.id,
                        backend=offer.kind,
                        pool=link.runner.pool,
                        labels=link.runner.labels,
                        owner_id=link.runner.owner_id,
                        takes_new=takes_new(link.runner) and not link.is_draining,
                        room=self._room(link.runner),
                    ),
                    RemoteBackend(link, offer.kind),
                    is_remote=True,
                )
                for link in links
                for offer in link.runner.backends
            ),
        ]

    def _room(self, runner: Runner) -> int | None:
        """How many new workspaces it takes now: those that it starts count as running."""
        if not runner.capacity:
            return None
        return max(runner.capacity - runner.running - self.build_worker.starting(runner.id), 0)

    def _hosts(self) -> Sequence[str]:
        own = [] if self._own is None else [self._config.host_id]
        return [*own, *(link.id for link in self.links.all())]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["RunnerServices"]:
        """At the end builds finish or are released; processes in workspaces go on."""
        try:
            async with AsyncExitStack() as stack:
                await self._listen(stack)
                await self._register_own()
                async with asyncio.TaskGroup() as group:
                    building = group.create_task(self.build_worker.run(), name="builder")
                    services = [
                        group.create_task(service, name=name) for name, service in self._services()
                    ]
                    yield self
                    await self.build_worker.close()
                    await building
                    for service in services:
                        service.cancel()
        finally:
            with suppress(ChatdError, TimeoutError):
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await tunnels.disconnect(self.pool, self._replica, self._config.host_id)
            await self.peers.close()
            await self.pool.close()

    async def _listen(self, stack: AsyncExitStack) -> None:
        address = self._config.peer_address
        if address is None:
            return
        listening = bind_peer_address(address)
        stack.callback(listening.close)
        port = listening.getsockname()[1]
        self._peer_address = self.pods.address = f"{address.rpartition(':')[0]}:{port}"
        server = PeerServer(self._reach.open_here, self._reach.serve_handed_over)
        await stack.enter_async_context(server.listening(listening, self._config.secret))

    async def _register_own(self) -> None:
        if self._own is None:
            return
        offer = BackendOffer(kind="sandbox", isolation=self._own.level)
        own = ConnectedRunner(
            id=RunnerId(self._config.host_id),
            name=socket.gethostname() or "server",
            identity=RunnerIdentity(),
            version=self._version,
            backends=[offer],
            os=platform.system().lower(),
            arch=platform.machine(),
            replica=self._replica,
            address=self._peer_address,
        )
        # Best effort: the next renewal finds no row, and registers again.
        with suppress(ChatdError, TimeoutError):
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await tunnels.connect(self.pool, own)

    def _services(self) -> list[tuple[str, Coroutine[None, None, None]]]:
        heartbeat = AgentMonitor(self.pool, self.connector.ping, self._env, self._hosts)
        watch = ContextMonitor(
            self.pool, self.context_sync, self._read_context, self._env, self._hosts
        )
        return [
            ("runners", self._renew_often()),
            ("host credentials", self._deliver_credentials()),
            ("heartbeat", self._every(HEARTBEAT_S, "heartbeat", heartbeat.check_agents)),
            ("contexts", self._every(CONTEXTS_S, "contexts", watch.check_contexts)),
            ("reconcile", self._reconcile_runners()),
        ]

    def on_config_change(self, change: ConfigChange | None) -> None:
        """A runner was drained or removed, or a token was revoked: do not wait for the next
        renewal."""
        if change is None or change.kind in ("runner", "runner_token"):
            self._renewal.wake()
        self.credentials.on_config_change(change)

    async def _build_credentials(self, acquired: AcquiredBuild) -> Sequence[HostCredential]:
        link = self.links.get(acquired.runner_id)
        return await self.credentials.for_build(
            acquired.workspace.id,
            acquired.workspace.owner_id,
            acquired.spec or TemplateSpec(),
            is_own_runner=link is not None and link.runner.owner_id is not None,
        )

    async def _deliver_credentials(self) -> None:
        def failed(error: Exception) -> None:
            kind = error.code if isinstance(error, ChatdError) else type(error).__name__
            self._env.emit("host_credentials_undelivered", error_kind=kind)

        while True:
            receivers: dict[str, Receive] = {
                link.id: partial(send_grants, link) for link in self.links.all()
            }
            if self._own is not None:
                receivers[self._config.host_id] = self._grant_own
            await run_contained(self.credentials.deliver(receivers), failed)
            await self.credentials.wait()

    async def _grant_own(self, grants: Sequence[NetworkGrant]) -> None:
        assert self._own is not None
        for grant in grants:
            self._own.networks.grant(WorkspaceId(UUID(grant.workspace_id)), grant.credentials)

    async def _renew_often(self) -> None:
        while True:
            await self._renewal.sleep(RENEW_INTERVAL_S, "runners")
            await run_contained(self._renew(), self._on_renewal_failed)
            await run_contained(self.pods.renew(), self._on_renewal_failed)

    def _on_renewal_failed(self, error: Exception) -> None:
        kind = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("runner_renewal_failed", error_kind=kind)

    async def _renew(self) -> None:
        links = {link.id: link for link in self.links.all()}
        rows = [(link.id, link.runner.epoch, link.runner.running) for link in links.values()]
        if self._own is not None:
            rows.append((RunnerId(self._config.host_id), 0, await self._count_own(self._own)))
        if not rows:
            return
        async with asyncio.timeout(STORE_TIMEOUT_S):
            mine = await tunnels.renew(self.pool, self._replica, self._peer_address, rows)
        for runner_id, link in links.items():
            if runner_id in mine:
                link.runner = replace(link.runner, draining=mine[runner_id])
            else:
                await self._close_lost(link)
        if self._own is not None and RunnerId(self._config.host_id) not in mine:
            await self._register_own()

    async def _count_own(self, own: LocalBackend) -> int:
        """The last count if the host cannot tell: the rows of all runners are renewed together."""
        with suppress(ChatdError, OSError):
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                self._own_running = await own.running()
        return self._own_running

    async def _close_lost(self, link: RunnerLink) -> None:
        """The runner has connected elsewhere since, or may not connect any more."""
        async with asyncio.timeout(STORE_TIMEOUT_S):
            holder = await tunnels.find_holder(self.pool, link.id)
        if holder is not None and holder.runner.epoch > link.runner.epoch:
            link.close(CLOSE_SUPERSEDED, "another process with this runner's id has connected")
        else:
            link.close(CLOSE_REFUSED, "the runner's token was revoked, or the runner was removed")

    async def _reconcile_runners(self) -> None:
        """Each runner by itself: one that is slow or sends nonsense delays no other."""
        busy: set[RunnerId] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                await self._env.clock.sleep(RECONCILE_INTERVAL_S, "reconcile")
                backends = self._backends()
                kept = {
                    (runner_id, each.kind) for runner_id in backends for each in backends[runner_id]
                }
                self._reconcilers = {
                    key: self._reconcilers.get(key) or Reconciler(self.pool, self._env, key[0])
                    for key in kept
                }
                for runner_id in backends.keys() - busy:
                    busy.add(runner_id)
                    work = group.create_task(self._reconcile(runner_id, backends[runner_id]))
                    work.add_done_callback(lambda _, ended=runner_id: busy.discard(ended))

    def _backends(self) -> Mapping[RunnerId, Sequence[Backend]]:
        backends: dict[RunnerId, Sequence[Backend]] = {
            link.id: [RemoteBackend(link, offer.kind) for offer in link.runner.backends]
            for link in self.links.all()
        }
        if self._own is not None:
            backends[RunnerId(self._config.host_id)] = [self._own]
        return backends

    async def _reconcile(self, runner_id: RunnerId, backends: Sequence[Backend]) -> None:
        def failed(error: Exception) -> None:
            kind = error.code if isinstance(error, ChatdError) else type(error).__name__
            self._env.emit("inspect_failed", error_kind=kind)

        await run_contained(self._reconcile_backends(runner_id, backends), failed)

    async def _reconcile_backends(self, runner_id: RunnerId, backends: Sequence[Backend]) -> None:
        found: list[WorkspaceId] = []
        for backend in backends:
            key = (runner_id, backend.kind)
            found += await self._reconcilers[key].reconcile(backend)
        await tunnels.set_orphans(self.pool, runner_id, found)

    async def _read_context(self, agent: AgentRow) -> WorkspaceContext:
        connected = await self.connector.connect(
            agent.id, agent.endpoints, timeout_s=CONTEXT_CONNECT_TIMEOUT_S
        )
        return await AgentClient(connected, self._env.clock).context()

    async def _every(
        self, seconds: float, name: str, task: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        await run_every(self._env, seconds, name, task)


def _no_sockets(path: str) -> bool:
    del path
    return False


def _load(runner: Runner) -> tuple[float, int]:
    share = runner.running / runner.capacity if runner.capacity else 0.0
    return share, runner.running


async def _read_hello(messages: MessageSocket) -> Hello | None:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            text = await messages.receive()
        hello = None if text is None else RUNNER_MESSAGES.decode(text)
    except (TimeoutError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(hello, Hello) or RUNNER_ID.fullmatch(hello.runner_id) is None:
        return None
    if hello.runner_id.startswith(POD_PREFIX):  # An id that no runner has.
        return None
    is_named = 0 < len(hello.name) <= MAX_NAME_CHARS and hello.name.isprintable()
    is_labelled = len(hello.labels) <= MAX_LABELS and all(
        0 < len(label) <= MAX_NAME_CHARS and label.isprintable() for label in hello.labels
    )
    is_described = all(
        len(text) <= MAX_NAME_CHARS and text.isprintable()
        for text in (hello.version, hello.os, hello.arch)
    )
    is_sized = 0 <= hello.capacity <= 1_000_000 and len(hello.backends) <= MAX_BACKENDS
    return hello if is_named and is_labelled and is_described and is_sized else None


async def run_every(
    env: Env, seconds: float, name: str, task: Callable[[], Coroutine[None, None, None]]
) -> None:
    """A failure is retried at the next interval, and logged once per kind of failure."""
    logged: set[str] = set()

    def failed(error: Exception) -> None:
        kind = type(error).__name__
        if kind not in logged:
            logged.add(kind)
            fields = {"task": name, "error_kind": kind}
            line = LogEvent(event="workspace_task_failed", fields=fields, explanation=str(error))
            log.warning(line)

    while True:
        await env.clock.sleep(seconds, name)
        if await run_contained(task(), failed):
            logged.clear()
