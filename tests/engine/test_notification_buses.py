"""Two replicas tell each other of their writes by PostgreSQL and by NATS alike.

Their clocks stand still: neither a heartbeat nor a poll can take the place of a hint.
"""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec import Struct

from chatd.domain.chat.row import Chat
from chatd.store.database.nats import NatsConfig, parse_nats_url
from tests.support.clock import FakeClock
from tests.support.engine_rig import (
    NO_SLOTS,
    EngineRig,
    engine_rig_with,
)
from tests.support.nats import NatsProcess, nats_server
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.stream_replica import StreamClient


class Bus(Struct, frozen=True, kw_only=True):
    nats: NatsConfig | None = None
    server: NatsProcess | None = None


@pytest.fixture(params=["postgresql", "nats"])
async def bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Bus]:
    if request.param == "postgresql":
        yield Bus()
        return
    async with nats_server(tmp_path) as server:
        yield Bus(nats=parse_nats_url(f"nats://{server.address}"), server=server)


async def hears(rig: EngineRig) -> None:
    """Wait until the replica is connected to its bus."""
    nats, listener = rig.replica.nats, rig.replica.listener
    async with asyncio.timeout(30):
        await (listener.listening if nats is None else nats.connected).wait()


@pytest.mark.promise("P2")
async def test_a_chat_that_finds_no_slot_is_run_by_the_other_replica(
    dsn: str, api: FakeCompatible, bus: Bus
) -> None:
    async with (
        engine_rig_with(dsn, api, nats=bus.nats, worker=NO_SLOTS, clock=FakeClock()) as full,
        engine_rig_with(dsn, api, nats=bus.nats, clock=FakeClock()) as free,
    ):
        await hears(full)
        await hears(free)
        free.answer("hello")
        chat_id = await full.create_unowned("hi")
        await free.wait_chat_task_left(chat_id)
        assert await full.transcript(chat_id) == ["user: hi", "assistant: hello"]


@pytest.mark.promise("P4")
async def test_an_interrupt_at_one_replica_stops_the_answer_of_the_other(
    dsn: str, api: FakeCompatible, bus: Bus, gate: Gate
) -> None:
    async with (
        engine_rig_with(dsn, api, nats=bus.nats, worker=NO_SLOTS, clock=FakeClock()) as here,
        engine_rig_with(dsn, api, nats=bus.nats, clock=FakeClock()) as there,
    ):
        await hears(here)
        await hears(there)
        chat_id = await there.ask("go", "half an ans", gate)
        await there.wait_shown(chat_id, "half")
        await here.interrupt(chat_id)
        assert (await there.wait_chat_task_left(chat_id)).state == "W"
        assert await here.transcript(chat_id) == ["user: go", "assistant: half an ans"]


@pytest.mark.promise("P8")
async def test_a_viewer_sees_the_end_of_an_answer_of_the_other_replica(
    dsn: str, api: FakeCompatible, bus: Bus, gate: Gate
) -> None:
    clock = FakeClock()
    async with (
        engine_rig_with(dsn, api, nats=bus.nats, worker=NO_SLOTS, clock=FakeClock()) as here,
        engine_rig_with(dsn, api, nats=bus.nats, clock=clock) as there,
    ):
        await hears(here)
        await hears(there)
        chat_id = await there.ask("go", "an answer", gate)
        client = StreamClient(chat_id)
        async with client.connected(here.replica.feeds) as viewer:
            await client.watch(viewer, lambda seen: len(seen.state.messages) == 1)
            await clock.advance_past("publish_flush")  # of the hint that the chat was created
            gate.open()
            await client.watch(viewer, lambda seen: len(seen.state.messages) == 2)


@pytest.mark.promise("P2")
async def test_without_nats_chats_run_and_what_was_missed_is_found_when_it_is_back(
    dsn: str, api: FakeCompatible, tmp_path: Path, gate: Gate
) -> None:
    clock = FakeClock()
    async with nats_server(tmp_path) as server:
        nats = parse_nats_url(f"nats://{server.address}")
        async with (
            engine_rig_with(dsn, api, nats=nats, worker=NO_SLOTS, clock=FakeClock()) as here,
            engine_rig_with(dsn, api, nats=nats, clock=clock) as there,
        ):
            await hears(there)
            chat_id = await there.ask("go", "half an ans", gate)
            await there.wait_shown(chat_id, "half")
            await server.kill()
            await there.events.wait("notifications_lost")
            chat: Chat = await here.interrupt(chat_id)
            assert chat.status == "interrupting"
            await server.start()
            # Nothing else: the hint was lost, and the connection makes the replica look.
            await clock.advance_past("nats_reconnect")
            assert (await there.wait_chat_task_left(chat_id)).state == "W"
            assert await here.transcript(chat_id) == ["user: go", "assistant: half an ans"]
