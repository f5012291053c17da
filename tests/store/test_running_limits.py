"""Acquiring chats under limits: per owner and in total."""

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


async def take(conn: Conn, caps: RunningLimits, *, roots: int = 10, children: int = 0) -> set[int]:
    taken = await workers.acquire_within_limits(conn, WORKER, caps, roots=roots, children=children)
    return {chat.id.int for chat in taken}


async def all_taken(conn: Conn, caps: RunningLimits, **slots: int) -> set[int]:
    """One after the other, until there is none left that may be taken."""
    found: set[int] = set()
    while taken := await take(conn, caps, **slots):
        assert len(taken) == 1
        found |= taken
    return found


async def test_the_limit_per_owner_does_not_hold_up_others(
    pool: Pool,
) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number)
    await open_chat(pool, 4, owner_id=OTHER)
    await open_chat(pool, 5, free=OTHER_WORKER)
    assert await all_taken(pool, RunningLimits(roots_per_owner=2)) == {1, 4}
    await workers.release(pool, OTHER_WORKER)
    assert len(await all_taken(pool, RunningLimits(roots_per_owner=2))) == 1


async def test_the_total_limit_holds(pool: Pool) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number, owner_id=UserId(UUID(int=number)))
    await open_chat(pool, 4, free=OTHER_WORKER)
    assert len(await all_taken(pool, RunningLimits(roots=3))) == 2
    assert await take(pool, RunningLimits(roots=3)) == set()
    assert len(await take(pool, RunningLimits(roots=4))) == 1


async def test_subagents_have_limits_of_their_own(pool: Pool) -> None:
    await open_chat(pool, 1, free=OTHER_WORKER)
    for number in (2, 3, 4):
        await open_child(pool, number, root=1)
    assert len(await all_taken(pool, RunningLimits(roots=1, children=2), children=10)) == 2
    assert len(await all_taken(pool, RunningLimits(children_per_owner=3), children=10)) == 1


async def test_without_a_slot_no_chat_is_acquired_under_any_limit(pool: Pool) -> None:
    await open_chat(pool, 1)
    assert await take(pool, RunningLimits(roots=5), roots=0) == set()


async def test_an_interrupting_chat_is_acquired_above_the_limit_of_its_owner(
    pool: Pool,
) -> None:
    await open_chat(pool, 1, free=OTHER_WORKER)
    await insert_seed(pool, Seed(state=State.I0, owned=False, chat_id=chat_id(2)))
    assert await all_taken(pool, RunningLimits(roots_per_owner=1)) == {2}


async def test_a_chat_is_acquired_the_same_way_with_a_limit_and_without(pool: Pool) -> None:
    """Above all a stop is no new attempt, or what the last one has shown would not be found."""
    states = (State.P0, State.P1, State.I0, State.I1)
    for number, state in enumerate(states):
        await insert_seed(pool, Seed(state=state, owned=False, retry=True, chat_id=chat_id(number)))
    before = await stored(pool)
    assert len(await all_taken(pool, RunningLimits())) == len(states)
    for taken_id, now in (await stored(pool)).items():
        was = before[taken_id].chat
        meant = msgspec.structs.replace(acquire(was, WORKER).after, runnable_at=None)
        assert now.timeless().chat == timeless(meant, (), ()).chat
