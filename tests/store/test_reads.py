"""Reading a chat: the prompt's history, pages for clients, and changes since a version."""

import asyncio
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import EditMessage, SendMessage
from chatd.domain.chat.messages import Draft, Message
from chatd.domain.chat.parts import BoundaryPart, TextPart
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.transitions import LoadedChat
from chatd.domain.chat.user_transitions import edit_message, send_message
from chatd.domain.chat.worker_transitions import commit_step, finish_turn
from chatd.domain.ids import ChangeId, MessageId
from chatd.domain.prompt.compaction import is_compactable, rows_for_prompt
from chatd.store.chat import chats, message_pages, messages
from chatd.store.chat.chats import ChatChanges
from chatd.store.chat.message_pages import StoredMessagePage
from chatd.store.chat.operation import Operation
from chatd.store.database.pool import Pool
from tests.support.factories import CHAT, HARNESS, WORKER, call, draft, prompt, result, text
from tests.support.operations import deciding, deciding_transactor, operation
from tests.support.outcomes import present
from tests.support.seeds import Seed, step
from tests.support.store import AppliedRecorder, chat_id, insert_seed, open_chat, write
from tests.support.stored import stored


async def send(pool: Pool, chat: Chat, words: str) -> Chat:
    command = SendMessage(prompt=prompt(words))
    return (await write(pool, send_message(chat, command, WORKER))).chat


async def answer(pool: Pool, chat: Chat, *drafts: Draft) -> Chat:
    return (await write(pool, finish_turn(chat, step(chat, *drafts)))).chat


async def edit(pool: Pool, chat: Chat, message_id: int, words: str) -> Chat:
    loaded = await chats.load_for_transition(
        pool, HARNESS, CHAT, "chats.write", message_id=MessageId(message_id)
    )
    assert loaded is not None
    command = EditMessage(message_id=MessageId(message_id), prompt=prompt(words))
    return (await write(pool, edit_message(chat, loaded.target, command, WORKER))).chat


def spoken(rows: list[Message] | tuple[Message, ...]) -> list[str]:
    return [part.text for row in rows for part in row.content if isinstance(part, TextPart)]


SUMMARY = (
    draft("user", text("In short."), visibility="model", compressed=True),
    draft("assistant", call("s1", "compact"), visibility="user", compressed=True),
    draft("tool", result("s1", "compact"), visibility="both", compressed=True),
)


async def compacted(pool: Pool, *marks: BoundaryPart) -> Chat:
    """A system text, an answered question, another one with a summary before its answer."""
    before = (
        draft("system", text("Be kind."), visibility="model"),
        draft("system", text("For people."), visibility="user"),
    )
    chat = await open_chat(pool, CHAT.int, free=WORKER, before=before, prompt=prompt("one"))
    chat = await answer(pool, chat, draft("assistant", text("One.")))
    chat = await send(pool, chat, "two")
    boundary = replace(SUMMARY[0], content=(*SUMMARY[0].content, *marks))
    rows = step(chat, boundary, *SUMMARY[1:], compacted=True)
    chat = (await write(pool, commit_step(chat, rows))).chat
    return await answer(pool, chat, draft("assistant", text("Two.")))


# History


async def test_without_a_summary_the_history_is_everything_that_is_not_deleted(
    pool: Pool,
) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    chat = await send(pool, chat, "two")
    chat = await edit(pool, chat, 4, "three")
    history = await messages.load_history(pool, HARNESS, CHAT)
    assert spoken(history) == ["Be kind.", "first", "One.", "three"]
    assert [row.id for row in history] == [1, 2, 3, 5]
    assert history == [row for row in (await stored(pool))[CHAT].messages if not row.deleted]


async def test_before_the_newest_summary_only_system_texts_for_the_model_count(pool: Pool) -> None:
    await compacted(pool)
    history = await messages.load_history(pool, HARNESS, CHAT)
    assert spoken(history) == ["Be kind.", "In short.", "Two."]
    assert [row.id for row in history] == sorted(row.id for row in history)


