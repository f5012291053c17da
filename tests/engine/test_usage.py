"""Usage is recorded once for every model call, however the call ends; estimated where the provider
does not tell."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.answer.answer import StartedCall
from chatd.domain.chat.lease import MAX_LONE_DEATHS
from chatd.domain.chat.messages import TokenUsage, UsageEntry
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Episode
from chatd.domain.deployment.spend import FIRST_OUTPUT_TOKENS
from chatd.domain.ids import ChatId, WorkerId
from chatd.engine.model.budget import SpendLimit
from chatd.providers.provider_config import ProviderConfig
from chatd.providers.registry import build_provider
from chatd.store.chat import journal, messages
from chatd.store.database.conn import Row
from chatd.store.model import model_calls
from chatd.store.model.model_calls import OpenCall
from chatd.stream.journal_tail import read_episode
from tests.support.engine_rig import (
    NO_SLOTS,
    SHORT_DRAIN,
    EngineRig,
    engine_rig,
    engine_rig_with,
    usage_chunk,
)
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.outcomes import present
from tests.support.providers.anthropic import FakeAnthropic, event
from tests.support.providers.openai_chat import FakeCompatible, chunk
from tests.support.providers.server import Cut, Gate, Reply
from tests.support.proxy import Proxy
from tests.support.store import session_to

pytestmark = pytest.mark.promise("P11")

LONG = "word " * 800
"""About 1,000 tokens."""
STREAMED = "said " * 160
"""About 200 tokens."""


async def started(rig: EngineRig, gate: Gate) -> ChatId:
    """A chat with an answer that stops at the gate."""
    chat_id = await rig.ask(LONG, STREAMED, gate)
    await rig.wait_shown(chat_id, "said")
    return chat_id


# The ways out of a call. Each gets a replica and a closed gate, and leaves one call of a turn.


async def complete(rig: EngineRig, gate: Gate) -> None:
    gate.open()
    await rig.wait_chat_task_left(await rig.ask(LONG, STREAMED))


async def interrupt(rig: EngineRig, gate: Gate) -> None:
    chat_id = await started(rig, gate)
    await rig.interrupt(chat_id)
    await rig.wait_chat_task_left(chat_id)


async def edit(rig: EngineRig, gate: Gate) -> None:
    chat_id = await started(rig, gate)
    rig.api.reply(401, {"error": {"message": "wrong key"}})
    await rig.edit(chat_id, "shorter")
    await rig.wait_state(chat_id, "E0")


async def fail(rig: EngineRig, gate: Gate) -> None:
    gate.open()
    error = b'data: {"error": {"message": "wrong", "code": 401}}\n\n'
    rig.api.script(chunk(content=STREAMED), error)
    await rig.wait_state(await rig.create(LONG), "E0")


async def cut_off(rig: EngineRig, gate: Gate) -> None:
    gate.open()
    rig.api.script(chunk(content=STREAMED), Cut())
    rig.api.reply(401, {"error": {"message": "wrong key"}})
    await rig.wait_state(await rig.create(LONG), "E0")


async def time_out(rig: EngineRig, gate: Gate) -> None:
    await rig.wait_state(await started(rig, gate), "E0")


async def archive(rig: EngineRig, gate: Gate) -> None:
    chat_id = await started(rig, gate)
    await rig.archive(chat_id)
    await rig.wait_chat_task_left(chat_id)


async def expire_interrupt(rig: EngineRig, gate: Gate) -> None:
    """The owner does not see the interrupt in time."""
    chat_id = await started(rig, gate)
    await rig.wait_journaled(chat_id)
    await rig.pool.execute(
        """UPDATE chats SET status = 'interrupting', snapshot_version = snapshot_version + 1,
               interrupt_deadline = now() - interval '1 s' WHERE id = $1""",
        chat_id,
    )
    await rig.wait_state(chat_id, "W")
    await rig.wait_chat_task_left(chat_id)


Way = Callable[[EngineRig, Gate], Awaitable[None]]
WAYS: list[Way] = [complete, interrupt, edit, fail, cut_off, time_out, archive, expire_interrupt]


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_is_recorded_on_every_way_out(dsn: str, gate: Gate, way: Way) -> None:
    timeout_s = 1.0 if way is time_out else 60.0
    async with engine_rig(dsn, model_call_timeout_s=timeout_s) as rig:
        await way(rig, gate)
        await rig.replica.usage_writer.wait_idle()
    async with session_to(dsn) as session:
        check_estimate(await session.fetch("SELECT * FROM usage_events"), ok=way is complete)


def check_estimate(rows: list[Row], *, ok: bool = False) -> None:
    (row,) = rows
    assert (row["kind"], row["ok"], row["estimated"]) == ("turn", ok, True)
    assert 900 < row["input_tokens"] < 1200
    assert 150 < row["output_tokens"] < 250
    assert row["cost_micros"] == row["input_tokens"] + 2 * row["output_tokens"]


async def test_a_call_that_a_shutdown_cancels_is_recorded(dsn: str, gate: Gate) -> None:
    async with engine_rig(dsn, worker=SHORT_DRAIN) as rig:
        await started(rig, gate)
    async with session_to(dsn) as session:
        check_estimate(await session.fetch("SELECT * FROM usage_events"))


async def test_a_call_that_is_stopped_before_the_provider_answers_is_recorded(
    rig: EngineRig,
) -> None:
    """The provider may have read the prompt."""
    silent = Gate()
    rig.api.scripted.append(Reply(held=silent))
    chat_id = await rig.create(LONG)
    await silent.reached.wait()
    await rig.interrupt(chat_id)
    await rig.wait_chat_task_left(chat_id)
    assert await rig.recorded_usage() == [("turn", False, "estimated")]


async def test_told_usage_wins_over_the_estimate(rig: EngineRig) -> None:
    rig.answer(STREAMED, input_tokens=7)
    await rig.wait_chat_task_left(await rig.create(LONG))
    (row,) = await rig.pool.fetch("SELECT * FROM usage_events")
    assert (row["input_tokens"], row["output_tokens"], row["estimated"]) == (7, 5, False)


# Workers that die or lose their connection


async def test_the_next_owner_records_the_call_of_a_dead_worker(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    """The lost worker comes back later: it corrects the estimate and adds nothing."""
    async with engine_rig_with(dsn, api, worker=SHORT_DRAIN) as survivor:
        async with engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim:
            chat_id = await started(victim, gate)
            await survivor.wait_journaled(chat_id)
            survivor.answer("a whole answer", input_tokens=3)
            proxy.disconnect()
            await survivor.reap_owner(chat_id)
            await survivor.wait_chat_task_left(chat_id)
            await survivor.events.wait("usage_estimated", chat_id=chat_id)
            await survivor.replica.usage_writer.wait_idle()
            dead = "SELECT * FROM usage_events WHERE NOT ok"
            check_estimate(await survivor.pool.fetch(dead))
            proxy.refuse(new=False)
            await victim.events.wait("chat_task_left", chat_id=chat_id)
            await victim.replica.usage_writer.wait_idle()
        check_estimate(await survivor.pool.fetch(dead))
        paid = await survivor.recorded_usage()
        assert sorted(paid, key=str) == [("turn", False, "estimated"), ("turn", True, 3)]


async def test_a_call_is_recorded_whose_worker_dies_before_the_provider_answers(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    silent = Gate()
    async with (
        engine_rig_with(dsn, api, worker=SHORT_DRAIN) as survivor,
        engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim,
    ):
        api.scripted.append(Reply(held=silent))
        chat_id = await victim.create(LONG)
        await silent.reached.wait()
        survivor.answer("a whole answer", input_tokens=3)
        proxy.disconnect()
        await survivor.reap_owner(chat_id)
        await survivor.wait_chat_task_left(chat_id)
        await survivor.events.wait("usage_estimated", chat_id=chat_id)
        paid = await survivor.recorded_usage()
        assert sorted(paid, key=str) == [("turn", False, "estimated"), ("turn", True, 3)]
        (dead,) = await survivor.pool.fetch("SELECT * FROM usage_events WHERE NOT ok")
        assert 900 < dead["input_tokens"] < 1200
        assert dead["output_tokens"] == 0
        assert await survivor.pool.fetchval("SELECT count(*) FROM open_calls") == 0


async def test_the_owner_of_an_interrupt_records_the_call_of_a_dead_worker(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    async with (
        engine_rig_with(dsn, api, worker=SHORT_DRAIN) as survivor,
        engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim,
    ):
        chat_id = await started(victim, gate)
        await survivor.wait_journaled(chat_id)
        proxy.disconnect()
        await survivor.interrupt(chat_id)
        await survivor.wait_chat_task_left(chat_id)
        await survivor.replica.usage_writer.wait_idle()
        check_estimate(await survivor.pool.fetch("SELECT * FROM usage_events"))


async def test_the_call_of_a_dead_worker_is_recorded_after_an_edit(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as observer:
        async with engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim:
            chat_id = await started(victim, gate)
            await observer.wait_journaled(chat_id)
            proxy.disconnect()
            await observer.edit(chat_id, "shorter")
        async with engine_rig_with(dsn, api) as survivor:
            survivor.answer("fine", input_tokens=3)
            await survivor.wait_chat_task_left(chat_id)
            paid = await survivor.recorded_usage()
        assert sorted(paid, key=str) == [("turn", False, "estimated"), ("turn", True, 3)]


async def test_the_reaper_records_the_last_call_of_a_chat_that_it_fails(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    """A reaper that starts after the death blames the chat although it never saw the worker."""
    async with engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim:
        async with engine_rig_with(dsn, api, worker=NO_SLOTS) as observer:
            chat_id = await started(victim, gate)
            await observer.wait_journaled(chat_id)
            await observer.pool.execute(
                """UPDATE chats SET orphan_count = 4,
                       setbacks = json_build_object('lone_deaths', $1::int) WHERE id = $2""",
                MAX_LONE_DEATHS - 1,
                chat_id,
            )
            await observer.pool.execute(
                "UPDATE chat_workers SET started_at = started_at - interval '1 h'"
            )
        proxy.disconnect()
        async with engine_rig_with(dsn, api, worker=NO_SLOTS) as reaper:
            await reaper.wait_state(chat_id, "E0")
            await reaper.events.wait("usage_estimated", chat_id=chat_id)
            await reaper.replica.usage_writer.wait_idle()
            check_estimate(await reaper.pool.fetch("SELECT * FROM usage_events"))


async def test_what_a_provider_told_of_a_call_is_in_the_journal_and_not_in_live_parts(
    rig: EngineRig, gate: Gate
) -> None:
    rig.api.script(chunk(content=STREAMED), usage_chunk(77), gate)
    chat_id = await rig.create(LONG)
    await gate.reached.wait()
    await rig.wait_journaled(chat_id)
    episode = Episode.of(await rig.chat(chat_id))

    async def find() -> list[tuple[Episode, bytes]]:
        return await journal.find_calls(rig.pool, episode)

    ((found, record),) = await eventually(find)
    assert found == episode
    assert b'"kind":"turn"' in record
    assert b'"input_tokens":77' in record
    shown = await read_episode(rig.pool, episode)
    assert {(live.role, type(live.part)) for live in shown} == {("assistant", TextPart)}
    buffer = present(rig.replica.episodes.find(chat_id))
    assert b"fake-1" not in b"".join(buffer.events)
    gate.open()


async def test_a_call_has_a_record_from_before_its_request_until_its_usage_is_recorded(
    rig: EngineRig,
) -> None:
    silent = Gate()
    rig.api.scripted.append(Reply(held=silent))
    chat_id = await rig.create(LONG)
    await silent.reached.wait()
    (opened,) = await rig.pool.fetch("SELECT * FROM open_calls")
    assert (opened["chat_id"], opened["worker_id"]) == (chat_id, rig.replica.worker_id)
    assert 900 < opened["reserved_micros"] - 2 * FIRST_OUTPUT_TOKENS < 1200
    await rig.interrupt(chat_id)
    await rig.wait_chat_task_left(chat_id)
    assert await rig.pool.fetch("SELECT * FROM open_calls") == []


async def test_a_call_that_the_provider_refuses_leaves_no_record(rig: EngineRig) -> None:
    rig.api.reply(401, {"error": {"message": "wrong key"}})
    await rig.wait_state(await rig.create(LONG), "E0")

    async def is_discarded() -> bool:
        return not await rig.pool.fetch("SELECT * FROM open_calls")

    await eventually(is_discarded)
    assert await rig.recorded_usage() == []


# Limits

LIMIT = SpendLimit(micros=20_000)
"""Two cents."""
STORY = "word " * 4_000
"""About 5,000 tokens, half a cent."""


async def interrupt_until_refused(rig: EngineRig, script: Callable[[Gate], None]) -> int:
    """How many answers were begun before the limit refused one; 12 if it refused none."""
    for number in range(12):
        gate = Gate()
        script(gate)
        chat_id = await rig.create(STORY)
        chat = await rig.wait_state(chat_id, "R0", "E0", "W")
        if chat.state == "R0":
            await wait_reached_or_refused(rig, chat_id, gate)
        if (await rig.chat(chat_id)).state == "E0":
            return number
        await rig.interrupt(chat_id)
        await rig.wait_chat_task_left(chat_id)
    return 12


async def wait_reached_or_refused(rig: EngineRig, chat_id: ChatId, gate: Gate) -> None:
    async def is_done() -> bool:
        return gate.reached.is_set() or (await rig.chat(chat_id)).state == "E0"

    await eventually(is_done)


async def test_interrupted_answers_reach_the_limit_without_told_usage(dsn: str) -> None:
    async with engine_rig(dsn, spend_limit=LIMIT) as rig:
        begun = await interrupt_until_refused(rig, lambda gate: rig.answer("Once", gate))
    assert begun == 3, "the fourth would surely pass the limit"


async def test_interrupted_answers_reach_the_limit_with_the_input_told_first(dsn: str) -> None:
    start = event(
        "message_start",
        message={"id": "msg_1", "model": "m", "usage": {"input_tokens": 9_990, "output_tokens": 1}},
    )
    async with (
        FakeAnthropic.running() as api,
        engine_rig_with(dsn, api, kind="anthropic", spend_limit=LIMIT) as rig,
    ):
        begun = await interrupt_until_refused(rig, lambda gate: api.script(start, gate))
        read = await rig.pool.fetch("SELECT DISTINCT input_tokens FROM usage_events")
    assert begun == 2, "the third would surely pass the limit"
    assert [row["input_tokens"] for row in read] == [9_990]


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_model_without_a_price_can_be_refused(dsn: str, *, refuses: bool) -> None:
    limit = SpendLimit(micros=1_000_000, refuses_unpriced=refuses)
    async with engine_rig(dsn, spend_limit=limit) as rig:
        rig.model.config = replace(rig.model.config, prices=None)
        chat = await rig.wait_chat_task_left(await rig.ask("hi", "hello"))
        if refuses:
            error = present(chat.last_error)
            assert error.kind == "config"
            assert "The model fake has no price" in error.message
            assert rig.api.requests == []
        else:
            assert chat.state == "W"
            answer = (await messages.load_history(rig.pool, HARNESS, chat.id))[-1]
            assert present(answer.usage).unpriced


async def test_usage_is_recorded_after_an_outage_of_the_database(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    async with (
        engine_rig_with(dsn, api, worker=NO_SLOTS) as observer,
        engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as rig,
    ):
        chat_id = await started(rig, gate)
        row = await rig.chat(chat_id)
        proxy.disconnect()
        entry = UsageEntry(kind="title", provider="p", model="m", usage=TokenUsage())
        rig.replica.usage_writer.record(row, (entry,))
        await rig.events.wait("usage_write_delayed", chat_id=chat_id)
        proxy.refuse(new=False)
        await rig.replica.usage_writer.wait_idle()
        kinds = await observer.pool.fetch("SELECT kind FROM usage_events WHERE kind = 'title'")
        assert len(kinds) == 1


async def test_a_call_with_an_unreadable_record_is_given_up_after_two_days(dsn: str) -> None:
    """Its reservation would count against the limits of its owner for ever."""
    async with engine_rig(dsn) as rig:
        for days in (1, 3):
            await rig.pool.execute(
                """INSERT INTO open_calls (call_id, at, owner_id, chat_id, root_chat_id, worker_id,
                       epoch, history_version, attempt, reserved_micros, record)
                   VALUES (gen_random_uuid(), now() - $2 * interval '25 hours', $1, $1, $1, $1, 1,
                       1, 1, 100, '{}')""",
                rig.owner,
                days,
            )
        await rig.replica.usage_writer.settle_abandoned()
        assert await rig.pool.fetchval("SELECT count(*) FROM open_calls") == 1


async def test_a_call_that_was_never_sent_costs_nothing_and_says_so(rig: EngineRig) -> None:
    """Of two calls of a dead worker one had not passed its check."""
    chat_id = await rig.create_unowned("hi")
    chat, gone = await rig.chat(chat_id), WorkerId(UUID(int=404))
    started = StartedCall(
        id=UUID(int=1), kind="turn", config=rig.model.config, usage=TokenUsage(input_tokens=3)
    )
    for number, sent in ((1, True), (2, False)):
        record = Raw(msgspec.json.encode(replace(started, id=UUID(int=number))))
        call = OpenCall(
            id=UUID(int=number),
            owner_id=chat.owner_id,
            chat_id=chat.id,
            root_chat_id=chat.root_chat_id,
            worker_id=gone,
            epoch=0,
            history_version=chat.history_version,
            attempt=1,
            reserved_micros=7,
            record=record,
            sent=sent,
        )
        await model_calls.write_open_calls(rig.pool, [call], [])
    await rig.replica.usage_writer.settle_workers([gone])
    found = await rig.pool.fetch("SELECT call_id FROM usage_events WHERE call_id IS NOT NULL")
    assert UUID(int=2) not in {row["call_id"] for row in found}
    assert UUID(int=1) in {row["call_id"] for row in found}
    assert (
        await rig.pool.fetchval("SELECT count(*) FROM open_calls WHERE worker_id = $1", gone) == 0
    )
    await rig.events.wait("call_never_sent", chat_id=chat_id)


async def test_a_call_that_is_stopped_before_its_request_is_sent_costs_nothing(
    rig: EngineRig,
) -> None:
    """The provider accepts the connection and never answers the TLS handshake."""
    connected = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        url = f"https://127.0.0.1:{port}/v1"
        rig.model.provider = build_provider(ProviderConfig(kind="openai-compat", base_url=url))
        chat_id = await rig.create("hi")
        await connected.wait()
        await rig.interrupt(chat_id)
        await rig.wait_state(chat_id, "W")
        await rig.model.provider.close()
    assert await rig.recorded_usage() == []

    async def is_closed() -> bool:
        return await rig.pool.fetchval("SELECT count(*) FROM open_calls") == 0

    await eventually(is_closed)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("limit", [None, SpendLimit(micros=1_000_000)], ids=["no limit", "limit"])
async def test_a_call_counts_as_sent_only_when_it_has_its_connection(
    dsn: str, limit: SpendLimit | None
) -> None:
    """A worker that dies while it connects has sent nothing."""
    connected = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with (
        engine_rig(dsn, spend_limit=limit) as rig,
        await asyncio.start_server(accept, "127.0.0.1", 0) as listener,
    ):
        provider, port = rig.model.provider, listener.sockets[0].getsockname()[1]
        url = f"https://127.0.0.1:{port}/v1"
        rig.model.provider = build_provider(ProviderConfig(kind="openai-compat", base_url=url))
        chat_id = await rig.create("hi")
        await connected.wait()
        assert await marks(rig) in ([], [False])
        await rig.interrupt(chat_id)
        await rig.wait_state(chat_id, "W")
        await rig.model.provider.close()
        rig.model.provider, gate = provider, Gate()
        rig.answer("hello", gate)
        await rig.send(chat_id, "again")
        await gate.reached.wait()
        assert await marks(rig) == [True]
        gate.open()
        await rig.wait_state(chat_id, "W")


async def marks(rig: EngineRig) -> list[bool]:
    return [row["sent"] for row in await rig.pool.fetch("SELECT sent FROM open_calls ORDER BY at")]


@pytest.mark.parametrize("words", [(), (STREAMED,)], ids=["in silence", "while it streams"])
async def test_a_stopped_call_books_the_input_as_its_provider_counts_it(
    rig: EngineRig, gate: Gate, words: tuple[str, ...]
) -> None:
    """This provider counts twice as many tokens as chatd estimates."""
    rig.answer("hello", input_tokens=2 * 1_007)
    await rig.wait_chat_task_left(await rig.create(LONG))
    chat_id = await rig.ask(LONG, *words, gate)
    if words:
        await rig.wait_shown(chat_id, "said")
    await rig.interrupt(chat_id)
    await rig.wait_chat_task_left(chat_id)
    await rig.replica.usage_writer.wait_idle()
    rows = await rig.pool.fetch("SELECT input_tokens, estimated FROM usage_events ORDER BY id")
    assert [row["estimated"] for row in rows] == [False, True]
    assert abs(rows[1]["input_tokens"] - rows[0]["input_tokens"]) < 20


def told(**usage: int) -> bytes:
    message = {"id": "msg_1", "model": "m", "usage": {"output_tokens": 1, **usage}}
    return event("message_start", message=message)


async def test_a_call_stopped_in_silence_costs_what_one_that_is_stopped_while_it_streams_does(
    dsn: str,
) -> None:
    """On the wire that tells the input first. The provider counts twice what chatd estimates."""
    cached = told(input_tokens=14, cache_read_input_tokens=1_000, cache_creation_input_tokens=1_000)
    async with (
        FakeAnthropic.running() as api,
        engine_rig_with(dsn, api, kind="anthropic") as rig,
    ):
        for script in ((told(input_tokens=2 * 1_007),), (), (cached,), ()):
            gate = Gate()
            if script:
                api.script(*script, gate)
            else:
                api.scripted.append(Reply(held=gate))
            chat_id = await rig.create(LONG)
            await gate.reached.wait()
            await rig.interrupt(chat_id)
            await rig.wait_chat_task_left(chat_id)
        await rig.replica.usage_writer.wait_idle()
        rows = await rig.pool.fetch("SELECT input_tokens, estimated FROM usage_events ORDER BY id")
        assert [row["estimated"] for row in rows] == [True] * 4
        streamed, silent, _, after_cached = (row["input_tokens"] for row in rows)
        assert streamed == 2 * 1_007
        assert abs(silent - streamed) < 20
        assert abs(after_cached - streamed) < 20


async def test_a_call_stopped_in_silence_after_a_cached_one_costs_the_price_of_the_cache(
    dsn: str,
) -> None:
    async with (
        FakeAnthropic.running() as api,
        engine_rig_with(dsn, api, kind="anthropic") as rig,
    ):
        start = told(input_tokens=7, cache_creation_input_tokens=1_000)
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": "hello"}
        api.script(
            start,
            event("content_block_start", index=0, content_block=block),
            event("content_block_delta", index=0, delta=delta),
            event("content_block_stop", index=0),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}),
            event("message_stop"),
        )
        chat_id = await rig.create(LONG)
        await rig.wait_chat_task_left(chat_id)
        gate = Gate()
        api.scripted.append(Reply(held=gate))
        await rig.send(chat_id, "again")
        await gate.reached.wait()
        await rig.interrupt(chat_id)
        await rig.wait_state(chat_id, "W")
        await rig.replica.usage_writer.wait_idle()
        rows = await rig.pool.fetch(
            "SELECT input_tokens, cache_read_tokens, estimated FROM usage_events ORDER BY id"
        )
        assert (rows[1]["estimated"], rows[1]["cache_read_tokens"]) == (True, 1_000)
        assert rows[1]["input_tokens"] < 50
