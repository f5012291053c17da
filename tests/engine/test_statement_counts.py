"""How many statements a turn takes, and that the number does not grow with the chat."""

from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import pytest

from bench.round_trips import SHARED_STATEMENTS
from chatd.domain.tool_policy.rules import ToolRule
from chatd.engine.worker import WorkerConfig
from chatd.store import idempotency, search
from chatd.store.chat import apply, chats, message_pages, messages, runs, subagents, workers
from chatd.store.database.conn import NamedStatement
from chatd.store.deployment import tool_policies
from chatd.store.model import spend
from tests.support.clock import FakeClock
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.tools import GatedTool

IN_BACKGROUND = {
    "CLEAR_BUILD_KEYS",
    "CLEAR_TOOL_OUTPUTS",
    "CLEAR_WORKSPACE_KEYS",
    "DELETE_OLD_REQUESTS",
    "GET_MANY",  # rows that a heartbeat of a slow machine saw change
    "HAS_LIMITS",
}
"""Sent by the replica, however many turns run."""


def statements_of(*modules: ModuleType) -> Iterator[tuple[str, str]]:
    """The statements of the modules with their names, without those that all chats share, such as
    the heartbeat: these grow with time, not with turns."""
    for name, value in (pair for module in modules for pair in vars(module).items()):
        text = value.text if isinstance(value, NamedStatement) else value
        is_statement = name.isupper() and name not in IN_BACKGROUND and isinstance(text, str)
        if is_statement and text not in SHARED_STATEMENTS:
            yield text, name


NAMES = dict(
    statements_of(apply, chats, idempotency, message_pages, messages, runs, spend, subagents)
) | {tool_policies.LOAD_LAYERS: "LOAD_LAYERS"}


class Statements:
    """Counts the statements of chats that were sent since the last count."""

    def __init__(self) -> None:
        self._sent: list[str] = []

    def __call__(self, query: str) -> None:
        self._sent.append(query)

    def take_counts(self) -> Counter[str]:
        sent, self._sent = self._sent, []
        return Counter(NAMES[query] for query in sent if query in NAMES)


async def wait_chat_task_left(rig: EngineRig, chat_id: object, epoch: int) -> None:
    await rig.events.wait("chat_task_left", chat_id=chat_id, epoch=epoch)


@pytest.mark.covers("T06")
async def test_a_new_chat_with_an_answer_takes_two_statements(dsn: str) -> None:
    sent = Statements()
    async with engine_rig(dsn, on_statement=sent) as rig:
        chat_id = await rig.ask("hi", "hello")
        await wait_chat_task_left(rig, chat_id, 1)
        assert sent.take_counts() == {"INSERT_ROOT_CHAT": 1, "APPLY_LAST_STEP": 1}


@pytest.mark.parametrize("rules", [(), (ToolRule(tool="echo", action="auto"),)])
async def test_a_tool_batch_takes_two_statements(dsn: str, rules: tuple[ToolRule, ...]) -> None:
    sent = Statements()
    async with engine_rig(dsn, on_statement=sent, tools=[GatedTool()]) as rig:
        await rig.set_policy(*rules)
        for _ in range(3):
            rig.call_tools(("c", "echo", "{}"))
        chat_id = await rig.ask("hi", "done")
        await wait_chat_task_left(rig, chat_id, 1)
        assert sent.take_counts() == {
            "INSERT_ROOT_CHAT": 1,
            "APPLY_CALLS": 3,
            "APPLY_STEP": 3,
            "APPLY_LAST_STEP": 1,
        }


@pytest.mark.covers("T06")
async def test_the_number_of_statements_of_a_turn_does_not_grow_with_the_chat(dsn: str) -> None:
    sent = Statements()
    async with engine_rig(dsn, on_statement=sent) as rig:
        chat_id = await rig.ask("hi", "hello")
        await wait_chat_task_left(rig, chat_id, 1)
        for turn in range(5):
            rig.answer("again")
            sent.take_counts()
            await rig.send(chat_id, "and now?")
            await wait_chat_task_left(rig, chat_id, 3 + 2 * turn)
            assert sent.take_counts() == {"LOAD": 1, "APPLY_LAST_STEP": 2, "HISTORY_SINCE": 1}


@pytest.mark.covers("T06")
async def test_an_idle_replica_renews_its_lease_every_two_seconds_and_leaves_the_index_alone(
    dsn: str, clock: FakeClock
) -> None:
    """The index is looked at after a change."""
    sent: list[str] = []

    async def pass_half_seconds(count: int) -> Counter[str]:
        sent.clear()
        for _ in range(count):
            await clock.wait_for_sleeper("heartbeat")
            clock.advance(0.5)
        await clock.wait_for_sleeper("heartbeat")
        return Counter(sent)

    async with engine_rig(dsn, on_statement=sent.append, clock=clock, worker=WorkerConfig()) as rig:
        await rig.replica.worker.registered.wait()
        await pass_half_seconds(80)
        idle = await pass_half_seconds(120)
        assert idle[workers.HEARTBEAT] == 30
        assert idle[search.TRY_LOCK] == 0
        chat_id = await rig.ask("hi", "hello")
        await wait_chat_task_left(rig, chat_id, 1)
        assert (await pass_half_seconds(60))[search.TRY_LOCK] >= 1
