"""Versions of messages: kept when a line is replaced, shown again, and removed as a whole."""

import asyncio
from datetime import timedelta
from itertools import count

import pytest

from chatd.domain.chat.commands import ChatCommand, ChooseVersion, EditMessage, SendMessage
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import finish_turn
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.ids import ChangeId, MessageId
from chatd.store import search
from chatd.store.chat import chats, versions
from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from chatd.store.deployment import retention
from tests.support.domain.history_lines import history_lines
from tests.support.eventually import eventually
from tests.support.factories import CHAT, HARNESS, WORKER, draft, prompt, text
from tests.support.operations import operation
from tests.support.outcomes import present, raised
from tests.support.seeds import Seed, step
from tests.support.store import has_lock_waiter, insert_seed, write
from tests.support.stored import stored

FIRST = MessageId(2)


class EditedChat:
    """A chat with the messages «first» and «One.», and what its user does with it."""

    def __init__(self, pool: Pool, transactor: Transactor) -> None:
        self._pool = pool
        self._transactor = transactor
        self._numbers = count(1)

    async def run(self, command: ChatCommand) -> Chat:
        done = operation(command, ChangeId(next(self._numbers)), free=WORKER)
        return (await self._transactor.run(done)).chat

    async def choose(self, message_id: int) -> Chat:
        return await self.run(ChooseVersion(message_id=MessageId(message_id)))

    async def edit(self, message_id: int, words: str) -> int:
        """Edit, and answer; the id of the new message."""
        command = EditMessage(message_id=MessageId(message_id), prompt=prompt(words))
        return await self._answer(await self.run(command), words)

    async def send(self, words: str) -> int:
        return await self._answer(await self.run(SendMessage(prompt=prompt(words))), words)

    async def _answer(self, chat: Chat, words: str) -> int:
        answer = draft("assistant", text(f"to {words}"))
        await write(self._pool, finish_turn(chat, step(chat, answer)), next(self._numbers))
        return present(chat.turn_message_id)

    async def lines(self) -> list[str]:
        return history_lines((await stored(self._pool))[CHAT].messages)

    async def listed(self) -> list[list[int]]:
        found = await versions.list_groups(self._pool, HARNESS, CHAT, MessageId(0), limit=10)
        return [[one.message_id for one in group] for group in found]


@pytest.fixture
async def edited(pool: Pool, transactor: Transactor) -> EditedChat:
    await insert_seed(pool, Seed(state=State.W))
    return EditedChat(pool, transactor)


@pytest.mark.promise("P1")
async def test_a_version_brings_back_its_line_and_the_versions_within_it(
    edited: EditedChat, pool: Pool
) -> None:
    second = await edited.send("second")
    better = await edited.edit(second, "better")
    with_better = await edited.lines()
    other = await edited.edit(FIRST, "other")
    assert await edited.listed() == [[FIRST, other]]
    unreachable = await raised(Conflict, edited.choose(second))
    assert unreachable.code == "version_not_reachable"
    chat = await edited.choose(FIRST)
    assert (await edited.lines(), chat.turn_message_id) == (with_better, better)
    assert await edited.listed() == [[FIRST, other], [second, better]]
    await edited.choose(second)
    assert (await edited.lines())[-1] == "assistant: to second"
    await edited.choose(other)
    assert await edited.lines() == ["user: other", "assistant: to other"]
    row = await edited.choose(FIRST)
    assert (await edited.lines())[-1] == "assistant: to second"
    assert await edited.choose(FIRST) == row, "shown already"
    await raised(NotFound, edited.choose(row.next_message_id))
    assert await chats.get(pool, HARNESS, CHAT) == row


async def test_a_third_version_joins_the_others_and_a_new_message_follows_the_shown_one(
    edited: EditedChat,
) -> None:
    two = await edited.edit(FIRST, "two")
    three = await edited.edit(two, "three")
    await edited.choose(FIRST)
    await edited.send("more")
    assert await edited.listed() == [[FIRST, two, three]]
    await edited.choose(two)
    await edited.choose(FIRST)
    assert (await edited.lines())[-2:] == ["user: more", "assistant: to more"]


