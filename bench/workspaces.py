"""Workspace tools: a command beside a plain subprocess, a new workspace, concurrent commands; a
container beside `podman run`.

Everything but the model is real: rows in a fresh database, the build worker, the sandbox, the
agent. The server's part runs in this process. Building the kit, which a server does once, is not
counted.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Raw

from bench.environment import BenchDatabase, fresh_database, scratch_dir
from bench.proc_stats import percentile, spread
from bench.report import Baselines, ReportRow, at_most, text_row, without_target
from bench.workload import WORKER, ignore_applied, new_change_id, running_chat
from chatd.api.request import Receive, Scope, Send
from chatd.api.server import BoundAddress, bind, serve
from chatd.api.sockets.runner_sockets import RUNNER_CONTROL_PATH, AsgiMessages
from chatd.clock import SystemClock
from chatd.domain.access.permissions import ADMIN_USER_ID
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.ids import ToolCallId, WorkerId
from chatd.domain.ports import Env, Tool, ToolContext
from chatd.domain.workspace.entities import Endpoint
from chatd.domain.workspace.runners import BackendOffer
from chatd.sealed_secrets import KeyRing
from chatd.services.workspaces.runners import (
    LOOPBACK_PEER,
    RUNNER_POOL_SIZE,
    RunnerIdentity,
    RunnerServices,
    RunnerServicesConfig,
)
from chatd.services.workspaces.workspaces import WorkspaceServices, WorkspaceServicesConfig
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from chatd.store.workspace import workspaces
from chatd.tools.execute import QUICK_COMMAND_S
from chatd.workspaces.agents.agent_client import AgentClient
from chatd.workspaces.agents.agent_resolver import AgentConnector
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.local_backend import LocalBackend, LocalConfig
from chatd.workspaces.local.supervisor_client import SupervisorClient
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from chatd.workspaces.runner.backend_calls import BackendCalls
from chatd.workspaces.runner.runner_client import RunnerClient, RunnerConfig
from chatd.workspaces.templates import BUILT_IN_TEMPLATES, template_rows
from tests.support import container_engines
from tests.support.backend_kinds import BackendPlace
from tests.support.backend_rig import BackendRig

MAX_EXECUTE_OVERHEAD_MS: Final = 15.0
MAX_FIRST_COMMAND_S: Final = 2.0
CONCURRENT_COMMANDS: Final = 32
"""As many as a chat may run."""
MAX_TUNNEL_MS: Final = 2.0
MAX_PEER_MS: Final = 4.0
MAX_HERE_RATIO: Final = 1.05
MAX_CONTAINER_RATIO: Final = 1.5
WAYS: Final = (
    ("tunnel", "a runner", MAX_TUNNEL_MS),
    ("peer", "another replica's runner", MAX_PEER_MS),
)
CONTAINER_ROUNDS, QUICK_CONTAINER_ROUNDS = 15, 5
ROUNDS, QUICK_ROUNDS = 100, 20
SECRET: Final = b"s" * 32
RUNNER: Final = "bench-runner"

Json = dict[str, Any]
SCRATCH_TEMPLATE_ID, DEMO_TEMPLATE_ID = (
    str(template_rows(template, "builtin").template.id) for template in BUILT_IN_TEMPLATES[:2]
)


class ToolCaller:
    """Creates chats and runs their tools."""

    def __init__(
        self, services: WorkspaceServices, runners: RunnerServices, database: BenchDatabase
    ) -> None:
        self.services = services
        self.runners = runners
        self.backend = services.backend
        self._database = database
        self._tools: Mapping[str, Tool] = {}
        self._calls = count(1)

    async def create_chat(self) -> Chat:
        async with self._database.pool(1) as pool:
            chat = await running_chat(Transactor(pool, ignore_applied))
        self._tools = {tool.spec.name: tool for tool in await self.services.tools.tools(chat)}
        return chat

    def new_call(self, chat: Chat) -> ToolContext:
        call = ToolCallId(f"call-{next(self._calls)}")
        return ToolContext(chat=chat, call_id=call, fence=Fence.of(chat))

    async def call(self, chat: Chat, name: str, **args: object) -> Json:
        output = await self._tools[name].run(self.new_call(chat), Raw(msgspec.json.encode(args)))
        result = msgspec.json.decode(output.text, type=Json) if not output.is_error else {}
        assert result.get("success") or result.get("created"), output.text
        return result


def _ignore_event(event: str, **fields: object) -> None:
    del event, fields


@asynccontextmanager
async def open_tool_caller(database: BenchDatabase, data_dir: Path) -> AsyncGenerator[ToolCaller]:
    clock = SystemClock()
    env = Env(clock=clock, emit=_ignore_event, new_id=uuid4, new_change_id=new_change_id)
    config = WorkspaceServicesConfig(
        runners=RunnerServicesConfig(host_id="bench", secret=SECRET, peer_address=LOOPBACK_PEER),
        local=LocalConfig(data_dir=data_dir, host_id="bench"),
    )
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=database.dsn), max_size=RUNNER_POOL_SIZE))
    networks = WorkspaceNetworks(data_dir, clock)
    backend = LocalBackend(config.local, agent=agent_zip(), clock=clock, networks=networks)
    runners = RunnerServices(config.runners, env, WORKER, pool, own=backend)
    services = WorkspaceServices(
        config, env, runners, backend, announce=lambda _chat, _kind: None, ring=KeyRing()
    )
    try:
        async with runners.running(), services.running():
            await backend.prepare()
            yield ToolCaller(services, runners, database)
    finally:
        await SupervisorClient(data_dir / "ws-supervisor", clock).shutdown()


async def measure_workspaces(*, quick: bool) -> list[ReportRow]:
    async with fresh_database() as database:
        with scratch_dir() as home:
            async with open_tool_caller(database, home / "data") as caller:
                firsts = [await _time_first_command(caller) for _ in range(2 if quick else 5)]
                chat = await caller.create_chat()
                await caller.call(chat, "create_workspace", template_id=SCRATCH_TEMPLATE_ID)
                rounds = QUICK_ROUNDS if quick else ROUNDS
                rows = [
                    await _overhead_row(caller, chat, rounds),
                    _first_command_row(firsts),
                    await _concurrent_row(caller, chat),
                    *await _tunnel_rows(caller, database, rounds),
                ]
    return [*rows, await _container_row(QUICK_CONTAINER_ROUNDS if quick else CONTAINER_ROUNDS)]


async def _overhead_row(caller: ToolCaller, chat: Chat, rounds: int) -> ReportRow:
    """Alternately, so that other load slows both."""
    ours: list[float] = []
    plain: list[float] = []
    for _ in range(rounds + 3):
        began = time.perf_counter()
        await caller.call(chat, "execute", command="true")
        between = time.perf_counter()
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "true")
        await process.wait()
        ours.append((between - began) * 1000)
        plain.append((time.perf_counter() - between) * 1000)
    ours, plain = ours[3:], plain[3:]  # the first calls connect
    more = [one - other for one, other in zip(ours, plain, strict=True)]
    return at_most(
        "execute true, more than a subprocess",
        median(more),
        MAX_EXECUTE_OVERHEAD_MS,
        unit=" ms",
        note=f"all of it {median(ours):.1f}, p95 {percentile(ours, 0.95):.1f} ms",
        baselines=Baselines(direct=median(plain)),
    )


async def _time_first_command(caller: ToolCaller) -> float:
    chat = await caller.create_chat()
    began = time.perf_counter()
    await caller.call(chat, "create_workspace", template_id=SCRATCH_TEMPLATE_ID)
    await caller.call(chat, "execute", command="true")
    return time.perf_counter() - began


def _first_command_row(seconds: list[float]) -> ReportRow:
    found = spread(seconds)
    return at_most(
        "create_workspace to first command",
        found.median,
        MAX_FIRST_COMMAND_S,
        unit=" s",
        note=str(found),
    )


async def _concurrent_row(caller: ToolCaller, chat: Chat) -> ReportRow:
    """All in one chat and one workspace."""

    async def one() -> float:
        began = time.perf_counter()
        await caller.call(chat, "execute", command="true", timeout="60s")
        return time.perf_counter() - began

    began = time.perf_counter()
    each = await asyncio.gather(*(one() for _ in range(CONCURRENT_COMMANDS)))
    took = time.perf_counter() - began
    note = f"slowest {max(each):.2f} s, {took / CONCURRENT_COMMANDS * 1000:.0f} ms each"
    return without_target(f"{CONCURRENT_COMMANDS} commands at once", took, unit=" s", note=note)


# The same command to the same agent: directly, by a runner that is connected to this replica, and
# by one that is connected to another replica of this machine.


class _RunnerEndpoint:
    """An ASGI application that lets a runner in without a token."""

    def __init__(self, services: RunnerServices) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = RunnerIdentity(owner_id=ADMIN_USER_ID)
        await receive()
        await send({"type": "websocket.accept"})
        messages = AsgiMessages(receive, send)
        if scope["path"] == RUNNER_CONTROL_PATH:
            await self._services.serve_control(messages, identity)
        else:
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            epoch = headers["chatd-runner-epoch"]
            await self._services.serve_exchange(messages, identity, RUNNER, epoch)

    async def close(self) -> None:
        """Nothing here stays open."""


@asynccontextmanager
async def _connected_runner(caller: ToolCaller) -> AsyncGenerator[None]:
    bound: asyncio.Future[BoundAddress] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        app, port = _RunnerEndpoint(caller.runners), await bind("127.0.0.1", 0)
        leaving = asyncio.Event()
        serving = group.create_task(serve(app, port, bound.set_result, leaving))
        config = RunnerConfig(
            server_url=(await bound).url,
            token="none",
            runner_id=RUNNER,
            name=RUNNER,
            backends=(BackendOffer(kind="sandbox"),),
        )
        client = RunnerClient(config, BackendCalls({"sandbox": caller.backend}), SystemClock())
        running = group.create_task(client.run(stop))
        await client.connected.wait()
        yield
        stop.set()
        await running
        leaving.set()
        await serving


async def _run_command(client: AgentClient) -> None:
    """As the tool does."""
    key = uuid4().hex
    started = await client.start_process("true", key=key, wait_s=QUICK_COMMAND_S)
    if started.output is None:
        await client.output(started.id, wait_s=5)


async def _tunnel_rows(caller: ToolCaller, database: BenchDatabase, rounds: int) -> list[ReportRow]:
    clock = SystemClock()
    env = Env(clock=clock, emit=_ignore_event, new_id=uuid4, new_change_id=new_change_id)
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=database.dsn), max_size=2))
    config = RunnerServicesConfig(host_id="other", secret=SECRET, has_worker=False)
    other = RunnerServices(config, env, WorkerId(uuid4()), pool, own=None)
    async with other.running(), _connected_runner(caller):
        (row, *_) = await workspaces.list_agents_on_host(pool, ["bench"])
        path = row.endpoints[0].path
        ways = {
            "direct": (caller.runners, "bench"),
            "tunnel": (caller.runners, RUNNER),
            "peer": (other, RUNNER),
        }
        clients: dict[str, AgentClient] = {}
        for name, (services, holder) in ways.items():
            endpoint = Endpoint(kind="unix", path=path, host_id=holder)
            connected = await services.connector.connect(row.id, [endpoint])
            clients[name] = AgentClient(connected, clock)
        # The same socket without anything of runners: what a command cost before there were any.
        bare = AgentConnector(
            secret=SECRET, host_id="", clock=clock, open_stream=caller.runners.open_stream
        )
        here = Endpoint(kind="unix", path=path, host_id="")
        clients["bare"] = AgentClient(await bare.connect(row.id, [here]), clock)
        took: dict[str, list[float]] = {name: [] for name in clients}
        for number in range(rounds + 3):
            # In turn from both ends: a call is slower after one that has used more of the cache.
            for name, client in [*clients.items()][:: -1 if number % 2 else 1]:
                began = time.perf_counter()
                await _run_command(client)
                took[name].append((time.perf_counter() - began) * 1000)
        found = {name: median(times[3:]) for name, times in took.items()}
    ratio = median(
        one / other for one, other in zip(took["direct"][3:], took["bare"][3:], strict=True)
    )
    return [
        at_most(
            "command on this host, times a bare call",
            ratio,
            MAX_HERE_RATIO,
            note=f"medians {found['direct']:.2f} and {found['bare']:.2f} ms",
        ),
        *(_way_row(found, *way) for way in WAYS),
    ]


def _way_row(found: Mapping[str, float], key: str, name: str, most: float) -> ReportRow:
    return at_most(
        f"command by {name}, more than direct",
        found[key] - found["direct"],
        most,
        unit=" ms",
        note=f"all of it {found[key]:.1f} ms",
        baselines=Baselines(direct=found["direct"]),
    )


# A container until its agent answers, and the same image by the command of its engine.


async def _container_row(rounds: int) -> ReportRow:
    program = container_engines.PROGRAMS[container_engines.CHOSEN][-1]
    name = f"container ready, times `{program} run --rm IMAGE true`"
    if reason := container_engines.missing_reason():
        return text_row(name, "", note=f"skipped: {reason}")
    try:
        with container_engines.engine_service() as engine, scratch_dir() as home:
            place = BackendPlace(kind="container", data_dir=str(home), engine=str(engine.socket))
            async with place.opened() as rig:
                found = [await _time_container(engine, rig) for _ in range(rounds + 1)][1:]
    except container_engines.EngineNotStarted as error:
        return text_row(name, "", note=f"skipped: the engine does not run here: {error}")
    ours, plain = (median(times) for times in zip(*found, strict=True))
    return at_most(
        name,
        median(one / other for one, other in found),
        MAX_CONTAINER_RATIO,
        note=f"medians {ours * 1000:.0f} and {plain * 1000:.0f} ms",
    )


async def _time_container(engine: container_engines.Engine, rig: BackendRig) -> tuple[float, float]:
    """Alternately, so that other load slows both."""
    began = time.perf_counter()
    running = await rig.start()
    ours = time.perf_counter() - began
    await rig.backend.remove(running.workspace.id)
    began = time.perf_counter()
    words = engine.run_words("--rm", "--network", "none", container_engines.IMAGE, "true")
    process = await asyncio.create_subprocess_exec(*words)
    assert await process.wait() == 0, words
    return ours, time.perf_counter() - began
