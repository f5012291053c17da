"""Open calls: written before a request, deleted with the usage event, found after a death."""

from itertools import count
from uuid import UUID

import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.chat.messages import TokenUsage, UsageEntry
from chatd.domain.chat.row import Chat
from chatd.domain.chat.worker_transitions import commit_step
from chatd.domain.ids import WorkerId
from chatd.store.database.pool import Pool
from chatd.store.model import model_calls
from chatd.store.model.model_calls import OpenCall, Payer
from tests.support.factories import WORKER, draft, text
from tests.support.seeds import step
from tests.support.store import open_chat, write

pytestmark = [pytest.mark.promise("P11"), pytest.mark.stock_server]

NUMBERS = count(1)
GONE = WorkerId(UUID(int=404))


def call_of(chat: Chat, *, worker: WorkerId = WORKER) -> OpenCall:
    return OpenCall(
        id=UUID(int=next(NUMBERS)),
        owner_id=chat.owner_id,
        chat_id=chat.id,
        root_chat_id=chat.root_chat_id,
        worker_id=worker,
        epoch=chat.epoch,
        history_version=chat.history_version,
        attempt=chat.attempt,
        reserved_micros=7,
        record=Raw(b'{"a":1}'),
    )


def entry_of(call: OpenCall) -> UsageEntry:
    return UsageEntry(
        kind="turn", provider="p", model="m", usage=TokenUsage(input_tokens=1), call_id=call.id
    )


async def ids(pool: Pool) -> set[UUID]:
    return {row["call_id"] for row in await pool.fetch("SELECT call_id FROM open_calls")}


async def test_a_call_that_is_written_twice_is_one_row(pool: Pool) -> None:
    call = call_of(await open_chat(pool, 1))
    await model_calls.write_open_calls(pool, [call], [])
    await model_calls.write_open_calls(pool, [call], [])
    assert await model_calls.list_of_workers(pool, [WORKER]) == [call]


async def test_a_call_that_was_written_before_its_check_is_marked_as_sent_once(pool: Pool) -> None:
    """A late repeat of the first write does not take the mark back."""
    chat = await open_chat(pool, 1)
    unsent = replace(call_of(chat), sent=False)
    for call, expected in ((unsent, False), (replace(unsent, sent=True), True), (unsent, True)):
        await model_calls.write_open_calls(pool, [call], [])
        assert await pool.fetchval("SELECT sent FROM open_calls") is expected


async def test_a_call_that_was_sent_meanwhile_is_not_forgotten_as_unsent(pool: Pool) -> None:
    """Its worker was stalled, not dead."""
    unsent = replace(call_of(await open_chat(pool, 1)), sent=False)
    await model_calls.write_open_calls(pool, [replace(unsent, sent=True)], [])
    assert not await model_calls.forget_unsent(pool, unsent.id)
    other = replace(call_of(await open_chat(pool, 2)), sent=False)
    await model_calls.write_open_calls(pool, [other], [])
    assert await model_calls.forget_unsent(pool, other.id)
    assert await ids(pool) == {unsent.id}


async def test_one_statement_writes_some_calls_and_deletes_others(pool: Pool) -> None:
    chat = await open_chat(pool, 1)
    unsent, kept, new = call_of(chat), call_of(chat), call_of(chat)
    await model_calls.write_open_calls(pool, [unsent, kept], [])
    await model_calls.write_open_calls(pool, [new], [unsent.id, UUID(int=99_999)])
    assert await ids(pool) == {kept.id, new.id}


async def test_usage_outside_a_commit_closes_its_call_only(pool: Pool) -> None:
    chat = await open_chat(pool, 1)
    paid, other = call_of(chat), call_of(chat)
    await model_calls.write_open_calls(pool, [paid, other], [])
    assert await model_calls.insert_usage(pool, Payer.of(chat), entry_of(paid))
    assert await ids(pool) == {other.id}


async def test_a_call_that_has_its_usage_is_closed_without_a_second_event(pool: Pool) -> None:
    chat = await open_chat(pool, 1)
    call = call_of(chat)
    await model_calls.insert_usage(pool, Payer.of(chat), entry_of(call))
    await model_calls.write_open_calls(pool, [call], [])
    assert not await model_calls.insert_usage(pool, Payer.of(chat), entry_of(call), corrects=False)
    assert await ids(pool) == set()
    assert await pool.fetchval("SELECT count(*) FROM usage_events") == 1


@pytest.mark.parametrize("calls", [1, 3])
async def test_a_commit_closes_the_calls_that_it_records(pool: Pool, calls: int) -> None:
    chat = await open_chat(pool, 1, free=WORKER)
    paid, other = [call_of(chat) for _ in range(calls)], call_of(chat)
    await model_calls.write_open_calls(pool, [*paid, other], [])
    entries = tuple(map(entry_of, paid))
    await write(pool, commit_step(chat, step(chat, draft("assistant", text("Hi.")), usage=entries)))
    assert await ids(pool) == {other.id}
    assert await pool.fetchval("SELECT count(*) FROM usage_events") == calls


async def test_only_calls_of_earlier_owners_are_found_by_chat(pool: Pool) -> None:
    chat = await open_chat(pool, 1)
    before = call_of(replace(chat, epoch=4))
    own = call_of(replace(chat, epoch=5))
    await model_calls.write_open_calls(pool, [before, own], [])
    assert await model_calls.list_before(pool, replace(chat, epoch=5)) == [before]


async def test_calls_of_workers_that_are_gone_are_abandoned_after_half_a_minute(pool: Pool) -> None:
    chat = await open_chat(pool, 1)
    call = call_of(chat, worker=GONE)
    await model_calls.write_open_calls(pool, [call], [])
    assert await model_calls.list_abandoned(pool) == []
    await pool.execute("UPDATE open_calls SET at = at - interval '31 s'")
    assert await model_calls.list_abandoned(pool) == [call]
    await pool.execute(
        "INSERT INTO chat_workers (worker_id, lock_key, lease_until) VALUES ($1, 1, now())",
        call.worker_id,
    )
    assert await model_calls.list_abandoned(pool) == []
