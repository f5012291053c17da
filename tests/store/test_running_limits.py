"""Limits."""

from uuid import UUID

import msgspec

from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire
from chatd.domain.ids import UserId
from chatd.store.chat import workers
from chatd.store.chat.workers import RunningLimits
from chatd.store.conn import Conn
from chatd.store.pool import Pool
from tests.support.factories import OTHER_WORKER, WORKER
from tests.support.seeds import Seed
from tests.support.store import chat_id, insert_seed, open_chat, open_child
from tests.support.stored import stored, timeless

OTHER = UserId(UUID(int=71))


async def acquire_some(
    conn: Conn, limits: RunningLimits, *, roots: int = 10, children: int = 0
) -> set[int]:
    chats = await workers.acquire_within_limits(
        conn, WORKER, limits, roots=roots, children=children
    )
    return {chat.id.int for chat in chats}


async def acquire_all(conn: Conn, limits: RunningLimits, **slots: int) -> set[int]:
    """Acquire until no chat may be acquired."""
    found: set[int] = set()
    while acquired := await acquire_some(conn, limits, **slots):
        assert len(acquired) == 1
        found |= acquired
    return found


async def test_the_limit_per_owner_does_not_hold_up_others(
    pool: Pool,
) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number)
    await open_chat(pool, 4, owner_id=OTHER)
    await open_chat(pool, 5, free=OTHER_WORKER)
    assert await acquire_all(pool, RunningLimits(roots_per_owner=2)) == {1, 4}
    await workers.release(pool, OTHER_WORKER)
    assert len(await acquire_all(pool, RunningLimits(roots_per_owner=2))) == 1


async def test_the_total_limit_holds(pool: Pool) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number, owner_id=UserId(UUID(int=number)))
    await open_chat(pool, 4, free=OTHER_WORKER)
    assert len(await acquire_all(pool, RunningLimits(roots=3))) == 2
    assert await acquire_some(pool, RunningLimits(roots=3)) == set()
    assert len(await acquire_some(pool, RunningLimits(roots=4))) == 1


async def test_subagents_have_limits_of_their_own(pool: Pool) -> None:
    await open_chat(pool, 1, free=OTHER_WORKER)
    for number in (2, 3, 4):
        await open_child(pool, number, root=1)
    assert len(await acquire_all(pool, RunningLimits(roots=1, children=2), children=10)) == 2
    assert len(await acquire_all(pool, RunningLimits(children_per_owner=3), children=10)) == 1


async def test_without_a_slot_no_chat_is_acquired_under_any_limit(pool: Pool) -> None:
    await open_chat(pool, 1)
    assert await acquire_some(pool, RunningLimits(roots=5), roots=0) == set()


async def test_an_interrupting_chat_is_acquired_above_the_limit_of_its_owner(
    pool: Pool,
) -> None:
    await open_chat(pool, 1, free=OTHER_WORKER)
    await insert_seed(pool, Seed(state=State.I0, owned=False, chat_id=chat_id(2)))
    assert await acquire_all(pool, RunningLimits(roots_per_owner=1)) == {2}


async def test_a_chat_is_acquired_the_same_way_with_a_limit_and_without(pool: Pool) -> None:
    """An interrupt is no new attempt; otherwise the live parts of the last one would be lost."""
    states = (State.P0, State.P1, State.I0, State.I1)
    for number, state in enumerate(states):
        await insert_seed(pool, Seed(state=state, owned=False, retry=True, chat_id=chat_id(number)))
    before = await stored(pool)
    assert len(await acquire_all(pool, RunningLimits())) == len(states)
    for taken_id, now in (await stored(pool)).items():
        was = before[taken_id].chat
        meant = msgspec.structs.replace(acquire(was, WORKER).after, runnable_at=None)
        assert now.timeless().chat == timeless(meant, (), ()).chat