async def test_the_prompt_is_the_same_from_history_and_from_all_rows(
    pool: Pool,
) -> None:
    chat = await compacted(pool)
    chat = await send(pool, chat, "three")
    chat = (await write(pool, commit_step(chat, step(chat, *SUMMARY)))).chat
    await answer(pool, chat, draft("assistant", text("Three.")))
    everything = list((await stored(pool))[CHAT].messages)
    shown = rows_for_prompt(await messages.load_history(pool, HARNESS, CHAT))
    assert shown == rows_for_prompt(everything)
    assert spoken(shown) == ["Be kind.", "In short.", "Three."]


@pytest.mark.covers("compaction-15")
@pytest.mark.parametrize(
    ("mark", "words"),
    [
        (BoundaryPart(kept=2), ["Be kind.", "In short.", "One.", "two", "Two."]),
        (BoundaryPart(kept=1, keeps_prompt=True), ["Be kind.", "In short.", "one", "two", "Two."]),
        (BoundaryPart(keeps_prompt=True), ["Be kind.", "In short.", "two", "Two."]),
        (BoundaryPart(kept=99), ["In short.", "Be kind.", "one", "One.", "two", "Two."]),
    ],
)
async def test_the_messages_that_a_summary_keeps_are_read(
    pool: Pool, mark: BoundaryPart, words: list[str]
) -> None:
    await compacted(pool, mark)
    everything = list((await stored(pool))[CHAT].messages)
    read = await messages.load_history(pool, HARNESS, CHAT)
    assert spoken(rows_for_prompt(read)) == words
    assert rows_for_prompt(read) == rows_for_prompt(everything)


@pytest.mark.parametrize("marks", [(), (BoundaryPart(kept=1),), (BoundaryPart(keeps_prompt=True),)])
async def test_a_chat_without_an_answer_since_its_summary_is_compactable_if_that_keeps_messages(
    pool: Pool, marks: tuple[BoundaryPart, ...]
) -> None:
    chat = await compacted(pool)
    assert await messages.is_compactable(pool, HARNESS, CHAT)
    chat = await send(pool, chat, "three")
    boundary = replace(SUMMARY[0], content=(*SUMMARY[0].content, *marks))
    await write(pool, commit_step(chat, step(chat, boundary, *SUMMARY[1:], compacted=True)))
    assert await messages.is_compactable(pool, HARNESS, CHAT) is bool(marks)
    assert is_compactable(await messages.load_history(pool, HARNESS, CHAT)) is bool(marks)


@pytest.mark.parametrize("kept", [-5, 10**18, 10**30])
async def test_a_summary_with_a_forged_mark_keeps_no_message(pool: Pool, kept: int) -> None:
    """As an import may have one."""
    await compacted(pool, BoundaryPart(kept=kept))
    read = await messages.load_history(pool, HARNESS, CHAT)
    assert spoken(rows_for_prompt(read)) == ["Be kind.", "In short.", "Two."]


async def test_a_deleted_summary_restores_the_messages_before_it(pool: Pool) -> None:
    chat = await compacted(pool)
    await edit(pool, chat, 5, "two again")
    assert spoken(await messages.load_history(pool, HARNESS, CHAT)) == [
        "Be kind.",
        "For people.",
        "one",
        "One.",
        "two again",
    ]


async def test_of_a_history_beyond_the_limit_the_newest_messages_and_the_system_texts_are_read(
    pool: Pool,
) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    for number in range(3):
        chat = await send(pool, chat, f"question {number}")
        chat = await answer(pool, chat, draft("assistant", text("x" * 1000)))
    history = await messages.load_history(pool, HARNESS, CHAT, max_bytes=1500)
    assert spoken(history) == ["Be kind.", "x" * 1000, "question 2", "x" * 1000]
    assert spoken(await messages.load_history(pool, HARNESS, CHAT, max_bytes=1))[-1] == "x" * 1000
    assert spoken(await messages.load_history(pool, HARNESS, CHAT))[1] == "first"


