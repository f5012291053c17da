"""Runners that are silent, slow, full or send nonsense, proxies that answer for servers, and clocks
that are wrong."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from chatd.api.sockets import runner_sockets
from chatd.api.sockets.runner_sockets import AsgiMessages
from chatd.app.runner_process import LOCK_FILE, STATUS_FILE, RunnerStatus, read_status
from chatd.clock import SystemClock
from chatd.domain.workspace.agent_api import ConnectFailed, RunnerDisconnected
from chatd.domain.workspace.entities import (
    AgentId,
    AgentSpec,
    Endpoint,
    FieldProblem,
    LogLevel,
    TemplateSpec,
)
from chatd.services.workspaces import runners as runner_services
from chatd.store.workspace import builds, workspaces
from chatd.workspaces.agents.agent_client import AgentClient
from chatd.workspaces.agents.agent_resolver import AgentConnector
from chatd.workspaces.build_backend import BuildCancelled, BuildContext, BuildFailed
from chatd.workspaces.runner.backend_calls import BackendCalls
from chatd.workspaces.runner.runner_client import RunnerClient, RunnerConfig
from chatd.workspaces.tunnels import exchanges, runner_link
from chatd.workspaces.tunnels.remote_backend import RemoteBackend
from chatd.workspaces.tunnels.wire import Hello
from tests.runners.runner_rig import (
    SECRET,
    WAIT_S,
    ProcessBackend,
    ask_for_workspace,
    built,
    hand_made_runner,
    hello_of,
    make_token,
    replica,
    row_of,
    runner,
    running_workspace,
)
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.outcomes import present
from tests.workspaces.agent_process import new_chat_id

AGENT = AgentId(new_chat_id())


async def test_a_runner_that_opens_no_exchange_is_waited_for_from_every_replica(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "EXCHANGE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(runner_link, "MAX_WAITING_EXCHANGES", 1)
    async with (
        replica(dsn, 1) as first,
        replica(dsn, 2) as second,
        hand_made_runner(first, hello_of()) as made,
    ):
        await made.welcomed()
        endpoint = Endpoint(kind="unix", path="/nowhere", host_id="mute")
        for each in (first, second, first):
            with pytest.raises(RunnerDisconnected, match="mute, which does not answer"):
                await each.services.open_stream(AGENT, endpoint)
            # It is asked each time: one that has given up does not count as waiting.
            assert '"more"' in await made.control.receive_str()


@pytest.mark.parametrize("hello", [hello_of("a\0b"), hello_of("../x"), hello_of(arch="\0")])
async def test_a_hello_that_cannot_be_stored_is_refused_for_good(dsn: str, hello: Hello) -> None:
    async with replica(dsn, 1) as first, hand_made_runner(first, hello) as made:
        assert '"invalid_hello"' in await made.control.receive_str()


async def test_closing_does_not_wait_for_a_client_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner_sockets, "CLOSE_TIMEOUT_S", 0.01)

    async def receive() -> dict[str, object]:
        return {"type": "websocket.disconnect"}

    async def send(message: object) -> None:
        del message
        await asyncio.Event().wait()

    await asyncio.wait_for(AsgiMessages(receive, send).close(), WAIT_S)


class BrokenBackend(ProcessBackend):
    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        raise KeyError(spec, params)


async def test_a_bug_in_one_call_does_not_end_the_runner(dsn: str, tmp_path: Path) -> None:
    async with replica(dsn, 1) as first:
        token = await make_token(first.services.pool)
        backend = BrokenBackend(tmp_path)
        async with runner(first.url, token, tmp_path, backend=backend) as machine:
            await machine.connected()
            remote = RemoteBackend(present(first.services.links.get(machine.id)), "sandbox")
            with pytest.raises(BuildFailed, match="unexpected error"):
                await remote.validate(TemplateSpec(), {})
            backend.unknown = ["nonsense"]  # pyright: ignore[reportAttributeAccessIssue]
            with pytest.raises(BuildFailed, match="cannot be read"):
                await remote.workspaces()
            assert not machine.ended.done()


class CancellableBackend(ProcessBackend):
    """Notices the wish to cancel at the gate."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.asked_to_stop = asyncio.Event()

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        if not self.gate.is_set():
            self.reached.set()
            await context.cancelled.wait()
            self.asked_to_stop.set()
            await self.gate.wait()
            raise BuildCancelled("cancelled")
        return await super().start(context)


async def test_a_build_that_a_server_gave_up_is_made_again_for_the_next_one(
    dsn: str, tmp_path: Path
) -> None:
    def ignore(stage: str, level: LogLevel, text: str) -> None:
        del stage, level, text

    async with replica(dsn, 1) as first:
        pool = first.services.pool
        token = await make_token(pool)
        backend = CancellableBackend(tmp_path)
        try:
            async with runner(first.url, token, tmp_path, backend=backend) as machine:
                await machine.connected()
                workspace = await running_workspace(first)
                backend.gate.clear()
                backend.reached.clear()
                snapshot = present(await workspaces.load_snapshot(pool, HARNESS, workspace))
                given, again = (
                    BuildContext(
                        workspace=present(snapshot.workspace),
                        build=present(snapshot.build),
                        spec=TemplateSpec(),
                        params={},
                        log=ignore,
                        agent_key=lambda _: bytes(32),
                    )
                    for _ in range(2)
                )
                remote = RemoteBackend(present(first.services.links.get(machine.id)), "sandbox")
                async with asyncio.TaskGroup() as group, asyncio.timeout(WAIT_S):
                    lost = group.create_task(_cancelled(remote.start(given)))
                    await backend.reached.wait()
                    given.cancelled.set()
                    await backend.asked_to_stop.wait()
                    joined = group.create_task(remote.start(again))
                    await remote.validate(TemplateSpec(), {})  # the runner has read both calls
                    backend.gate.set()
                assert lost.result()
                assert [agent.name for agent in joined.result()] == ["main"]
        finally:
            backend.close()


