"""Replicas and runners in one process, on a real database and real sockets.

The backend of a runner here starts real agents as plain processes, so that a build takes a moment
only; what isolates a workspace is tested elsewhere.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.access.secret_text import digest, runner_token_text
from chatd.domain.ids import WorkerId, WorkspaceId
from chatd.domain.workspace.entities import (
    AgentSpec,
    BackendState,
    Build,
    BuildId,
    Endpoint,
    FieldProblem,
    TemplateSpec,
    Workspace,
)
from chatd.domain.workspace.host_credentials import HostCredential
from chatd.domain.workspace.runners import BackendOffer, Runner
from chatd.sealed_secrets import KeyRing
from chatd.services.workspaces.runners import LOOPBACK_PEER, RunnerServices, RunnerServicesConfig
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from chatd.store.workspace import builds, templates, tunnels, workspaces
from chatd.workspaces.agents.agent_client import AgentClient
from chatd.workspaces.build_backend import BuildContext
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from chatd.workspaces.runner.backend_calls import BackendCalls
from chatd.workspaces.runner.runner_client import RunnerClient, RunnerConfig
from chatd.workspaces.tunnels.wire import (
    CONTROL_PATH,
    EPOCH_HEADER,
    EXCHANGE_PATH,
    PROTOCOL,
    RUNNER_HEADER,
    SERVER_MESSAGES,
    Hello,
    Welcome,
    encode,
)
from tests.support.api.server import ApiOptions, ApiServer, serve_api
from tests.support.eventually import eventually
from tests.support.factories import HARNESS, OWNER
from tests.support.outcomes import present
from tests.support.stream_replica import env_with
from tests.support.workspaces import TEMPLATE, new_workspace, template, version
from tests.workspaces.agent_process import AgentProcess, new_chat_id

SECRET = b"a secret of the deployment, 32 b"
POOL = "lab"
WAIT_S = 30.0


class ProcessBackend:
    """Satisfies `RunnerBackend`. Builds wait at `gate` while it is closed."""

    kind = "sandbox"

    def __init__(self, place: Path) -> None:
        self._place = place
        self.agents: dict[WorkspaceId, tuple[int, AgentProcess]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.reached = asyncio.Event()
        self.started = 0
        self.problems: Sequence[FieldProblem] = ()
        self.unknown: list[WorkspaceId] = []
        self.credentials: Sequence[HostCredential] = ()

    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        del spec, params
        return self.problems

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        context.log("agent", "starting")
        self.credentials = context.credentials
        self.reached.set()
        await self.gate.wait()
        workspace, number = context.workspace.id, context.build.build_number
        agent_id = context.agent_id("main")
        if workspace not in self.agents or self.agents[workspace][0] != number:
            self.started += 1
            # The path of a socket has 107 bytes at most.
            place = self._place / f"w{context.workspace.number}"
            place.mkdir(exist_ok=True)
            process = AgentProcess(place, agent_id=agent_id, key=context.agent_key(agent_id))
            process.start()
            self.agents[workspace] = (number, process)
        context.log("agent", "started")
        path = str(self.agents[workspace][1].socket)
        return [
            AgentSpec(
                id=agent_id,
                name="main",
                endpoints=(Endpoint(kind="unix", path=path, host_id="whatever"),),
            )
        ]

    async def stop(self, context: BuildContext) -> None:
        self.end(context.workspace.id)

    async def delete(self, context: BuildContext) -> None:
        self.end(context.workspace.id)

    async def inspect(self, workspace: Workspace) -> BackendState:
        return BackendState(state="running" if workspace.id in self.agents else "stopped")

    async def workspaces(self) -> Sequence[WorkspaceId]:
        return [*self.agents, *self.unknown]

    async def remove(self, workspace_id: WorkspaceId) -> None:
        self.end(workspace_id)

    def is_agent_socket(self, path: str) -> bool:
        return any(path == str(agent.socket) for _, agent in self.agents.values())

    async def running(self) -> int:
        return len(self.agents)

    def end(self, workspace: WorkspaceId) -> None:
        if (found := self.agents.pop(workspace, None)) is not None:
            found[1].end(signal.SIGKILL)

    def close(self) -> None:
        for workspace in tuple(self.agents):
            self.end(workspace)


class ReplicaRig:
    """A replica without workspaces of its own: what it serves to runners, and its way to agents."""

    def __init__(self, services: RunnerServices, server: ApiServer) -> None:
        self.services = services
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url

    async def client(self, workspace: WorkspaceId) -> AgentClient:
        """Waits for an agent that is just starting."""

        async def connected() -> AgentClient | None:
            snapshot = present(
                await workspaces.load_snapshot(self.services.pool, HARNESS, workspace)
            )
            agent = next(iter(snapshot.agents), None)
            if agent is None:
                return None
            with suppress(Exception):
                ready = await self.services.connector.connect_agent(agent)
                return AgentClient(ready, SystemClock())
            return None

        return await eventually(connected, within_s=WAIT_S)

    async def output_of(self, workspace: WorkspaceId, command: str, key: str | None = None) -> str:
        client = await self.client(workspace)
        async with asyncio.timeout(WAIT_S):
            started = await client.start_process(command, key=key or new_chat_id().hex)
            while (output := await client.output(started.id, wait_s=5)).running:
                pass
        return output.output.strip()


@asynccontextmanager
async def replica(
    dsn: str,
    number: int = 1,
    *,
    secret: bytes = SECRET,
    peers: bool = True,
    ring: KeyRing | None = None,
) -> AsyncGenerator[ReplicaRig]:
    me = WorkerId(UUID(int=0xF000 + number))
    link = ConnectConfig(dsn=dsn, application_name=f"runners {number}")
    config = RunnerServicesConfig(
        host_id=f"host-{number}",
        secret=secret,
        peer_address=LOOPBACK_PEER if peers else None,
        has_worker=False,
    )
    pool = Pool(PoolConfig(connect=link, max_size=4))
    services = RunnerServices(config, env_with(SystemClock()), me, pool, own=None, ring=ring)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(services.running())
        options = ApiOptions(runners=services)
        server = await stack.enter_async_context(serve_api(dsn, options))
        yield ReplicaRig(services, server)


async def make_token(pool: Pool, name: str = POOL) -> str:
    token_id = new_chat_id()
    text = runner_token_text(token_id, token_id.bytes * 2)
    await pool.execute(
        "INSERT INTO runner_tokens (id, name, pool, hash, created_by) VALUES ($1, 't', $2, $3, $4)",
        token_id,
        name,
        digest(text),
        OWNER,
    )
    return text


class RunnerRig:
    def __init__(self, client: RunnerClient, backend: ProcessBackend, runner_id: str) -> None:
        self.client = client
        self.backend = backend
        self.id = runner_id
        self.stop = asyncio.Event()
        self.ended: asyncio.Task[None] = asyncio.get_running_loop().create_task(
            client.run(self.stop)
        )

    async def connected(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.client.connected.wait()


@asynccontextmanager
async def runner(
    url: str,
    token: str,
    place: Path,
    runner_id: str = "runner-1",
    backend: ProcessBackend | None = None,
    networks: WorkspaceNetworks | None = None,
    **fields: Any,
) -> AsyncGenerator[RunnerRig]:
    """A runner process, without the process. Without a `backend` of the caller its agents end with
    it."""
    own = backend or ProcessBackend(place)
    config = RunnerConfig(
        server_url=url,
        token=token,
        runner_id=runner_id,
        name=fields.pop("name", runner_id),
        backends=(BackendOffer(kind="sandbox", isolation="none"),),
        **fields,
    )
    calls = BackendCalls({own.kind: own}, networks)
    rig = RunnerRig(RunnerClient(config, calls, SystemClock()), own, runner_id)
    try:
        yield rig
    finally:
        rig.stop.set()
        await asyncio.wait({rig.ended})
        if backend is None:
            own.close()


class HandMadeRunner:
    """The sockets of a runner, on which the test speaks for itself."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str, hello: Hello) -> None:
        self._http = http
        self._url = url
        self._token = {"Authorization": f"Bearer {token}"}
        self._hello = hello
        self._epoch = 0
        self._control: aiohttp.ClientWebSocketResponse | None = None

    @property
    def control(self) -> aiohttp.ClientWebSocketResponse:
        return present(self._control)

    async def connect(self) -> None:
        self._control = await self._http.ws_connect(self._url + CONTROL_PATH, headers=self._token)
        await self.control.send_str(encode(self._hello))

    async def welcomed(self) -> Welcome:
        welcome = SERVER_MESSAGES.decode(await self.control.receive_str(timeout=WAIT_S))
        assert isinstance(welcome, Welcome), welcome
        self._epoch = welcome.epoch
        return welcome

    async def exchange(
        self, url: str = "", epoch: int | None = None
    ) -> aiohttp.ClientWebSocketResponse:
        """A socket that waits for exchanges."""
        of = self._epoch if epoch is None else epoch
        names = {RUNNER_HEADER: self._hello.runner_id, EPOCH_HEADER: str(of)}
        address = (url or self._url) + EXCHANGE_PATH
        return await self._http.ws_connect(address, headers=self._token | names)