async def test_the_history_of_a_chat_is_its_own(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    await open_chat(pool, 7, prompt=prompt("elsewhere"))
    assert spoken(await messages.load_history(pool, HARNESS, chat_id(7))) == ["elsewhere"]
    assert await messages.load_history(pool, HARNESS, chat_id(8)) == []


# Pages


async def page(
    pool: Pool,
    *,
    before: MessageId | None = None,
    after: MessageId | None = None,
    limit: int = 50,
    max_bytes: int = 10_000,
) -> StoredMessagePage:
    which = message_pages.MessageRange(before=before, after=after, limit=limit, max_bytes=max_bytes)
    return present(await message_pages.load_page(pool, HARNESS, CHAT, which))


def ids(rows: Iterable[Message]) -> list[int]:
    return [row.id for row in rows]


async def test_a_page_shows_what_users_may_see_newest_first(pool: Pool) -> None:
    await compacted(pool)
    rows = (await page(pool)).messages
    assert ids(rows) == [9, 8, 7, 5, 4, 3, 2]
    assert all(row.visibility != "model" for row in rows)


async def test_pages_follow_each_other_without_gaps(pool: Pool) -> None:
    await compacted(pool)
    whole = (await page(pool)).messages
    first = await page(pool, limit=3)
    rest = await page(pool, before=first.messages[-1].id)
    assert (first.has_more, rest.has_more) == (True, False)
    assert first.messages + rest.messages == whole
    assert ids((await page(pool, after=whole[2].id)).messages) == [8, 9]
    assert (await page(pool, before=whole[-1].id)).messages == ()


async def test_a_deleted_message_is_on_no_page(pool: Pool) -> None:
    chat = await compacted(pool)
    await edit(pool, chat, 5, "two again")
    assert ids((await page(pool)).messages) == [10, 4, 3, 2]


async def test_a_page_ends_at_its_byte_limit_in_both_directions(pool: Pool) -> None:
    """A page has at least one message, however large."""
    await compacted(pool)
    for before, after, first in ((None, None, 9), (9, None, 8), (None, 2, 3)):
        found = await page(
            pool,
            before=None if before is None else MessageId(before),
            after=None if after is None else MessageId(after),
            max_bytes=1,
        )
        assert (ids(found.messages), found.has_more) == ([first], True)
    size = len(await pool.fetchval("SELECT content::text FROM chat_messages WHERE id = 9"))
    assert ids((await page(pool, max_bytes=size)).messages) == [9]
    assert ids((await page(pool, max_bytes=size + 1)).messages) == [9, 8]


# Since a version


async def since(
    pool: Pool, version: int, *, most: int = 1000, max_bytes: int = 10_000
) -> ChatChanges:
    found = await chats.load_changes_since(
        pool, HARNESS, CHAT, version, limit=most, max_bytes=max_bytes
    )
    assert found is not None
    return found


async def test_a_new_viewer_gets_everything_but_what_is_deleted(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.R1, plain=2, steer=1))
    chat = await edit(pool, chat, 4, "instead")
    chat = await send(pool, chat, "later")
    everything = (await stored(pool))[CHAT]
    assert await since(pool, 0) == ChatChanges(
        chat=chat,
        messages=tuple(row for row in everything.messages if not row.deleted),
        queue=everything.queue,
        truncated=False,
    )


