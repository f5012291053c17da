"""Waking of suspended chats: one that somebody stops meanwhile does not delay the others."""

import asyncio

from msgspec.structs import replace

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import ChatCommand, WakeTurn
from chatd.domain.chat.states import State
from chatd.domain.chat.transitions import LoadedChat, ReservedSlots, decide
from chatd.domain.ids import ChangeId, ChatId
from chatd.engine.subagents import AgentWaker
from chatd.store.chat import chats
from chatd.store.chat.transactor import Decide, Transactor
from chatd.store.database.pool import Pool
from tests.engine.test_subagent_reruns import no_slot
from tests.store.test_transactor import Rival
from tests.support.clock import FakeClock
from tests.support.database import TestServer
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.operations import archiving, ignore_applied
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import chat_id, insert_seed
from tests.support.stream_replica import Emitted, env_with


def archiving_first(rival: Rival, archived: list[ChatId]) -> Decide:
    """The domain's decision; the chat that is woken first is archived before the write."""

    def decide_late(
        loaded: LoadedChat, command: ChatCommand, slots: ReservedSlots
    ) -> Change | None:
        change = decide(loaded, command, slots)
        if isinstance(command, WakeTurn) and not archived:
            archived.append(loaded.chat.id)
            rival.runs(archiving(loaded.chat.id, ChangeId(1)))()
        return change

    return decide_late


async def test_a_parent_that_is_archived_before_it_is_woken_does_not_delay_the_others(
    pool: Pool, dsn: str, test_server: TestServer
) -> None:
    """No time passes for the waker: it would wait before it tried the rest again."""
    suspended = Seed(state=State.P0, calls="local", suspended=True)
    parents = [
        await insert_seed(pool, replace(suspended, chat_id=chat_id(number))) for number in (1, 2, 3)
    ]
    archived: list[ChatId] = []
    emitted = Emitted()
    decide_late = archiving_first(Rival(test_server, dsn), archived)
    transactor = Transactor(pool, ignore_applied, decide_late)
    waker = AgentWaker(pool, transactor, env_with(FakeClock(), emitted), no_slot)
    for parent in parents:
        waker.on_applied(parent)

    async def are_woken() -> bool:
        rows = [present(await chats.get(pool, HARNESS, parent.id)) for parent in parents]
        return not any(row.is_suspended for row in rows)

    async with asyncio.TaskGroup() as group:
        running = group.create_task(waker.run())
        await eventually(are_woken)
        running.cancel()
    (stopped,) = archived
    assert present(await chats.get(pool, HARNESS, stopped)).state is State.XW0
    assert emitted.counts["wake_failed"] == 0
