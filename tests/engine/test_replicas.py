"""Several replicas on one database: handing over, dying, coming back."""

from uuid import UUID

import pytest

from chatd.domain.chat.commands import ReapChat
from chatd.domain.chat.row import Episode
from chatd.domain.chat.worker_transitions import MAX_WORKER_DEATHS
from chatd.domain.ids import ChatId, WorkerId
from chatd.engine.slots import SlotsConfig
from chatd.engine.worker import WorkerConfig
from chatd.parts.journal_tail import read_episode
from chatd.store.chat import workers
from chatd.store.conn import Conn
from tests.support.eventually import eventually
from tests.support.house import House, a_house, a_house_with
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.proxy import Proxy
from tests.support.store import age
from tests.support.tools import GatedTool

HASTY = WorkerConfig(heartbeat_interval_s=0.2, drain_timeout_s=0.1)
NO_ROOM = WorkerConfig(heartbeat_interval_s=0.2, drain_timeout_s=0.1, slots=SlotsConfig(roots=0))


async def test_a_chat_nobody_has_room_for_is_taken_by_another_replica(dsn: str) -> None:
    async with FakeCompatible.running() as api, a_house_with(dsn, api) as house:
        house.says("hello")
        chat_id = await house.create_unowned("hi")
        await house.rests(chat_id)
        assert await house.transcript(chat_id) == ["user: hi", "assistant: hello"]


@pytest.mark.promise("P5")
@pytest.mark.promise("P10")
async def test_a_replica_that_leaves_commits_its_step_and_another_goes_on(dsn: str) -> None:
    gate = Gate()
    tools = [GatedTool(gate=gate)]
    async with FakeCompatible.running() as api, a_house_with(dsn, api, tools=tools) as stays:
        async with a_house_with(dsn, api, tools=tools) as leaves:
            leaves.calls(("c1", "echo", "{}"))
            stays.says("the end")
            chat_id = await leaves.create("go")
            await gate.reached.wait()
            leaving = leaves.leaves()
            await leaves.events.wait("drain_started")
            gate.open()
            await leaving
        await stays.rests(chat_id)
        assert await stays.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1)",
            "tool: result(c1) {'output': 'said {}'}",
            "assistant: the end",
        ]
        assert len(api.requests) == 2


@pytest.mark.covers("F12")
@pytest.mark.promise("P2")
@pytest.mark.promise("P3")
@pytest.mark.promise("P6")
async def test_what_a_replica_cut_off_ran_is_run_by_another(dsn: str, proxy: Proxy) -> None:
    """To the others a replica without its database is dead; it may not write when it is back."""
    gate = Gate()
    async with FakeCompatible.running() as api, a_house_with(dsn, api, worker=HASTY) as lives:
        async with a_house_with(proxy.dsn, api) as dies:
            dies.says("half an ans", gate)
            chat_id = await dies.create("go")
            await gate.reached.wait()
            lives.says("a whole answer")
            cut_off(proxy)
            chat = await lives.rests(chat_id)
            assert chat.state == "W"
            proxy.refuse(new=False)
            gate.open()
            await dies.events.wait("runner_left", chat_id=chat_id)
        assert await lives.transcript(chat_id) == ["user: go", "assistant: a whole answer"]


@pytest.mark.covers("T10")
@pytest.mark.promise("P4")
async def test_a_stop_keeps_what_a_dead_replica_had_shown(dsn: str, proxy: Proxy) -> None:
    gate = Gate()
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, worker=HASTY) as lives,
        a_house_with(proxy.dsn, api, worker=HASTY) as dies,
    ):
        dies.says("half an ans", gate)
        chat_id = await dies.create("go")
        await gate.reached.wait()
        pool, episode = lives.replica.database.pool, Episode.of(await lives.chat(chat_id))
        await eventually(lambda: is_journaled(pool, episode))
        cut_off(proxy)
        await lives.interrupt(chat_id)
        chat = await lives.rests(chat_id)
        assert chat.state == "W"
        assert await lives.transcript(chat_id) == ["user: go", "assistant: half an ans"]