async def test_a_viewer_of_a_large_chat_gets_the_newest_of_it(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    was = chat.snapshot_version
    chat = await send(pool, chat, "two")
    whole = await since(pool, 0, max_bytes=1)
    assert (spoken(whole.messages), whole.truncated) == (["two"], True)
    newer = await since(pool, was - 1, max_bytes=1)
    assert (spoken(newer.messages), newer.truncated) == (["two"], True)
    assert (await since(pool, was, max_bytes=1)).truncated is False


async def test_a_viewer_that_resumes_gets_rows_by_revision(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    was = chat.snapshot_version
    chat = await send(pool, chat, "two")
    found = await since(pool, was)
    assert spoken(found.messages) == ["two"]
    assert found.queue is None
    assert found.chat == chat
    nothing = await since(pool, chat.snapshot_version)
    assert nothing == ChatChanges(chat=chat, messages=(), queue=None, truncated=False)


async def test_a_deleted_message_comes_as_its_id_without_content(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    chat = await send(pool, chat, "secret")
    was = chat.snapshot_version
    await edit(pool, chat, 4, "public")
    found = await since(pool, was)
    assert [(row.id, row.deleted, row.content) for row in found.messages] == [
        (4, True, ()),
        (5, False, (text("public"),)),
    ]


async def test_the_queue_comes_whole_if_it_changed_and_not_at_all_if_not(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.R1, plain=2))
    before_queue, queued = 3, (await stored(pool))[CHAT].queue
    assert (await since(pool, before_queue)).queue == queued
    assert (await since(pool, chat.snapshot_version)).queue is None
    chat = await edit(pool, chat, 4, "clears the queue")
    assert (await since(pool, chat.snapshot_version - 1)).queue == ()


async def test_of_too_many_messages_the_newest_come_and_the_rest_is_indicated(pool: Pool) -> None:
    await compacted(pool)
    some = await since(pool, 1, most=2)
    assert ([row.id for row in some.messages], some.truncated) == ([8, 9], True)
    all_of_them = await since(pool, 1, most=6)
    assert ([row.id for row in all_of_them.messages], all_of_them.truncated) == (
        [4, 5, 6, 7, 8, 9],
        False,
    )
    whole = await since(pool, 0, most=9)
    assert (len(whole.messages), whole.truncated) == (9, False)
    assert (await since(pool, 0, most=8)).truncated


async def test_a_missing_chat_has_no_changes(pool: Pool) -> None:
    assert await chats.get(pool, HARNESS, CHAT) is None
    assert (
        await chats.load_for_transition(pool, HARNESS, CHAT, "chats.write", with_queue=True) is None
    )
    assert await chats.load_changes_since(pool, HARNESS, CHAT, 0) is None
    assert await chats.load_changes_since(pool, HARNESS, CHAT, 5) is None


@pytest.mark.promise("P8")
async def test_a_read_during_writes_has_one_version(pool: Pool) -> None:
    """Messages, queue and row of every read have the same version."""
    await insert_seed(pool, Seed(state=State.R0))
    transactor = deciding_transactor(pool, AppliedRecorder())
    seen: set[int] = set()

    async def talk() -> None:
        number = 0
        while len(seen) < 40:
            number += 1
            await transactor.run(_chatter(number))

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(talk())
        while len(seen) < 40:
            found = await since(pool, 0)
            newest = max(row.revision for row in found.messages)
            assert newest == found.chat.history_version <= found.chat.snapshot_version
            assert len(found.queue or ()) == found.chat.queue_len
            assert [row.id for row in found.messages][-1] == found.chat.next_message_id - 1
            loaded = present(
                await chats.load_for_transition(pool, HARNESS, CHAT, "chats.write", with_queue=True)
            )
            assert len(loaded.queue) == loaded.chat.queue_len
            seen.add(found.chat.snapshot_version)


def _chatter(number: int) -> Operation:
    """A turn that ends, with the next message waiting: history and queue move together."""

    def decide(loaded: LoadedChat) -> Change:
        chat = loaded.chat
        if chat.queue_len < 2:
            return send_message(chat, SendMessage(prompt=prompt(f"{number}")), WORKER)
        return finish_turn(chat, step(chat, draft("assistant", text("Yes."))))

    return operation(deciding(decide), ChangeId(number))
