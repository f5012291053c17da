"""The database's clock jumps, its disk is full, it goes back to an older state; a replica crashes
at every start.

Each test is slow: it needs its own database server. A random run has the same accidents:
`python -m tests.chaos.soak`.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, LiteralString
from uuid import UUID

import pytest

from chatd.domain.ids import ChatId
from tests.support.chaos.accidents import choose_weights
from tests.support.chaos.cluster_copy import ClusterCopy
from tests.support.chaos.killable_server import KillableServer, killable_server
from tests.support.chaos.lost_past import LostPast
from tests.support.chaos.replica_process import DieAt
from tests.support.chaos.replicas import ReplicaProcess
from tests.support.chaos.takeover_rig import TakeoverRig, takeover_rig
from tests.support.client_state import read_state
from tests.support.eventually import eventually
from tests.support.stream_replica import StreamClient

SETTLE_TIMEOUT_S = 60.0
PADDING_BYTES = 24_000
CRASHES = 6

RENEWED: Final[LiteralString] = """
    SELECT count(*) = $1 AND bool_and(abs(extract(epoch FROM now() - renewed_at)) < 20)
    FROM chat_workers"""


@asynccontextmanager
async def rig_on(server: KillableServer) -> AsyncGenerator[TakeoverRig]:
    """At the end nothing is lost, doubled or stuck."""
    async with takeover_rig(server.dsn) as rig:
        yield rig
        await check(rig)


async def check(rig: TakeoverRig) -> None:
    await rig.judge.wait_settled(rig.survivor.pool, within_s=SETTLE_TIMEOUT_S)
    await rig.judge.check(rig.survivor.pool)
    assert rig.model.refused == []


async def send(rig: TakeoverRig, at: ReplicaProcess, chat_id: ChatId, text: str) -> None:
    sent = rig.judge.record_send(chat_id, text)
    sent.asked()
    done = await at.send(chat_id, text)
    assert done.error is None
    sent.answered(done.state)


async def fail_over(rig: TakeoverRig, server: KillableServer, copy: ClusterCopy) -> None:
    loop = asyncio.get_running_loop()
    stopped_at = loop.time()
    await server.fail_over(copy)
    rig.judge.record_failover(
        LostPast(copied_at=copy.taken_at, stopped_at=stopped_at, back_at=loop.time())
    )


@pytest.mark.timeout(240)
@pytest.mark.promise("P2", "P10")
async def test_a_jump_of_the_clock_takes_no_chat_from_its_worker() -> None:
    async with killable_server(has_clock=True) as server, rig_on(server) as rig:
        gate = rig.model.gates.hold("m1/0")
        victim = await rig.start_victim()
        chat_id = await rig.create(victim, "m1 0")
        await gate.reached.wait()
        for ahead_s in (600.0, -600.0, 0.0):
            await server.clock.set_ahead(ahead_s)
            await eventually(lambda: rig.survivor.pool.fetchval(RENEWED, 2))
        gate.open()
        await rig.survivor.wait_state(chat_id, "W")
        assert rig.model.asked["m1/0"] == 1
        assert victim.alive


@pytest.mark.timeout(240)
@pytest.mark.promise("P1", "P2")
async def test_the_chats_of_a_replica_that_crashes_at_every_start_go_on_elsewhere(
    dsn: str,
) -> None:
    async with takeover_rig(dsn) as rig:
        for life in range(CRASHES):
            victim = await rig.start_victim(die_at=DieAt(event="task_started"))
            await rig.create(victim, f"m{life} 1")
            assert await victim.wait_exited() == -9
        await check(rig)


@pytest.mark.timeout(240)
@pytest.mark.promise("P1", "P2")
async def test_a_full_disk_refuses_messages_and_loses_none() -> None:
    async with killable_server(has_small_disk=True) as server:
        if not server.disk.is_limited:
            pytest.skip("only root can mount a small disk")
        async with rig_on(server) as rig:
            gate = rig.model.gates.hold("m1/0")
            victim = await rig.start_victim()
            chat_id = await rig.create(victim, "m1 0")
            await gate.reached.wait()
            await server.disk.fill()
            sent = rig.judge.record_send(chat_id, f"m2 0 {secrets.token_urlsafe(PADDING_BYTES)}")
            key = UUID(int=2)
            refused = await victim.send(chat_id, sent.text, key)
            assert refused.error == "database_full"
            gate.open()
            server.disk.free()
            await server.restart()
            done = await victim.send(chat_id, sent.text, key)
            assert done.error is None
            sent.answered(done.state)


@pytest.mark.covers("F11")
@pytest.mark.timeout(240)
@pytest.mark.promise("P1", "P3", "P8")
async def test_a_failover_to_an_older_state_loses_the_last_messages_as_a_whole() -> None:
    """Viewers that saw the lost messages see what is stored: one that reads meanwhile, and one
    that returns when the versions of the lost messages have been used again."""
    async with killable_server() as server, rig_on(server) as rig:
        feeds = rig.survivor.replica.feeds
        victim = await rig.start_victim()
        chat_id = await rig.create(victim, "m1 0")
        await rig.survivor.wait_state(chat_id, "W")
        copy = await server.copy()
        await send(rig, victim, chat_id, "m2 0")
        await rig.survivor.wait_state(chat_id, "W")
        viewer, returning = StreamClient(chat_id), StreamClient(chat_id)
        for client in (viewer, returning):
            await client.see(feeds, lambda seen: len(seen.state.messages) == 4)
        await fail_over(rig, server, copy)
        await viewer.see(feeds, lambda seen: len(seen.state.messages) == 2)
        await send(rig, victim, chat_id, "m3 0")
        await rig.survivor.wait_state(chat_id, "W")
        assert await rig.transcript(chat_id) == [
            "user: m1 0",
            "assistant: answer to m1",
            "user: m3 0",
            "assistant: answer to m3",
        ]
        stored = await read_state(rig.survivor.pool, chat_id)
        assert stored.version == returning.state.version
        for client in (viewer, returning):
            await client.see(feeds, lambda seen: seen.state.settled() == stored)


def test_an_accident_is_switched_off_by_its_weight() -> None:
    weights = choose_weights(["failover=0", "kill=3"])
    assert (weights["failover"], weights["kill"]) == (0, 3)
    assert choose_weights([], only=["kill"])["leave"] == 0
    with pytest.raises(ValueError, match="no such accident: flood"):
        choose_weights(["flood=1"])
