"""Runners whose network or token is taken away, runners that lie, and workspaces that attack the
runner they are on."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.agent_api import AgentUnreachable, ConnectFailed
from chatd.domain.workspace.entities import (
    AgentId,
    AgentSpec,
    Endpoint,
    FieldProblem,
    TemplateSpec,
)
from chatd.domain.workspace.runners import BackendOffer
from chatd.services.workspaces import runners as runner_services
from chatd.store.workspace import workspaces
from chatd.workspaces.agents.agent_session import (
    AgentRequest,
    AgentSession,
    AgentSigner,
    AgentTimeout,
)
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.build_maintenance import Reconciler
from chatd.workspaces.runner import runner_client
from chatd.workspaces.runner.runner_client import RunnerRefused
from chatd.workspaces.tunnels import exchanges, runner_link
from chatd.workspaces.tunnels.remote_backend import RemoteBackend
from chatd.workspaces.tunnels.wire import (
    SERVER_MESSAGES,
    BackendCall,
    CallReply,
    encode,
)
from tests.runners.runner_rig import (
    WAIT_S,
    HandMadeRunner,
    ProcessBackend,
    ReplicaRig,
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
from tests.support.relay import Relay
from tests.support.stream_replica import env_with
from tests.workspaces.agent_process import new_chat_id

AGENT = AgentId(new_chat_id())
KEY = bytes(32)
END = '{"end":true}'


class CountedCommand:
    """Writes a line when it starts, and ends when it is allowed to."""

    def __init__(self, place: Path) -> None:
        self._gate, self._count = place / "gate", place / "count"
        wait = f"until test -e {self._gate}; do sleep 0.05; done"
        self.text = f"echo ran >> {self._count}; {wait}; echo done"

    async def started(self) -> None:
        async def look() -> bool:
            return await asyncio.to_thread(self._count.exists)

        await eventually(look, within_s=WAIT_S)

    def finish(self) -> None:
        self._gate.touch()

    @property
    def runs(self) -> int:
        return self._count.read_text().count("ran")


# The network and the token


async def test_a_connection_that_passes_nothing_is_given_up_by_both_sides_and_nothing_runs_twice(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a cable is pulled, or a firewall forgets its connections."""
    monkeypatch.setattr(runner_client, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(runner_client, "STATE_INTERVAL_S", 0.1)
    monkeypatch.setattr(runner_link, "STATE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(runner_client, "CONNECT_TIMEOUT_S", 1.0)
    command = CountedCommand(tmp_path)
    async with replica(dsn, 1) as first, Relay(first.url).listening() as cable:
        token = await make_token(first.services.pool)
        async with runner(cable.url, token, tmp_path) as machine:
            await machine.connected()
            workspace = await running_workspace(first)
            client = await first.client(workspace)
            started = await client.start_process(command.text, key="once")
            waiting = asyncio.get_running_loop().create_task(client.output(started.id, wait_s=20))
            await command.started()
            cable.delay_s = 3600

            async def is_given_up() -> bool:
                here = first.services.links.get(machine.id) is None
                return here and not machine.client.connected.is_set()

            await eventually(is_given_up, within_s=WAIT_S)
            with pytest.raises(AgentUnreachable):
                await waiting
            command.finish()
            cable.delay_s = 0
            await machine.connected()
            assert await first.output_of(workspace, command.text, key="once") == "done"
            assert command.runs == 1


async def test_a_token_that_is_revoked_in_the_middle_of_an_exchange_ends_it_and_not_the_command(
    dsn: str, tmp_path: Path
) -> None:
    command, backend = CountedCommand(tmp_path), ProcessBackend(tmp_path)
    try:
        async with replica(dsn, 1) as first, replica(dsn, 2) as second:
            pool = first.services.pool
            token = await make_token(pool)
            async with runner(first.url, token, tmp_path, backend=backend) as machine:
                await machine.connected()
                workspace = await running_workspace(first)
                client = await second.client(workspace)
                started = await client.start_process(command.text, key="once")
                waiting = asyncio.get_running_loop().create_task(
                    client.output(started.id, wait_s=20)
                )
                await command.started()
                await pool.execute("UPDATE runner_tokens SET revoked_at = now()")
                first.services.on_config_change(None)
                with pytest.raises(RunnerRefused, match="revoked"):
                    await asyncio.wait_for(asyncio.shield(machine.ended), WAIT_S)
                with pytest.raises(AgentUnreachable):
                    await waiting
            command.finish()
            other = await make_token(pool)
            async with runner(first.url, other, tmp_path, backend=backend) as machine:
                await machine.connected()
                assert await second.output_of(workspace, command.text, key="once") == "done"
            assert command.runs == 1
    finally:
        backend.close()


# A runner that lies


@asynccontextmanager
async def lying_runner(dsn: str) -> AsyncGenerator[tuple[ReplicaRig, HandMadeRunner]]:
    offers = (BackendOffer(kind="sandbox"),)
    async with (
        asyncio.timeout(WAIT_S),
        replica(dsn, 1) as first,
        hand_made_runner(first, replace(hello_of("liar"), backends=offers)) as made,
    ):
        await made.welcomed()
        yield first, made


async def answer_call(made: HandMadeRunner, reply: Callable[[BackendCall], CallReply]) -> None:
    """Answer the next call; other messages are passed over."""
    while True:
        message = SERVER_MESSAGES.decode(await made.control.receive_str(timeout=WAIT_S))
        if isinstance(message, BackendCall):
            await made.control.send_str(encode(replace(reply(message), call=message.call)))
            return


@pytest.mark.parametrize(
    "frame",
    [
        "x" * 70_000,
        "no JSON",
        "[" * 50_000,
        b"bytes",
        '{"type":"state","running":"many"}',
        encode(hello_of("liar")),
    ],
    ids=["oversized", "not-json", "deep", "binary", "mistyped", "second-hello"],
)
async def test_a_runner_that_breaks_the_rules_of_its_control_socket_loses_it_alone(
    dsn: str, frame: str | bytes, tmp_path: Path
) -> None:
    async with lying_runner(dsn) as (first, made):
        token = await make_token(first.services.pool)
        async with runner(first.url, token, tmp_path, "honest") as honest:
            await honest.connected()
            if isinstance(frame, bytes):
                await made.control.send_bytes(frame)
            else:
                await made.control.send_str(frame)
            while (await made.control.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
            assert made.control.close_code in (1003, 1008, 1009)
            assert first.services.links.get("honest") is not None


async def test_a_runner_that_says_nothing_is_not_waited_for(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_services, "HELLO_TIMEOUT_S", 0.05)
    async with replica(dsn, 1) as first, aiohttp.ClientSession() as http:
        token = await make_token(first.services.pool)
        url = f"{first.url}/api/v1/runners/control"
        async with http.ws_connect(url, headers={"Authorization": f"Bearer {token}"}) as mute:
            assert '"invalid_hello"' in await mute.receive_str(timeout=WAIT_S)


async def test_a_runner_speaks_for_its_own_workspaces_and_agents_only(
    dsn: str, tmp_path: Path
) -> None:
    """It claims another runner's workspace, says that all are gone, names an agent of another
    build, and an endpoint on the server's host."""
    async with lying_runner(dsn) as (first, made):
        pool = first.services.pool
        token = await make_token(pool, "other-pool")
        async with runner(first.url, token, tmp_path, "honest") as honest:
            await honest.connected()
            theirs, build_id = await ask_for_workspace(pool, host_id="honest")
            await pool.execute("""UPDATE template_versions SET spec = '{"pool": "other-pool"}'""")
            first.services.build_worker.wake()
            assert (await built(pool, build_id)).status == "succeeded"
            link = present(first.services.links.get("liar"))
            reconciler = Reconciler(pool, env_with(SystemClock()), "liar")
            unknown = WorkspaceId(new_chat_id())
            claimed, remote = (str(theirs), str(unknown)), RemoteBackend(link, "sandbox")
            for _ in range(2):  # what two observations agree on is acted on
                async with asyncio.TaskGroup() as group:
                    looking = group.create_task(reconciler.reconcile(remote))
                    await answer_call(made, lambda _: CallReply(call=0, workspaces=claimed))
                assert looking.result() == [theirs, unknown]
            snapshot = present(await workspaces.load_snapshot(pool, HARNESS, theirs))
            assert present(snapshot.workspace).host_id == "honest"
            assert present(snapshot.build).transition == "start"
            assert await first.output_of(theirs, "echo still here") == "still here"

            for agent_id, said in ((AGENT, "does not have"), (snapshot.agents[0].id, "not have")):
                _, mine = await ask_for_workspace(pool, 2 + len(said), host_id="liar")
                await pool.execute('UPDATE template_versions SET spec = \'{"pool": "lab"}\'')
                first.services.build_worker.wake()
                agent = AgentSpec(id=agent_id, name="main", endpoints=())
                await answer_call(made, lambda _, a=agent: CallReply(call=0, agents=(a,)))
                failed = await built(pool, mine)
                assert (failed.status, said in failed.error) == ("failed", True)

            owned, mine = await ask_for_workspace(pool, 99, host_id="liar")
            first.services.build_worker.wake()

            def with_endpoint(call: BackendCall) -> CallReply:
                (agent_id,) = call.agent_keys
                where = Endpoint(kind="tcp", host="127.0.0.1", port=1, host_id="host-1")
                agent = AgentSpec(
                    id=AgentId(msgspec.convert(agent_id, AgentId)), name="main", endpoints=(where,)
                )
                return CallReply(call=0, agents=(agent,))

            await answer_call(made, with_endpoint)
            assert (await built(pool, mine)).status == "succeeded"
            kept = present(await workspaces.load_snapshot(pool, HARNESS, owned)).agents[0]
            assert [(each.kind, each.host_id) for each in kept.endpoints] == [("unix", "liar")]


def signed_session(first: ReplicaRig) -> AgentSession:
    signer = AgentSigner(AGENT, KEY, lambda: SystemClock().now().timestamp())
    endpoint = Endpoint(kind="unix", path="/agent", host_id="liar")
    return AgentSession(AGENT, endpoint, signer, first.services.open_stream)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"


async def test_replies_that_a_runner_makes_up_drips_or_never_ends_are_refused(dsn: str) -> None:
    get = AgentRequest(method="GET", target="/healthz", max_body_bytes=1 << 20)
    async with lying_runner(dsn) as (first, made):
        session = signed_session(first)

        async def ask(request: AgentRequest, *frames: bytes) -> AgentUnreachable:
            """The error when the runner answers with these bytes."""
            socket = await made.exchange()
            asking = asyncio.get_running_loop().create_task(session.send(request))
            await socket.receive_str(timeout=WAIT_S)
            await socket.send_str("{}")
            for frame in frames:
                await socket.send_bytes(frame)
            with pytest.raises(AgentUnreachable) as refused:
                await asking
            await socket.close()
            return refused.value

        made_up = await ask(get, HEAD % 2 + b"{}")
        assert made_up.code == "agent_untrusted"
        endless = await ask(get, HEAD % (1 << 40), *[bytes(48 * 1024)] * 30)
        assert endless.code == "agent_untrusted"
        dripping = await ask(replace(get, timeout_s=0.3), HEAD % 10, b"{", b'"')
        assert isinstance(dripping, AgentTimeout)
        long_head = await ask(get, b"HTTP/1.1 200 OK\r\nx: " + bytes([120]) * 40_000)
        assert not isinstance(long_head, ConnectFailed)
        # The runner itself is still used.
        socket = await made.exchange()
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(
                first.services.open_stream(AGENT, Endpoint(kind="unix", path="/a", host_id="liar"))
            )
            await socket.receive_str(timeout=WAIT_S)
            await socket.send_str("{}")
        await opening.result().close()


# Versions


async def test_a_call_that_an_older_runner_cannot_read_is_refused_and_not_left_without_reply(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 1) as first:
        token = await make_token(first.services.pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            remote = RemoteBackend(present(first.services.links.get(machine.id)), "sandbox")
            newer = TemplateSpec(network="telepathic")  # pyright: ignore[reportArgumentType]
            with pytest.raises(BuildFailed, match="Upgrade the runner"):
                await remote.validate(newer, {})
            assert await remote.validate(TemplateSpec(), {}) == ()


async def test_a_reply_that_is_too_long_is_an_error_and_ends_no_connection(
    dsn: str, tmp_path: Path
) -> None:
    backend = ProcessBackend(tmp_path)
    backend.problems = [FieldProblem(field="env", detail="x" * 1000)] * 100
    async with replica(dsn, 1) as first:
        token = await make_token(first.services.pool)
        async with runner(first.url, token, tmp_path, backend=backend) as machine:
            await machine.connected()
            link = present(first.services.links.get(machine.id))
            remote = RemoteBackend(link, "sandbox")
            with pytest.raises(BuildFailed, match="is too long"):
                await remote.validate(TemplateSpec(), {})
            assert await remote.workspaces() == []
            assert first.services.links.get(machine.id) is link


@pytest.mark.parametrize(("version", "advice"), [("9.4.0", "server"), ("0.0.1", "")])
async def test_a_runner_whose_version_is_too_far_away_is_told_what_to_upgrade(
    dsn: str, version: str, advice: str
) -> None:
    hello = replace(hello_of(), version=version)
    async with replica(dsn, 1) as first, hand_made_runner(first, hello) as made:
        if advice:
            said = await made.control.receive_str(timeout=WAIT_S)
            assert ('"version_gap"' in said, f"Upgrade the {advice}" in said) == (True, True)
        else:
            await made.welcomed()


# A workspace that attacks the runner that it is on


def link_to(other: Path, socket: Path) -> None:
    socket.symlink_to(other)


def pipe_at(other: Path, socket: Path) -> None:
    del other
    os.mkfifo(socket)


def directory_at(other: Path, socket: Path) -> None:
    del other
    socket.mkdir()


def file_at(other: Path, socket: Path) -> None:
    del other
    socket.write_text("nothing")


async def test_what_a_workspace_puts_in_the_place_of_its_agents_socket_is_not_connected_to(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 1) as first:
        token = await make_token(first.services.pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            hostile = await running_workspace(first, 1)
            good = await running_workspace(first, 2)
            for each in (hostile, good):
                await first.client(each)
            theirs, ours = (machine.backend.agents[each][1].socket for each in (hostile, good))
            endpoint = Endpoint(kind="unix", path=str(theirs), host_id=machine.id)
            machine.backend.agents[hostile][1].end(signal.SIGKILL)  # it would make its socket again
            for put in (link_to, pipe_at, directory_at, file_at):
                theirs.unlink(missing_ok=True)
                put(ours, theirs)
                with pytest.raises(ConnectFailed):
                    await first.services.open_stream(AGENT, endpoint)
                theirs.rmdir() if put is directory_at else theirs.unlink()
            # Nor does a link in the path's text lead elsewhere.
            for path in (f"{ours.parent}/../run/agent.sock", "/etc/passwd", str(tmp_path)):
                elsewhere = Endpoint(kind="unix", path=path, host_id=machine.id)
                with pytest.raises(ConnectFailed, match="not an agent of this runner"):
                    await first.services.open_stream(AGENT, elsewhere)
            assert await first.output_of(good, "echo untouched") == "untouched"


async def test_a_socket_that_never_reads_or_never_stops_writing_costs_one_exchange_only(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "AGENT_WRITE_TIMEOUT_S", 0.2)
    block = bytes(1 << 16)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Does not read what it is sent."""
        try:
            while True:
                writer.write(block)
                await writer.drain()
        except OSError:
            writer.close()

    async with replica(dsn, 1) as first:
        token = await make_token(first.services.pool)
        async with runner(first.url, token, tmp_path) as machine:
            await machine.connected()
            hostile = await running_workspace(first, 1)
            good = await running_workspace(first, 2)
            await first.client(hostile)
            agent = machine.backend.agents[hostile][1]
            agent.end(signal.SIGKILL)
            agent.socket.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(flood, agent.socket)
            async with server:
                endpoint = Endpoint(kind="unix", path=str(agent.socket), host_id=machine.id)
                signer = AgentSigner(AGENT, KEY, lambda: SystemClock().now().timestamp())
                session = AgentSession(AGENT, endpoint, signer, first.services.open_stream)
                request = AgentRequest(method="POST", target="/x", body=bytes(8 << 20), timeout_s=5)
                for _ in range(3):
                    with pytest.raises(AgentUnreachable):
                        await session.send(request)
                assert await first.output_of(good, "echo untouched") == "untouched"
                assert (await row_of(first.services.pool, machine.id)).epoch == 1