@pytest.mark.covers("F5")
@pytest.mark.promise("P4")
async def test_a_stop_keeps_what_was_shown_however_many_die_of_it(dsn: str, proxy: Proxy) -> None:
    """Each that takes the stop over dies before it has saved anything."""
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, worker=NO_ROOM) as looks_on,
    ):
        async with a_house_with(proxy.dsn, api, worker=HASTY) as dies:
            gate = Gate()
            dies.says("half an ans", gate)
            chat_id = await dies.create("go")
            await gate.reached.wait()
            pool, episode = looks_on.pool, Episode.of(await looks_on.chat(chat_id))
            await eventually(lambda: is_journaled(pool, episode))
            cut_off(proxy)
            await looks_on.interrupt(chat_id)
            await bury_the_owner(looks_on, chat_id)
            for ghost in range(1, MAX_WORKER_DEATHS):
                (taken,) = await workers.acquire(
                    pool, WorkerId(UUID(int=ghost)), roots=1, children=0
                )
                assert taken.id == chat_id
                await bury_the_owner(looks_on, chat_id)
        async with a_house_with(dsn, api) as lives:
            chat = await lives.rests(chat_id)
        assert chat.state == "W"
        assert await looks_on.transcript(chat_id) == ["user: go", "assistant: half an ans"]


@pytest.mark.promise("P4")
async def test_a_stop_between_two_workers_keeps_what_the_first_had_shown(
    dsn: str, proxy: Proxy
) -> None:
    """The chat is pending: its worker is known to be dead, and nobody has taken it yet. Whatever
    takes the turn's place waits until what was shown of it is saved."""
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, worker=NO_ROOM) as looks_on,
    ):
        async with a_house_with(proxy.dsn, api, worker=HASTY) as dies:
            stopped, replaced, promoted = [await half_said(dies, looks_on) for _ in range(3)]
            cut_off(proxy)
            for chat_id in (stopped, replaced, promoted):
                await bury_the_owner(looks_on, chat_id)
                assert (await looks_on.chat(chat_id)).public_status == "pending"
            await looks_on.interrupt(stopped)
            await looks_on.send(replaced, "next", "interrupt")
            await looks_on.send(promoted, "next")
            await looks_on.promote(promoted, 1)
            # However long the next replica takes to get up on this machine.
            await age(looks_on.pool, (stopped, replaced, promoted), seconds=-600)
        async with a_house_with(dsn, api) as lives:
            lives.says("to it")
            lives.says("to it")
            for chat_id in (stopped, replaced, promoted):
                assert (await lives.rests(chat_id)).state == "W"
        kept = ["user: go", "assistant: half an ans"]
        assert await looks_on.transcript(stopped) == kept
        for chat_id in (replaced, promoted):
            said = await looks_on.transcript(chat_id)
            assert said == [*kept, "user: next", "assistant: to it"]


async def half_said(house: House, others: House) -> ChatId:
    """A chat whose answer is not finished, and is known to others as far as it goes."""
    gate = Gate()
    house.says("half an ans", gate)
    chat_id = await house.create("go")
    await gate.reached.wait()
    episode = Episode.of(await others.chat(chat_id))
    await eventually(lambda: is_journaled(others.pool, episode))
    return chat_id


async def bury_the_owner(house: House, chat_id: ChatId) -> None:
    owner = (await house.chat(chat_id)).worker_id
    assert owner is not None
    await house.run(chat_id, ReapChat(worker_ids=frozenset({owner})))


def cut_off(proxy: Proxy) -> None:
    proxy.refuse(new=True)
    proxy.cut()


async def is_journaled(conn: Conn, episode: Episode) -> bool | None:
    return bool(await read_episode(conn, episode)) or None


async def test_a_house_that_is_empty_leaves_at_once(dsn: str) -> None:
    async with a_house(dsn) as house:
        await house.leaves()
        assert house.replica.worker.running == 0
