"""How often the database is asked for a turn, and that this does not grow with the chat."""

from collections import Counter

import pytest

from chatd.store.chat import journal
from chatd.store.chat.apply import APPLY, APPLY_STEP, APPLY_WITHOUT_QUEUE, INSERT_CHAT
from chatd.store.chat.chats import LOAD
from chatd.store.chat.messages import HISTORY
from tests.support.house import House, a_house
from tests.support.tools import GatedTool

NAMES = {
    APPLY.text: "apply",
    INSERT_CHAT.text: "create",
    HISTORY: "history",
    LOAD: "load",
    APPLY_WITHOUT_QUEUE: "plain",
    APPLY_STEP.text: "step",
}
BESIDE = {journal.APPEND}
"""What is written behind, for others."""


class Statements:
    """What was sent since one last asked, but for the tick and what is done beside."""

    def __init__(self) -> None:
        self._sent: list[str] = []

    def __call__(self, query: str) -> None:
        self._sent.append(query)

    def of_the_turn(self) -> Counter[str]:
        sent, self._sent = self._sent, []
        return Counter(NAMES[query] for query in sent if query in NAMES and query not in BESIDE)


async def ask(house: House, chat_id: object, epoch: int) -> None:
    await house.events.wait("runner_left", chat_id=chat_id, epoch=epoch)


@pytest.mark.covers("T06")
async def test_a_new_chat_with_an_answer_is_two_statements(dsn: str) -> None:
    sent = Statements()
    async with a_house(dsn, on_statement=sent) as house:
        house.says("hello")
        chat_id = await house.create("hi")
        await ask(house, chat_id, 1)
        assert sent.of_the_turn() == {"create": 1, "step": 1}


async def test_a_round_of_tools_is_two_statements(dsn: str) -> None:
    sent = Statements()
    async with a_house(dsn, on_statement=sent, tools=[GatedTool()]) as house:
        for _ in range(3):
            house.calls(("c", "echo", "{}"))
        house.says("done")
        chat_id = await house.create("hi")
        await ask(house, chat_id, 1)
        assert sent.of_the_turn() == {"create": 1, "step": 3 * 2 + 1}


@pytest.mark.covers("T06")
async def test_the_next_turn_costs_the_same_however_long_the_chat_is(dsn: str) -> None:
    sent = Statements()
    async with a_house(dsn, on_statement=sent) as house:
        house.says("hello")
        chat_id = await house.create("hi")
        await ask(house, chat_id, 1)
        for turn in range(5):
            house.says("again")
            sent.of_the_turn()
            await house.send(chat_id, "and now?")
            await ask(house, chat_id, 3 + 2 * turn)
            assert sent.of_the_turn() == {"load": 1, "step": 2, "history": 1}