async def _cancelled(start: Awaitable[object]) -> bool:
    with pytest.raises(BuildCancelled):
        await start
    return True


async def test_a_runner_takes_no_more_workspaces_than_its_capacity(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 1) as first:
        pool = first.services.pool
        _, one = await ask_for_workspace(pool, 1)
        _, two = await ask_for_workspace(pool, 2)
        token = await make_token(pool)
        async with runner(first.url, token, tmp_path, capacity=1) as machine:
            await machine.connected()
            assert (await built(pool, one)).status == "succeeded"
            assert present(await builds.get(pool, HARNESS, two)).status == "pending"


async def test_a_runner_that_is_drained_on_its_machine_takes_nothing_after_a_renewal(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_services, "RENEW_INTERVAL_S", 0.05)
    async with replica(dsn, 1) as first:
        pool = first.services.pool
        token = await make_token(pool)
        async with runner(first.url, token, tmp_path) as drained:
            drained.client.draining = True
            await drained.connected()
            link = present(first.services.links.get(drained.id))

            async def is_told() -> bool:
                return link.is_draining

            await eventually(is_told, within_s=WAIT_S)
            before = (await row_of(pool, drained.id)).seen_at

            async def is_renewed() -> bool:
                return (await row_of(pool, drained.id)).seen_at > before

            await eventually(is_renewed, within_s=WAIT_S)
            async with runner(first.url, token, tmp_path, "runner-2") as other:
                await other.connected()
                workspace = await running_workspace(first)
                snapshot = present(await workspaces.load_snapshot(pool, HARNESS, workspace))
                assert present(snapshot.workspace).host_id == other.id


class NotingClock(SystemClock):
    def __init__(self) -> None:
        self.paused = asyncio.Event()

    async def sleep(self, seconds: float, tag: str) -> None:
        if tag == "exchange_retry":
            self.paused.set()
        await super().sleep(seconds, tag)


async def test_a_runner_does_not_storm_a_server_that_takes_no_exchange(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "EXCHANGE_TIMEOUT_S", 0.5)
    async with replica(dsn, 1) as first:
        token = await make_token(first.services.pool)
        config = RunnerConfig(server_url=first.url, token=token, runner_id="r", name="r")
        clock = NotingClock()
        client = RunnerClient(config, BackendCalls({}), clock)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group, asyncio.timeout(WAIT_S):
            group.create_task(client.run(stop))
            await client.connected.wait()
            link = present(first.services.links.get("r"))
            # As another server behind the same address, which does not know the runner.
            first.services.links.remove(link)
            with suppress(ConnectFailed):  # uses up a socket that waits already
                await link.open(AGENT, Endpoint(kind="unix", path="/nowhere", host_id="r"))
            await clock.paused.wait()
            stop.set()


async def test_a_runner_outlives_a_proxy_without_servers(dsn: str, tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        asked.set()

    proxy = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    async with proxy, replica(dsn, 1) as first:
        token = await make_token(first.services.pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            machine.client.move(f"http://127.0.0.1:{port}")
            present(first.services.links.get(machine.id)).close(1012, "restart")
            await asyncio.wait_for(asked.wait(), WAIT_S)
            machine.client.move(first.url)
            await machine.connected()
            assert not machine.ended.done()


class FastClock(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


async def test_an_agent_whose_clock_is_wrong_by_an_hour_is_used_as_any_other(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 1) as first:
        pool = first.services.pool
        token = await make_token(pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            workspace = await running_workspace(first)
            await first.client(workspace)
            snapshot = present(await workspaces.load_snapshot(pool, HARNESS, workspace))
            connector = AgentConnector(
                secret=SECRET,
                host_id="elsewhere",
                clock=FastClock(),
                open_stream=first.services.open_stream,
            )
            client = AgentClient(await connector.connect_agent(snapshot.agents[0]), SystemClock())
            path = tmp_path / "written"
            await client.write_file(str(path), b"once", key="write")
            assert await asyncio.to_thread(path.read_text) == "once"


def test_the_status_of_a_runner_that_was_killed_names_no_process(tmp_path: Path) -> None:
    """Its number may be another process's by now, which must get no signal."""
    (tmp_path / LOCK_FILE).touch()
    status = RunnerStatus(process=1, name="r", server="http://x", connected=True)
    (tmp_path / STATUS_FILE).write_bytes(msgspec.json.encode(status))
    assert read_status(tmp_path) is None
