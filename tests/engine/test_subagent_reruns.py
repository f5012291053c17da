"""Calls of a parent's tools that run again after a crash: what the first run did is done once."""

from contextlib import AbstractContextManager, nullcontext

import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.chat.commands import SendMessage
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import send_message
from chatd.domain.chat.worker_transitions import acquire, finish_interrupt
from chatd.domain.errors import ToolError
from chatd.domain.ids import ChatId, ModelConfigId, ToolCallId, WorkerId
from chatd.domain.ports import SpawnRequest, ToolContext
from chatd.domain.subagents import SubagentLimits, SubagentType
from chatd.engine.subagents import SubagentService
from chatd.store.chat import chats
from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from tests.support.factories import CHAT, HARNESS, WORKER, prompt
from tests.support.operations import ignore_applied
from tests.support.outcomes import present
from tests.support.seeds import Seed, step
from tests.support.store import insert_seed, open_child, write
from tests.support.stream_replica import env_with
from tests.support.subagents import ParentsModel

TASK = SpawnRequest(type="general", prompt="look")


class DisabledModel(ParentsModel):
    """The administrator has disabled the model meanwhile."""

    async def choose(
        self, chat: Chat, type_: SubagentType, wanted: str, effort: str = ""
    ) -> ModelConfigId | None:
        raise ToolError("The model is disabled.")


def no_slot(*, root: bool) -> AbstractContextManager[WorkerId | None]:
    del root
    return nullcontext(None)


def service(pool: Pool, models: ParentsModel | None = None) -> SubagentService:
    """As each replica has its own."""
    return SubagentService(
        pool,
        Transactor(pool, ignore_applied),
        env_with(SystemClock()),
        reserve_slot=no_slot,
        models=models or ParentsModel(),
        limits=SubagentLimits(),
    )


async def context(pool: Pool, call: str = "c1") -> ToolContext:
    parent = await insert_seed(pool, Seed(state=State.R0, calls="local"))
    return ToolContext(chat=parent, call_id=ToolCallId(call), fence=Fence.of(parent))


async def row(pool: Pool, chat_id: ChatId) -> Chat:
    return present(await chats.get(pool, HARNESS, chat_id))


async def test_a_spawn_that_runs_again_finds_its_subagent_also_if_its_model_is_disabled_now(
    pool: Pool,
) -> None:
    call = await context(pool)
    first = await service(pool).spawn(call, TASK)
    assert await service(pool, DisabledModel()).spawn(call, TASK) == first


async def test_a_spawn_with_a_disabled_model_starts_nothing(pool: Pool) -> None:
    call = await context(pool)
    with pytest.raises(ToolError, match="disabled"):
        await service(pool, DisabledModel()).spawn(call, TASK)
    assert await chats.list_children(pool, HARNESS, [CHAT]) == []


async def test_an_interrupt_that_runs_again_leaves_the_turn_alone_that_the_queue_has_started(
    pool: Pool,
) -> None:
    """The first run stopped the subagent, whose next message began then."""
    call = await context(pool)
    child = (await write(pool, acquire(await open_child(pool, 21, CHAT.int), WORKER))).chat
    await write(pool, send_message(child, SendMessage(prompt=prompt("next")), None), 2)
    stopped = await service(pool).interrupt(call, child.id)
    assert (stopped.interrupted, stopped.status) == (True, "interrupting")
    stopping = await row(pool, child.id)
    await write(pool, finish_interrupt(stopping, step(stopping)), 3)
    begun = await row(pool, child.id)
    assert begun.status == "running"
    again = await service(pool).interrupt(call, child.id)
    assert again.interrupted
    assert await row(pool, child.id) == begun


async def test_another_call_that_interrupts_stops_the_turn_that_runs_then(pool: Pool) -> None:
    call = await context(pool)
    child = (await write(pool, acquire(await open_child(pool, 21, CHAT.int), WORKER))).chat
    assert (await service(pool).interrupt(call, child.id)).interrupted
    stopping = await row(pool, child.id)
    idle = (await write(pool, finish_interrupt(stopping, step(stopping)), 2)).chat
    await write(pool, send_message(idle, SendMessage(prompt=prompt("next")), WORKER), 3)
    other = replace(call, call_id=ToolCallId("c2"))
    assert (await service(pool).interrupt(other, child.id)).interrupted
    assert (await row(pool, child.id)).status == "interrupting"
