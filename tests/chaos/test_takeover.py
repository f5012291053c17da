"""Viewers of a chat that changes replicas: partial answer, next attempt, nothing twice."""

from contextlib import AsyncExitStack

import pytest

from chatd.domain.chat_views.events import MessageEvent, PreviewReset
from tests.support.chaos.killable_server import killable_server
from tests.support.chaos.takeover_rig import takeover_rig
from tests.support.client_state import read_state
from tests.support.stream_replica import StreamClient, shows

SETTLE_TIMEOUT_S = 60.0


def episodes(viewer: StreamClient) -> list[tuple[int, int]]:
    """In the order of their resets; a repeated one is a resumed connection."""
    resets = [event for event in viewer.events if isinstance(event, PreviewReset)]
    return [(event.history_version, event.attempt) for event in resets]


def answers(viewer: StreamClient) -> list[str]:
    messages = [event.message for event in viewer.events if isinstance(event, MessageEvent)]
    return [str(message.id) for message in messages if message.role == "assistant"]


def at_rest(viewer: StreamClient) -> bool:
    return viewer.state.status == "waiting" and len(viewer.state.messages) == 2


@pytest.mark.covers("F1", "T03", "T11", "T32")
@pytest.mark.timeout(240)
@pytest.mark.promise("P6", "P8")
async def test_a_viewer_sees_the_next_attempt_after_a_kill(dsn: str) -> None:
    """The partial answer stays visible, also after a reload, until the next worker starts."""
    async with takeover_rig(dsn) as rig:
        feeds = rig.survivor.replica.feeds
        first = rig.model.gates.hold("m1/0")
        victim = await rig.start_victim()
        chat_id = await rig.create(victim, "m1 0")
        await first.reached.wait()
        stays, reloads = StreamClient(chat_id), StreamClient(chat_id)
        async with stays.connected(feeds) as view:
            await stays.watch(view, shows("answer "))
            again = rig.model.gates.hold("m1/0")
            victim.kill()
            await reloads.see(feeds, shows("answer "))
            await again.reached.wait()
            await stays.watch(view, lambda seen: seen.state.episode == (1, 2))
            await stays.watch(view, shows("answer "))
            again.open()
            await stays.watch(view, at_rest)
        await reloads.see(feeds, at_rest)
        assert episodes(stays)[:2] == [(1, 1), (1, 2)]
        assert sorted(set(episodes(stays))) == episodes(stays)
        for viewer in (stays, reloads):
            assert answers(viewer) == ["2"]
            assert viewer.state.settled() == await read_state(rig.survivor.pool, chat_id)
        assert await rig.transcript(chat_id) == ["user: m1 0", "assistant: answer to m1"]


@pytest.mark.timeout(240)
@pytest.mark.promise("P11")
async def test_a_call_is_billed_although_its_worker_was_killed_as_soon_as_it_was_sent(
    dsn: str,
) -> None:
    """Neither call gets a byte of an answer before the kill."""
    async with takeover_rig(dsn) as rig:
        first = rig.model.silences.hold("m1/0")
        victim = await rig.start_victim()
        chat_id = await rig.create(victim, "m1 0")
        await first.reached.wait()
        victim.kill()
        await rig.survivor.wait_state(chat_id, "W")
        await rig.survivor.events.wait("usage_estimated", chat_id=chat_id)
        paid = await rig.survivor.recorded_usage()
        assert sorted(ok for _, ok, _ in paid) == [False, True]


@pytest.mark.timeout(240)
@pytest.mark.promise("P5", "P10")
async def test_a_viewer_notices_nothing_of_a_drain(dsn: str) -> None:
    """The draining worker finishes the running answer."""
    async with takeover_rig(dsn) as rig:
        feeds = rig.survivor.replica.feeds
        gate = rig.model.gates.hold("m1/0")
        victim = await rig.start_victim()
        chat_id = await rig.create(victim, "m1 0")
        await gate.reached.wait()
        viewer = StreamClient(chat_id)
        async with viewer.connected(feeds) as view:
            await viewer.watch(view, shows("answer "))
            victim.terminate()
            await victim.events.wait("drain_started")
            gate.open()
            await viewer.watch(view, at_rest)
        assert await victim.wait_exited() == 0
        assert answers(viewer) == ["2"]
        assert [attempt for history, attempt in episodes(viewer) if history == 1] == [1]
        assert rig.model.asked["m1/0"] == 1
        assert await rig.transcript(chat_id) == ["user: m1 0", "assistant: answer to m1"]


@pytest.mark.covers("F10", "T36")
@pytest.mark.timeout(240)
@pytest.mark.promise("P1", "P2")
async def test_a_database_killed_during_a_takeover_leaves_no_chat_stuck() -> None:
    """While one replica is replaced, one drains, and one answers. Slow: needs its own database
    server."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(killable_server())
        rig = await stack.enter_async_context(takeover_rig(server.dsn))
        gates = [rig.model.gates.hold(f"{name}/0") for name in ("m1", "m2", "m3")]
        killed, leaves = await rig.start_victim(), await rig.start_victim()
        await rig.create(killed, "m1 0")
        await rig.create(leaves, "m2 0")
        rig.judge.record_send(await rig.survivor.create("m3 0"), "m3 0").acked = True
        for gate in gates:
            await gate.reached.wait()
        killed.kill()
        leaves.terminate()
        await leaves.events.wait("drain_started")
        await server.kill()
        for gate in gates[1:]:
            gate.open()
        await rig.survivor.events.wait("heartbeat_failed")
        await server.restart()
        await rig.judge.wait_settled(rig.survivor.pool, within_s=SETTLE_TIMEOUT_S)
        await rig.judge.check(rig.survivor.pool)
        assert await leaves.wait_exited() == 0
