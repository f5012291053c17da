"""How many statements a turn takes, and that the number does not grow with the chat."""

from collections import Counter

import pytest

from chatd.store.chat import journal
from chatd.store.chat.apply import (
    APPLY,
    APPLY_LAST_STEP,
    APPLY_STEP,
    APPLY_WITHOUT_QUEUE,
    INSERT_CHAT,
)
from chatd.store.chat.chats import LOAD
from chatd.store.chat.messages import HISTORY
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.tools import GatedTool

NAMES = {
    APPLY.text: "apply",
    INSERT_CHAT.text: "create",
    HISTORY: "history",
    LOAD: "load",
    APPLY_WITHOUT_QUEUE: "plain",
    APPLY_STEP.text: "step",
    APPLY_LAST_STEP.text: "step",
}
BACKGROUND = {journal.APPEND}
"""Written in the background."""


class Statements:
    """Counts the statements sent since the last count, without heartbeats and background writes."""

    def __init__(self) -> None:
        self._sent: list[str] = []

    def __call__(self, query: str) -> None:
        self._sent.append(query)

    def take_counts(self) -> Counter[str]:
        sent, self._sent = self._sent, []
        return Counter(NAMES[query] for query in sent if query in NAMES and query not in BACKGROUND)


async def wait_runner_left(rig: EngineRig, chat_id: object, epoch: int) -> None:
    await rig.events.wait("runner_left", chat_id=chat_id, epoch=epoch)


@pytest.mark.covers("T06")
async def test_a_new_chat_with_an_answer_takes_two_statements(dsn: str) -> None:
    sent = Statements()
    async with engine_rig(dsn, on_statement=sent) as rig:
        chat_id = await rig.ask("hi", "hello")
        await wait_runner_left(rig, chat_id, 1)
        assert sent.take_counts() == {"create": 1, "step": 1}


async def test_a_tool_batch_takes_two_statements(dsn: str) -> None:
    sent = Statements()
    async with engine_rig(dsn, on_statement=sent, tools=[GatedTool()]) as rig:
        for _ in range(3):
            rig.call_tools(("c", "echo", "{}"))
        chat_id = await rig.ask("hi", "done")
        await wait_runner_left(rig, chat_id, 1)
        assert sent.take_counts() == {"create": 1, "step": 3 * 2 + 1}


@pytest.mark.covers("T06")
async def test_the_number_of_statements_of_a_turn_does_not_grow_with_the_chat(dsn: str) -> None:
    sent = Statements()
    async with engine_rig(dsn, on_statement=sent) as rig:
        chat_id = await rig.ask("hi", "hello")
        await wait_runner_left(rig, chat_id, 1)
        for turn in range(5):
            rig.answer("again")
            sent.take_counts()
            await rig.send(chat_id, "and now?")
            await wait_runner_left(rig, chat_id, 3 + 2 * turn)
            assert sent.take_counts() == {"load": 1, "step": 2, "history": 1}
