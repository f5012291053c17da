"""Read marks: moved forward only, per user and chat, read for many chats at once."""

import pytest

from chatd.domain.chat.states import State
from chatd.domain.chat_views.public_chat import NOTHING_READ
from chatd.domain.ids import MessageId, UserId
from chatd.store.chat import updates
from chatd.store.database.pool import Pool
from tests.support.factories import CHAT, OWNER, member
from tests.support.seeds import Seed
from tests.support.store import chat_id, insert_seed

STRANGER = UserId(chat_id(77))


@pytest.mark.parametrize(
    ("marks", "read"),
    [((2,), 2), ((3, 1), 3), ((1, 3), 3), ((999,), 3), ((0,), 0), ((-1,), 0), ((), 0)],
)
async def test_the_read_mark_never_goes_back_nor_ahead_of_the_last_message(
    pool: Pool, marks: tuple[int, ...], read: int
) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    assert chat.next_message_id == 4
    for mark in marks:
        assert await updates.move_read_mark(pool, member(OWNER), CHAT, MessageId(mark)) is not None
    views = await updates.list_views_of(pool, member(OWNER), [CHAT])
    assert views[CHAT].read_up_to == read


async def test_a_move_says_whether_the_mark_has_moved(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    moves = [
        await updates.move_read_mark(pool, member(OWNER), CHAT, MessageId(mark))
        for mark in (1, 1, 2, 1)
    ]
    assert [found is not None and found[1] for found in moves] == [True, False, True, False]


async def test_a_mark_belongs_to_a_reader_of_the_chat(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    assert await updates.move_read_mark(pool, member(STRANGER), CHAT, MessageId(2)) is None
    assert await updates.move_read_mark(pool, member(OWNER), chat_id(9), MessageId(2)) is None
    await updates.move_read_mark(pool, member(OWNER), CHAT, MessageId(2))
    views = await updates.list_views(pool, [(OWNER, CHAT), (STRANGER, CHAT)])
    assert {user: view.read_up_to for (user, _), view in views.items()} == {
        OWNER: 2,
        STRANGER: NOTHING_READ,
    }
    await pool.execute("DELETE FROM chats")
    assert await updates.list_views_of(pool, member(OWNER), [CHAT]) == {}