@asynccontextmanager
async def hand_made_runner(first: ReplicaRig, hello: Hello) -> AsyncGenerator[HandMadeRunner]:
    token = await make_token(first.services.pool)
    async with aiohttp.ClientSession() as http:
        made = HandMadeRunner(http, first.url, token, hello)
        await made.connect()
        yield made
        await made.control.close()


def hello_of(runner_id: str = "mute", arch: str = "", protocol: int = PROTOCOL) -> Hello:
    return Hello(protocol=protocol, version="dev", runner_id=runner_id, name="mute", arch=arch)


async def ask_for_workspace(
    pool: Pool, number: int = 1, *, host_id: str | None = None
) -> tuple[WorkspaceId, BuildId]:
    of_pool = replace(version(), spec=TemplateSpec(pool=POOL))
    put = templates.TemplateUpsert(template=template(backend="sandbox"), version=of_pool)
    await templates.upsert_template(pool, put)
    new = new_workspace(number, host_id=host_id, template_id=TEMPLATE)
    created = await workspaces.create(pool, HARNESS, new)
    return created.workspace.id, created.build.id


async def built(pool: Pool, build_id: BuildId) -> Build:
    async def ended() -> Build | None:
        found = present(await builds.get(pool, HARNESS, build_id))
        return None if found.active else found

    return await eventually(ended, within_s=WAIT_S)


async def running_workspace(replica: ReplicaRig, number: int = 1) -> WorkspaceId:
    pool = replica.services.pool
    workspace, build_id = await ask_for_workspace(pool, number)
    replica.services.build_worker.wake()
    build = await built(pool, build_id)
    assert build.status == "succeeded", build.error
    return workspace


async def row_of(pool: Pool, runner_id: str) -> Runner:
    return present(await tunnels.find_holder(pool, runner_id)).runner
