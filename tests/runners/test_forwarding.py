"""Exchange sockets of a runner that come to another replica than its control socket, as behind a
load balancer without sessions that stick: that replica passes them on to the one that holds it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from chatd.domain.workspace.entities import AgentId, Endpoint
from chatd.workspaces.tunnels import reach
from chatd.workspaces.tunnels.byte_streams import ByteStream
from chatd.workspaces.tunnels.peers import PeerUnknown, RunnerSocket
from tests.runners.runner_rig import (
    WAIT_S,
    HandMadeRunner,
    ReplicaRig,
    hand_made_runner,
    hello_of,
    make_token,
    replica,
    runner,
    running_workspace,
)
from tests.support.outcomes import present
from tests.support.relay import Relay
from tests.workspaces.agent_process import new_chat_id

AGENT = AgentId(new_chat_id())
ENDPOINT = Endpoint(kind="unix", path="/agent", host_id="mute")
END = '{"end":true}'
Socket = aiohttp.ClientWebSocketResponse


async def test_a_runner_behind_a_proxy_that_spreads_its_connections_is_reached_from_every_replica(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 1) as first, replica(dsn, 2) as second:
        token = await make_token(first.services.pool)
        async with (
            Relay(first.url, second.url).listening() as front,
            runner(front.url, token, tmp_path) as machine,
        ):
            await machine.connected()
            workspace = await running_workspace(first)
            for each in (first, second):
                async with asyncio.timeout(WAIT_S):
                    said = await asyncio.gather(
                        *(each.output_of(workspace, f"echo {number}") for number in range(20))
                    )
                    assert said == [str(number) for number in range(20)]
                    text = "0123456789abcdef\n" * 40_000
                    path = tmp_path / f"{new_chat_id().hex}.txt"
                    client = await each.client(workspace)
                    await client.write_file(str(path), text.encode(), key=new_chat_id().hex)
                    assert await asyncio.to_thread(path.read_text) == text


async def test_a_runner_opens_new_sockets_when_the_replica_that_holds_it_ends(
    dsn: str, tmp_path: Path
) -> None:
    async with replica(dsn, 2) as second:
        token = await make_token(second.services.pool)
        async with Relay().listening() as front:
            async with replica(dsn, 1) as first:
                # The control socket goes to the first replica, all others to the second one.
                front.targets = [first.url, *[second.url] * 100]
                machine = runner(front.url, token, tmp_path)
                rig = await machine.__aenter__()
                await rig.connected()
                workspace = await running_workspace(first)
                assert await first.output_of(workspace, "echo passed on") == "passed on"
                front.targets = [second.url]
            await rig.connected()
            assert await second.output_of(workspace, "echo here") == "here"
            await machine.__aexit__(None, None, None)


# A runner that the test plays: its control socket at the first replica


@asynccontextmanager
async def two_replicas(
    dsn: str,
) -> AsyncGenerator[tuple[ReplicaRig, ReplicaRig, HandMadeRunner]]:
    async with (
        asyncio.timeout(WAIT_S),
        replica(dsn, 1) as first,
        replica(dsn, 2) as second,
        hand_made_runner(first, hello_of()) as made,
    ):
        await made.welcomed()
        yield first, second, made


async def opened(at: ReplicaRig, socket: Socket) -> ByteStream:
    """An exchange that the runner accepts on this socket."""
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(at.services.open_stream(AGENT, ENDPOINT))
        assert '"/agent"' in await socket.receive_str()
        await socket.send_str("{}")
    return opening.result()


async def finished(stream: ByteStream, socket: Socket) -> None:
    """The exchange ends, and its socket waits for the next one."""
    await socket.send_bytes(b"")
    await socket.send_str(END)
    assert await stream.read() == b""
    await stream.close()
    assert await socket.receive_str() == END


async def is_closed(socket: Socket) -> bool:
    closing = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING)
    return (await socket.receive()).type in closing


async def test_a_socket_that_is_passed_on_serves_one_exchange_after_another(dsn: str) -> None:
    """From the holder, and from the replica that passes it on: there and back again."""
    async with two_replicas(dsn) as (first, second, made):
        socket = await made.exchange(second.url)
        for number, at in enumerate((first, second, first, second)):
            stream = await opened(at, socket)
            await stream.write(b"ask %d" % number)
            assert await socket.receive_bytes() == b"ask %d" % number
            await socket.send_bytes(b"reply")
            assert await stream.read() == b"reply"
            await finished(stream, socket)


async def test_a_socket_that_is_passed_on_ends_with_the_runners_connection(dsn: str) -> None:
    async with two_replicas(dsn) as (first, second, made):
        # One after the other: the holder takes the one that reached it first.
        used = await made.exchange(second.url)
        stream = await opened(first, used)
        idle = await made.exchange(second.url)
        await finished(await opened(first, idle), idle)
        await made.control.close()
        assert await is_closed(idle)
        assert await is_closed(used)
        with pytest.raises(ConnectionError):
            await stream.read()


async def test_an_exchange_breaks_when_the_runner_closes_a_socket_that_is_passed_on(
    dsn: str,
) -> None:
    async with two_replicas(dsn) as (first, second, made):
        socket = await made.exchange(second.url)
        stream = await opened(first, socket)
        await socket.close()
        with pytest.raises(ConnectionError):
            await stream.read()
        await opened(first, await made.exchange(second.url))


async def test_a_socket_ends_with_the_replica_that_passes_it_on(dsn: str) -> None:
    async with (
        asyncio.timeout(WAIT_S),
        replica(dsn, 1) as first,
        hand_made_runner(first, hello_of()) as made,
    ):
        await made.welcomed()
        async with replica(dsn, 2) as second:
            stream = await opened(first, await made.exchange(second.url))
        with pytest.raises(ConnectionError):
            await stream.read()
        await opened(first, await made.exchange())


async def test_a_socket_of_a_runner_that_no_replica_holds_is_closed(dsn: str) -> None:
    async with two_replicas(dsn) as (_, second, made):
        await opened(second, await made.exchange(second.url))
        await made.control.close()
        assert await is_closed(await made.exchange(second.url))


async def test_a_socket_with_another_pools_token_or_an_older_epoch_is_not_passed_on(
    dsn: str,
) -> None:
    async with two_replicas(dsn) as (first, second, made):
        thief_token = await make_token(first.services.pool, "other")
        async with aiohttp.ClientSession() as http:
            thief = HandMadeRunner(http, second.url, thief_token, hello_of())
            assert await is_closed(await thief.exchange(epoch=1))
        assert await is_closed(await made.exchange(second.url, epoch=0))
        await opened(first, await made.exchange(second.url))


async def test_the_holder_itself_refuses_a_socket_that_is_not_of_its_runner(dsn: str) -> None:
    """A replica that passes sockets on may know an older row."""
    async with two_replicas(dsn) as (first, second, _):
        address = present(await _address_of(first))
        wrong = RunnerSocket(runner_id="mute", epoch=7, pool="lab")
        with pytest.raises(PeerUnknown, match="does not hold"):
            await second.services.peers.hand_over(address, wrong)


async def _address_of(at: ReplicaRig) -> str | None:
    return await at.services.pool.fetchval("SELECT address FROM tunnels WHERE holder = 'mute'")


async def test_a_replica_passes_on_a_bounded_number_of_sockets(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "MAX_FORWARDED_SOCKETS", 1)
    async with two_replicas(dsn) as (first, second, made):
        kept = await made.exchange(second.url)
        await opened(first, kept)
        assert await is_closed(await made.exchange(second.url))
        await opened(first, await made.exchange(first.url))
