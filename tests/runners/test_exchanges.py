"""Exchange sockets that are used again: bytes of one exchange never reach the next, whoever ends
it, and runners and servers of the protocol without reuse work as before."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from chatd.clock import SystemClock
from chatd.domain.workspace.agent_api import ConnectFailed, RunnerDisconnected
from chatd.domain.workspace.entities import AgentId, Endpoint
from chatd.workspaces.runner.backend_calls import BackendCalls
from chatd.workspaces.runner.runner_client import RunnerClient, RunnerConfig
from chatd.workspaces.tunnels import exchanges
from chatd.workspaces.tunnels.byte_streams import ByteStream
from chatd.workspaces.tunnels.wire import (
    CONTROL_PATH,
    EXCHANGE_PATH,
    OpenAgent,
    Welcome,
    encode,
)
from tests.runners.runner_rig import (
    WAIT_S,
    HandMadeRunner,
    ProcessBackend,
    ReplicaRig,
    hand_made_runner,
    hello_of,
    replica,
)
from tests.support.eventually import eventually
from tests.support.outcomes import present
from tests.workspaces.agent_process import new_chat_id

AGENT = AgentId(new_chat_id())
ENDPOINT = Endpoint(kind="unix", path="/agent", host_id="mute")
END = '{"end":true}'
Socket = aiohttp.ClientWebSocketResponse


# The server's side, beside a runner that the test plays


@asynccontextmanager
async def server_and_runner(
    dsn: str, protocol: int = 2
) -> AsyncGenerator[tuple[ReplicaRig, HandMadeRunner]]:
    async with (
        asyncio.timeout(WAIT_S),
        replica(dsn, 1) as first,
        hand_made_runner(first, hello_of(protocol=protocol)) as made,
    ):
        await made.welcomed()
        yield first, made


async def opened(first: ReplicaRig, runner: Socket) -> ByteStream:
    """An exchange that the runner accepts on this socket."""
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(first.services.open_stream(AGENT, ENDPOINT))
        assert '"/agent"' in await runner.receive_str()
        await runner.send_str("{}")
    return opening.result()


async def test_a_socket_serves_one_exchange_after_another(dsn: str) -> None:
    async with server_and_runner(dsn) as (first, made):
        runner = await made.exchange()
        for number in (b"one", b"two", b"three"):
            stream = await opened(first, runner)
            await stream.write(b"ask " + number)
            assert await runner.receive_bytes() == b"ask " + number
            await runner.send_bytes(number)
            await runner.send_str(END)
            assert [await stream.read(), await stream.read()] == [number, b""]
            await stream.close()
            assert await runner.receive_str() == END


async def test_bytes_that_cross_the_servers_end_do_not_reach_the_next_exchange(dsn: str) -> None:
    """As when a call is cancelled in the middle of a reply."""
    async with server_and_runner(dsn) as (first, made):
        runner = await made.exchange()
        stream = await opened(first, runner)
        await runner.send_bytes(b"the first half,")
        assert await stream.read() == b"the first half,"
        await stream.close()
        with pytest.raises(ConnectionError):
            await stream.write(b"too late")
        await runner.send_bytes(b"the second half")
        assert await runner.receive_str() == END
        await runner.send_bytes(b"and more")
        await runner.send_str('{"end": true}')
        again = await opened(first, runner)
        await runner.send_bytes(b"the next reply")
        assert await again.read() == b"the next reply"


async def test_a_socket_whose_runner_does_not_end_its_half_is_closed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "END_TIMEOUT_S", 0.05)
    async with server_and_runner(dsn) as (first, made):
        runner = await made.exchange()
        await (await opened(first, runner)).close()
        assert await runner.receive_str() == END
        assert (await runner.receive()).type is aiohttp.WSMsgType.CLOSE


@pytest.mark.parametrize("garbage", [b"late bytes", END, "nonsense", '{"error":""}'])
async def test_a_runner_that_sends_something_on_an_idle_socket_loses_it(
    dsn: str, garbage: str | bytes
) -> None:
    async with server_and_runner(dsn) as (first, made):
        hostile = await made.exchange()
        stream = await opened(first, hostile)
        await hostile.send_str(END)
        assert await stream.read() == b""
        await stream.close()
        assert await hostile.receive_str() == END
        if isinstance(garbage, bytes):
            await hostile.send_bytes(garbage)
        else:
            await hostile.send_str(garbage)
        assert (await hostile.receive()).type is aiohttp.WSMsgType.CLOSE
        runner = await made.exchange()
        again = await opened(first, runner)
        await runner.send_bytes(b"clean")
        assert await again.read() == b"clean"


@pytest.mark.parametrize("garbage", ["nonsense", "{}", OpenAgent])
async def test_a_text_in_the_middle_of_an_exchange_ends_the_socket(
    dsn: str, garbage: str | type[OpenAgent]
) -> None:
    request = OpenAgent(agent_id="x", endpoint=ENDPOINT)
    async with server_and_runner(dsn) as (first, made):
        runner = await made.exchange()
        stream = await opened(first, runner)
        await runner.send_str(garbage if isinstance(garbage, str) else encode(request))
        with pytest.raises(ConnectionError):
            await stream.read()
        await stream.close()
        assert (await runner.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_socket_that_is_closed_in_the_middle_of_an_exchange_is_an_error(dsn: str) -> None:
    """And not the end of the reply."""
    async with server_and_runner(dsn) as (first, made):
        runner = await made.exchange()
        stream = await opened(first, runner)
        await runner.send_bytes(b"half")
        assert await stream.read() == b"half"
        await runner.close()
        with pytest.raises(ConnectionError):
            await stream.read()
        await stream.close()


async def test_a_socket_that_was_closed_while_idle_is_not_used(dsn: str) -> None:
    async with server_and_runner(dsn) as (first, made):
        idle, other = await made.exchange(), await made.exchange()
        await idle.close()
        stream = await opened(first, other)
        await stream.close()


async def test_a_socket_that_is_closed_in_the_moment_of_use_is_replaced_by_the_next(
    dsn: str,
) -> None:
    """Nothing was sent to the agent yet."""
    async with server_and_runner(dsn) as (first, made):
        one = await made.exchange()
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(first.services.open_stream(AGENT, ENDPOINT))
            assert '"/agent"' in await one.receive_str()
            await one.close()
            assert '"more"' in await made.control.receive_str()
            two = await made.exchange()
            assert '"/agent"' in await two.receive_str()
            await two.send_str("{}")
        await two.send_bytes(b"here")
        assert await opening.result().read() == b"here"


async def test_a_runner_that_closes_every_socket_is_given_up(dsn: str) -> None:
    async with server_and_runner(dsn) as (first, made):
        for _ in range(4):
            await made.exchange()
        opening = asyncio.get_running_loop().create_task(
            first.services.open_stream(AGENT, ENDPOINT)
        )
        await made.control.close()
        with pytest.raises(RunnerDisconnected):
            await opening


async def test_a_runner_that_is_given_up_while_an_exchange_opens_is_an_error_and_no_cancellation(
    dsn: str,
) -> None:
    """A tool call that is cancelled says that the user has stopped it."""
    async with server_and_runner(dsn) as (first, made):
        runner = await made.exchange()
        opening = asyncio.get_running_loop().create_task(
            first.services.open_stream(AGENT, ENDPOINT)
        )
        await runner.receive_str()
        present(first.services.links.get("mute")).close(1012, "given up")
        with pytest.raises(RunnerDisconnected):
            await opening
        await runner.close()


async def test_a_refused_agent_closes_the_socket(dsn: str) -> None:
    async with server_and_runner(dsn) as (first, made):
        runner = await made.exchange()
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(_refused(first))
            await runner.receive_str()
            await runner.send_str('{"error":"no such file"}')
        assert "no such file" in opening.result()
        assert (await runner.receive()).type is aiohttp.WSMsgType.CLOSE


async def _refused(first: ReplicaRig) -> str:
    with pytest.raises(ConnectFailed) as refused:
        await first.services.open_stream(AGENT, ENDPOINT)
    return refused.value.message


async def test_a_runner_of_protocol_1_gets_a_socket_for_each_exchange(dsn: str) -> None:
    async with server_and_runner(dsn, protocol=1) as (first, made):
        runner = await made.exchange()
        stream = await opened(first, runner)
        await stream.write(b"ask")
        assert await runner.receive_bytes() == b"ask"
        await runner.send_bytes(b"reply")
        assert await stream.read() == b"reply"
        await stream.close()
        assert (await runner.receive()).type is aiohttp.WSMsgType.CLOSE
        other = await made.exchange()
        stream = await opened(first, other)
        await other.close()
        assert await stream.read() == b""
        await stream.close()


# The runner's side, beside a server that the test plays


class AnyAgent(ProcessBackend):
    def is_agent_socket(self, path: str) -> bool:
        return path != "/foreign"


class PlayedAgent:
    """A Unix socket on which the test plays the agent."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        self.connections = asyncio.Queue()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.put_nowait((reader, writer))


