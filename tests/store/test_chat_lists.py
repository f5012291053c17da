"""Lists of chats, and columns that users set without a transition."""

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from chatd.domain.chat.commands import SendMessage, UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import archive, send_message, unarchive
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import ChangeId, ChatId, UserId
from chatd.store.chat import chats
from chatd.store.chat.chats import ChatListFilter
from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from tests.support.factories import CHAT, HARNESS, OWNER, member, prompt
from tests.support.operations import operation
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import (
    AppliedRecorder,
    age,
    chat_id,
    insert_seed,
    open_chat,
    open_child,
    write,
)

EVERYTHING = ChatListFilter()
STRANGER = UserId(UUID(int=99))


async def listed(
    pool: Pool, which: ChatListFilter = EVERYTHING, *, owner: UserId = OWNER
) -> list[int]:
    return [chat.id.int for chat in await chats.list_roots(pool, member(owner), which)]


async def at_one_moment(pool: Pool) -> None:
    await pool.execute("UPDATE chats SET updated_at = '2026-03-27 09:00:00.123456+00'")


def place(chat: Chat) -> tuple[datetime, ChatId]:
    return chat.updated_at, chat.id


# Lists


async def test_the_most_recently_updated_chat_comes_first(pool: Pool) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number)
    assert await listed(pool) == [3, 2, 1]
    first = present(await chats.get(pool, HARNESS, chat_id(1)))
    await write(pool, send_message(first, SendMessage(prompt=prompt("up")), None))
    assert await listed(pool) == [1, 3, 2]


async def test_only_the_owners_root_chats_are_listed(pool: Pool) -> None:
    await open_chat(pool, 1)
    await open_chat(pool, 2, owner_id=STRANGER)
    await open_child(pool, 3, root=1)
    assert await listed(pool) == [1]
    assert await listed(pool, owner=STRANGER) == [2]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
async def test_pages_of_chats_updated_at_one_moment_neither_repeat_nor_skip(
    pool: Pool, limit: int
) -> None:
    for number in range(1, 8):
        await open_chat(pool, number)
    await at_one_moment(pool)
    await age(pool, [chat_id(2), chat_id(5)], seconds=0.000001)
    seen: list[int] = []
    after: tuple[datetime, ChatId] | None = None
    for _ in range(8):
        page = await chats.list_roots(pool, member(), ChatListFilter(after=after, limit=limit))
        seen += [chat.id.int for chat in page]
        if len(page) < limit:
            break
        after = place(page[-1])
    assert seen == [7, 6, 4, 3, 1, 5, 2]


async def test_archived_chats_are_a_list_of_their_own(pool: Pool) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number)
    second = present(await chats.get(pool, HARNESS, chat_id(2)))
    shelved = (await write(pool, archive(second))).chat
    assert await listed(pool) == [3, 1]
    assert await listed(pool, ChatListFilter(archived=True)) == [2]
    await write(pool, unarchive(shelved))
    assert await listed(pool) == [2, 3, 1]


async def test_a_list_can_be_narrowed_by_labels(pool: Pool) -> None:
    await open_chat(pool, 1, labels={"team": "red", "kind": "bug"})
    await open_chat(pool, 2, labels={"team": "red"})
    await open_chat(pool, 3, labels={"team": "blue", "kind": "bug"})
    await open_chat(pool, 4)

    async def with_labels(**labels: str) -> list[int]:
        return await listed(pool, ChatListFilter(labels=labels))

    assert await with_labels(team="red") == [2, 1]
    assert await with_labels(kind="bug") == [3, 1]
    assert await with_labels(team="red", kind="bug") == [1]
    assert await with_labels(team="green") == []
    assert await with_labels() == [4, 3, 2, 1]


async def test_a_labelled_list_has_pages_too(pool: Pool) -> None:
    for number in range(1, 6):
        await open_chat(pool, number, labels={"team": "red" if number % 2 else "blue"})
    await at_one_moment(pool)
    red = ChatListFilter(labels={"team": "red"}, limit=2)
    first = await chats.list_roots(pool, member(), red)
    rest = ChatListFilter(labels={"team": "red"}, after=place(first[-1]))
    assert [chat.id.int for chat in first] == [5, 3]
    assert await listed(pool, rest) == [1]