async def test_a_search_finds_the_shown_version_only(edited: EditedChat, pool: Pool) -> None:
    async def found(word: str) -> int:
        while await search.index_batch(pool):
            pass
        return len((await search.find_in_chat(pool, HARNESS, CHAT, (word,))).message_ids)

    await edited.edit(FIRST, "zebra")
    assert (await found("first"), await found("zebra")) == (0, 2)
    await edited.choose(FIRST)
    assert (await found("first"), await found("zebra")) == (1, 0)


async def test_a_batch_of_the_search_index_leaves_no_pending_entries(
    edited: EditedChat, pool: Pool
) -> None:
    """Every search would read them all."""
    await edited.edit(FIRST, "zebra")
    while await search.index_batch(pool):
        pass
    assert await pool.fetchval("SELECT gin_clean_pending_list('chat_search_texts_grams')") == 0
    await pool.execute("UPDATE chat_search_texts SET grams = grams || 1")
    assert await pool.fetchval("SELECT gin_clean_pending_list('chat_search_texts_grams')") > 0


@pytest.mark.promise("P3")
async def test_of_two_choices_at_once_one_waits_for_the_other(
    edited: EditedChat, pool: Pool
) -> None:
    two = await edited.edit(FIRST, "two")
    three = await edited.edit(two, "three")
    async with asyncio.timeout(30), asyncio.TaskGroup() as group, pool.transaction() as held:
        await chats.lock(held, CHAT)
        tasks = [group.create_task(edited.choose(one)) for one in (FIRST, two)]
        await eventually(lambda: has_lock_waiter(pool))
    rows = [task.result() for task in tasks]
    last = max(rows, key=lambda row: row.snapshot_version)
    words = "One." if last.turn_message_id == FIRST else "to two"
    assert (await edited.lines())[-1] == f"assistant: {words}"
    assert {row.snapshot_version for row in rows} == {
        last.snapshot_version - 1,
        last.snapshot_version,
    }
    assert await edited.listed() == [[FIRST, two, three]]


async def test_retention_removes_a_version_as_a_whole(edited: EditedChat, pool: Pool) -> None:
    """Its first batch takes one message of the line only."""
    two = await edited.edit(FIRST, "two")
    assert await retention.clear_deleted_messages(pool, timedelta(0), max_bytes=1) == 1
    assert await edited.listed() == []
    await raised(NotFound, edited.choose(FIRST))
    assert await retention.clear_deleted_messages(pool, timedelta(0)) == 1
    assert await retention.clear_deleted_messages(pool, timedelta(0)) == 0
    await edited.edit(two, "three")
    assert len(await edited.listed()) == 1


async def test_retention_leaves_a_line_that_is_being_shown_again(
    edited: EditedChat, pool: Pool
) -> None:
    await edited.edit(FIRST, "two")
    async with pool.transaction() as choosing:
        assert present(await versions.lock_version(choosing, CHAT, FIRST)).is_whole
        assert await retention.clear_deleted_messages(pool, timedelta(0)) == 0
    await edited.choose(FIRST)
    assert await edited.lines() == ["user: first", "assistant: One."]


async def test_a_line_that_loses_its_content_meanwhile_is_not_shown(
    edited: EditedChat, pool: Pool
) -> None:
    await edited.edit(FIRST, "two")
    before = await edited.lines()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group, pool.transaction() as held:
        assert await retention.clear_deleted_messages(held, timedelta(0)) == 2
        choosing = group.create_task(raised(NotFound, edited.choose(FIRST)))
        await eventually(lambda: has_lock_waiter(pool))
    assert choosing.result().code == "not_found"
    assert await edited.lines() == before


async def test_a_line_that_an_earlier_release_replaced_has_no_versions(
    edited: EditedChat, pool: Pool
) -> None:
    """Its replicas delete and append without a row."""
    two = await edited.edit(FIRST, "two")
    await pool.execute("DELETE FROM chat_message_versions WHERE message_id = $1", two)
    assert await edited.listed() == []
    unreachable = await raised(Conflict, edited.choose(FIRST))
    assert unreachable.code == "version_not_reachable"
    three = await edited.edit(two, "three")
    assert await edited.listed() == [[two, three]]
    outcome = await edited.choose(three)
    assert outcome.status == "waiting"