class PlayedServer:
    """The sockets that a runner opens, on which the test plays the server."""

    def __init__(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self.exchanges: asyncio.Queue[web.WebSocketResponse] = asyncio.Queue()
        self._done = asyncio.Event()

    async def control(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive_str()
        await socket.send_str(encode(self._welcome))
        while not (await socket.receive()).type.name.startswith("CLOS"):
            continue
        return socket

    async def exchange(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.exchanges.put_nowait(socket)
        await self._done.wait()
        return socket

    def end(self) -> None:
        self._done.set()


@asynccontextmanager
async def runner_and_server(
    place: Path, protocol: int = 2
) -> AsyncGenerator[tuple[PlayedServer, PlayedAgent]]:
    server = PlayedServer(Welcome(epoch=1, version="dev", idle_exchanges=1, protocol=protocol))
    agent = PlayedAgent(place / "agent")
    app = web.Application()
    app.router.add_get(CONTROL_PATH, server.control)
    app.router.add_get(EXCHANGE_PATH, server.exchange)
    site_runner = web.AppRunner(app, shutdown_timeout=0)
    await site_runner.setup()
    site = web.TCPSite(site_runner, "127.0.0.1", 0)
    await site.start()
    backend = AnyAgent(place)
    config = RunnerConfig(server_url=site.name, token="t", runner_id="r", name="r")
    client = RunnerClient(config, BackendCalls({backend.kind: backend}), SystemClock())
    stop = asyncio.Event()
    listening = await asyncio.start_unix_server(agent.accept, agent.path)
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        group.create_task(client.run(stop))
        try:
            yield server, agent
        finally:
            stop.set()
            server.end()
            listening.close()
            await site_runner.cleanup()


async def open_agent(
    server: web.WebSocketResponse, agent: PlayedAgent
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    endpoint = Endpoint(kind="unix", path=agent.path, host_id="r")
    await server.send_str(encode(OpenAgent(agent_id="x", endpoint=endpoint)))
    assert await server.receive_str() == "{}"
    return await agent.connections.get()


async def test_a_runner_closes_the_agents_connection_at_the_servers_end_and_waits_for_the_next(
    tmp_path: Path,
) -> None:
    """The agent was in the middle of its reply."""
    async with runner_and_server(tmp_path) as (played, agent):
        server = await played.exchanges.get()
        reader, writer = await open_agent(server, agent)
        await server.send_bytes(b"ask")
        assert await reader.readexactly(3) == b"ask"
        writer.write(b"half")
        await writer.drain()
        assert await server.receive_bytes() == b"half"
        await server.send_str(END)
        assert await server.receive_str() == END
        assert await reader.read() == b""
        writer.close()
        _, writer = await open_agent(server, agent)
        writer.write(b"the next")
        assert await server.receive_bytes() == b"the next"
        writer.close()
        assert await server.receive_str() == END


async def test_a_runner_ends_the_exchange_when_the_agent_closes_and_drops_late_bytes(
    tmp_path: Path,
) -> None:
    async with runner_and_server(tmp_path) as (played, agent):
        server = await played.exchanges.get()
        _, writer = await open_agent(server, agent)
        writer.write(b"reply")
        writer.close()
        assert await server.receive_bytes() == b"reply"
        assert await server.receive_str() == END
        await server.send_bytes(b"late")
        await server.send_str(END)
        reader, writer = await open_agent(server, agent)
        await server.send_bytes(b"next")
        assert await reader.readexactly(4) == b"next"
        writer.close()


async def test_a_runner_closes_a_socket_whose_server_does_not_end_its_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "END_TIMEOUT_S", 0.05)
    async with runner_and_server(tmp_path) as (played, agent):
        server = await played.exchanges.get()
        _, writer = await open_agent(server, agent)
        writer.close()
        assert await server.receive_str() == END
        assert (await server.receive()).type is aiohttp.WSMsgType.CLOSE


@pytest.mark.parametrize("text", ["nonsense", "{}"])
async def test_a_runner_closes_a_socket_on_which_the_server_sends_nonsense(
    tmp_path: Path, text: str
) -> None:
    async with runner_and_server(tmp_path) as (played, agent):
        server = await played.exchanges.get()
        reader, writer = await open_agent(server, agent)
        await server.send_str(text)
        assert (await server.receive()).type is aiohttp.WSMsgType.CLOSE
        assert await reader.read() == b""
        writer.close()


async def test_a_runner_refuses_an_agent_that_is_not_its_own(tmp_path: Path) -> None:
    async with runner_and_server(tmp_path) as (played, _):
        server = await played.exchanges.get()
        endpoint = Endpoint(kind="unix", path="/foreign", host_id="r")
        await server.send_str(encode(OpenAgent(agent_id="x", endpoint=endpoint)))
        assert "not an agent of this runner" in await server.receive_str()
        assert (await server.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_runner_keeps_idle_sockets_while_others_are_used_and_no_more(
    tmp_path: Path,
) -> None:
    async with runner_and_server(tmp_path) as (played, agent):
        server = await played.exchanges.get()
        _, writer = await open_agent(server, agent)
        spare = await played.exchanges.get()
        writer.close()
        await server.receive_str()
        await server.send_str(END)
        _, writer = await open_agent(server, agent)
        writer.close()
        # Two are enough: no third one was opened meanwhile.
        await spare.ping()
        assert played.exchanges.empty()


async def test_a_server_of_protocol_1_closes_each_socket_after_its_exchange(
    tmp_path: Path,
) -> None:
    async with runner_and_server(tmp_path, protocol=1) as (played, agent):
        server = await played.exchanges.get()
        reader, writer = await open_agent(server, agent)
        await server.send_bytes(b"ask")
        assert await reader.readexactly(3) == b"ask"
        await server.close()
        assert await reader.read() == b""
        writer.close()
        server = await played.exchanges.get()
        _, writer = await open_agent(server, agent)
        writer.write(b"reply")
        writer.close()
        assert await server.receive_bytes() == b"reply"
        assert (await server.receive()).type is aiohttp.WSMsgType.CLOSE

        async def has_another() -> bool:
            return not played.exchanges.empty()

        await eventually(has_another, within_s=WAIT_S)
