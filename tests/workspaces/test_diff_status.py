"""The diff status of chats: refreshed behind their requests, coalesced, and announced once."""

import asyncio

import pytest
from msgspec.structs import replace

from chatd.domain.chat.row import Chat, DiffStatus
from chatd.domain.chat.states import State
from chatd.domain.ids import ChatId
from chatd.domain.workspace.agent_api import AgentUnreachable, ScopedDiff
from chatd.store.chat import chats
from chatd.store.database.pool import Pool
from chatd.workspaces.diff_status import (
    DIFF_STATUS_DELAY_S,
    MAX_REFRESHES,
    DiffStatusKeeper,
    sum_diffs,
)
from tests.support.clock import FakeClock
from tests.support.factories import CHAT, HARNESS
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import chat_id, insert_seed
from tests.support.stream_replica import env_with

PLAIN = ScopedDiff(
    repo_root="/app",
    branch="fix",
    base="origin/main",
    unified_diff="",
    additions=0,
    deletions=0,
    changed_files=0,
)
APP = replace(PLAIN, additions=48, deletions=12)
DOCS = replace(PLAIN, repo_root="/docs", branch="main", additions=1, changed_files=1)


def test_the_status_is_the_sum_with_the_branch_of_most_changes() -> None:
    assert sum_diffs([DOCS, APP]) == DiffStatus(
        branch="fix", base="origin/main", additions=49, deletions=12, changed_files=1
    )
    assert sum_diffs([]) is None


@pytest.mark.promise("P14")
async def test_requests_of_a_chat_lead_to_one_refresh_and_one_notice(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    clock, announced, reads = FakeClock(), list[Chat](), list[Chat]()
    answers: list[ScopedDiff | None] = [APP, APP, None, replace(APP, additions=50)]
    done = asyncio.Event()

    async def read(chat: Chat) -> list[ScopedDiff]:
        reads.append(chat)
        done.set()
        answer = answers[len(reads) - 1]
        if answer is None:
            raise AgentUnreachable("away")
        return [answer]

    keeper = DiffStatusKeeper(
        pool, env_with(clock), read, lambda chat, _kind: announced.append(chat)
    )
    running = asyncio.get_running_loop().create_task(keeper.run())
    try:
        for _ in answers:
            for _ in range(3):
                keeper.mark(CHAT)
            await clock.wait_for_sleeper("diff_status")
            done.clear()
            clock.advance(DIFF_STATUS_DELAY_S)
            async with asyncio.timeout(20):
                await done.wait()
        keeper.mark(CHAT)
        await clock.wait_for_sleeper("diff_status")
    finally:
        running.cancel()
    assert len(reads) == 4
    assert [present(chat.diff_status).additions for chat in announced] == [48, 50]
    stored = present(await chats.get(pool, HARNESS, CHAT))
    assert present(stored.diff_status).additions == 50


async def test_what_an_agent_says_is_stored_in_a_form_that_can_be_stored(pool: Pool) -> None:
    """An agent is not trusted: a name of a branch may be anything."""
    await insert_seed(pool, Seed(state=State.W))
    evil = replace(APP, branch="a\0b\ud800" + "x" * 5000, additions=2**70, deletions=-5)
    await chats.set_diff_status(pool, HARNESS, CHAT, present(sum_diffs([evil])))
    stored = present(present(await chats.get(pool, HARNESS, CHAT)).diff_status)
    assert stored.branch.startswith("a\ufffdb\ufffdx")
    assert len(stored.branch) <= 255
    assert (stored.additions, stored.deletions) == (1_000_000_000, 0)


@pytest.mark.promise("P14")
async def test_an_agent_that_does_not_answer_holds_up_no_other_chat(pool: Pool) -> None:
    ids = [chat_id(number) for number in range(1, MAX_REFRESHES + 3)]
    for one in ids:
        await insert_seed(pool, Seed(state=State.W, chat_id=one))
    clock, asked, silent = FakeClock(), list[ChatId](), asyncio.Event()
    all_others = asyncio.Event()

    async def read(chat: Chat) -> list[ScopedDiff]:
        asked.append(chat.id)
        if chat.id == ids[0]:
            await silent.wait()
        if len(asked) == len(ids):
            all_others.set()
        return [APP]

    keeper = DiffStatusKeeper(pool, env_with(clock), read, lambda _chat, _kind: None)
    running = asyncio.get_running_loop().create_task(keeper.run())
    try:
        for one in ids:
            keeper.mark(one)
        await clock.wait_for_sleeper("diff_status")
        clock.advance(DIFF_STATUS_DELAY_S)
        async with asyncio.timeout(10):
            await all_others.wait()
    finally:
        running.cancel()
    assert not silent.is_set()


@pytest.mark.promise("P2")
async def test_a_bug_in_the_status_of_one_chat_ends_nothing_else(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    clock, reads = FakeClock(), asyncio.Queue[ChatId]()

    async def read(chat: Chat) -> list[ScopedDiff]:
        reads.put_nowait(chat.id)
        return [APP]

    async def complete(chat: Chat, status: DiffStatus) -> DiffStatus:
        raise ValueError("a bug")

    keeper = DiffStatusKeeper(pool, env_with(clock), read, lambda _chat, _kind: None, complete)
    running = asyncio.get_running_loop().create_task(keeper.run())
    try:
        for _ in range(2):
            keeper.mark(CHAT)
            await clock.wait_for_sleeper("diff_status")
            clock.advance(DIFF_STATUS_DELAY_S)
            async with asyncio.timeout(20):
                assert await reads.get() == CHAT
        assert not running.done()
    finally:
        running.cancel()