async def test_the_children_of_many_roots_come_in_one_read(pool: Pool) -> None:
    for root in (1, 2, 3):
        await open_chat(pool, root)
    await open_child(pool, 11, root=1)
    await open_child(pool, 21, root=2)
    await open_child(pool, 10, root=1, parent=11)
    found = await chats.list_children(pool, HARNESS, [chat_id(1), chat_id(2)])
    assert [chat.id.int for chat in found] == [11, 10, 21]
    assert [
        chat.id.int for chat in await chats.list_children(pool, HARNESS, [chat_id(1)], limit=1)
    ] == [11]
    assert await chats.list_children(pool, HARNESS, []) == []


async def test_pinned_chats_come_in_the_order_of_their_pins(pool: Pool) -> None:
    for number, order in ((1, 2), (2, 0), (3, 1), (4, 2)):
        await open_chat(pool, number)
        await update(pool, chat_id(number), pin_order=order)
    await update(pool, chat_id(3), pin_order=1)
    await open_chat(pool, 5, owner_id=STRANGER)
    await update(pool, chat_id(5), pin_order=1)
    assert [chat.id.int for chat in await chats.list_pinned(pool, member())] == [3, 1, 4]


# Unversioned columns


async def update(pool: Pool, chat: ChatId, **fields: Any) -> Chat:
    command = UpdateChat(**fields)
    return (
        await Transactor(pool, AppliedRecorder()).run(operation(command, ChangeId(1), chat))
    ).chat


async def test_a_title_is_set_only_if_it_is_still_the_expected_one(pool: Pool) -> None:
    chat = await open_chat(pool, 1, title="New chat")
    by_hand = present(
        await chats.set_title(pool, HARNESS, chat.id, expected="New chat", title="My own")
    )
    assert by_hand.title == "My own"
    assert (
        await chats.set_title(pool, HARNESS, chat.id, expected="New chat", title="Generated")
        is None
    )
    assert await chats.get(pool, HARNESS, chat.id) == by_hand


@pytest.mark.covers("O12")
async def test_unversioned_columns_raise_no_version_and_touch_nothing_else(
    pool: Pool,
) -> None:
    before = await insert_seed(pool, Seed(state=State.W))
    await chats.set_title(pool, HARNESS, CHAT, expected=before.title, title="Renamed")
    await update(pool, CHAT, labels={"team": "red"})
    await update(pool, CHAT, pin_order=3)
    after = present(await chats.get(pool, HARNESS, CHAT))
    changed = {
        name for name in Chat.__struct_fields__ if getattr(after, name) != getattr(before, name)
    }
    assert changed == {"title", "labels", "pin_order"}
    assert (after.title, after.labels, after.pin_order) == ("Renamed", {"team": "red"}, 1)


async def test_a_transition_keeps_and_reports_concurrent_unversioned_changes(pool: Pool) -> None:
    """The change was decided from a row without it."""
    before = await insert_seed(pool, Seed(state=State.W))
    await chats.set_title(pool, HARNESS, CHAT, expected=before.title, title="Renamed")
    await update(pool, CHAT, labels={"team": "red"})
    await update(pool, CHAT, pin_order=3)
    command = SendMessage(prompt=prompt("go on"))
    sent = await write(pool, send_message(before, command, None))
    assert (sent.chat.title, sent.chat.labels) == ("Renamed", {"team": "red"})
    assert sent.chat.pin_order == 1
    assert await chats.get(pool, HARNESS, CHAT) == sent.chat


async def test_archiving_unpins_also_a_pin_set_concurrently(pool: Pool) -> None:
    before = await insert_seed(pool, Seed(state=State.W))
    await update(pool, CHAT, pin_order=3)
    shelved = await write(pool, archive(before))
    assert shelved.chat.pin_order == 0
    assert await chats.list_pinned(pool, member()) == []


async def test_only_live_roots_can_be_pinned_and_anything_unpinned(pool: Pool) -> None:
    root = await open_chat(pool, 1)
    child = await open_child(pool, 2, root=1)
    with pytest.raises(InvalidInput):
        await update(pool, child.id, pin_order=1)
    await write(pool, archive(root))
    with pytest.raises(InvalidInput):
        await update(pool, root.id, pin_order=1)
    with pytest.raises(NotFound):
        await update(pool, chat_id(9), pin_order=1)
    assert (await update(pool, root.id, pin_order=0)).pin_order == 0
    assert (await update(pool, child.id, pin_order=0)).pin_order == 0
