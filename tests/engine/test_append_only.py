"""The prompt of a running chat only grows, also when its workspace changes."""

from itertools import pairwise

import msgspec
import pytest

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.messages import public_message
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId
from chatd.domain.ports import Tool, ToolContext
from chatd.domain.prompt.instructions import Instructions
from chatd.store.chat import messages
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.factories import HARNESS
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool


class ChangingTools:
    """Satisfies `ports.ToolSource`. A test changes what it tells."""

    def __init__(self) -> None:
        self.told = Instructions(workspace="There is no workspace.", files="")
        self.tool = GatedTool()

    async def tools(self, chat: Chat) -> list[Tool]:
        del chat
        return [self.tool]

    async def instructions(self, chat: Chat) -> Instructions:
        del chat
        return self.told

    async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
        del context
        return output


def sent(rig: EngineRig) -> list[list[dict[str, object]]]:
    return [
        msgspec.convert(request.json["messages"], list[dict[str, object]])
        for request in rig.api.requests
    ]


async def roles(rig: EngineRig, chat_id: ChatId) -> list[str]:
    return [row.role for row in await messages.load_history(rig.pool, HARNESS, chat_id)]


async def test_each_request_extends_the_one_before_it(dsn: str) -> None:
    source = ChangingTools()
    async with engine_rig(dsn, source=source) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        rig.answer("done")
        chat_id = await rig.create("go")
        await rig.wait_chat_task_left(chat_id, epoch=1)
        source.told = Instructions(workspace="It runs.", files="Use tabs.")
        rig.call_tools(("c2", "echo", "{}"))
        rig.answer("done again")
        await rig.send(chat_id, "again")
        await rig.wait_chat_task_left(chat_id, epoch=3)
        requests = sent(rig)
        for before, after in pairwise(requests):
            assert after[: len(before)] == before
        assert requests[0][0] == {"role": "system", "content": "There is no workspace."}
        assert "It runs." in str(requests[2][-1]["content"])
        assert "Use tabs." in str(requests[2][-1]["content"])


async def test_what_the_model_was_told_is_stored_with_its_answer_and_hidden_from_users(
    dsn: str,
) -> None:
    async with engine_rig(dsn, source=ChangingTools()) as rig:
        chat_id = await rig.ask("hi", "hello")
        await rig.wait_chat_task_left(chat_id, epoch=1)
        rows = await messages.load_history(rig.pool, HARNESS, chat_id)
        assert [row.role for row in rows] == ["user", "system", "assistant"]
        shown = [public_message(chat_id, row) for row in rows]
        assert [row is None for row in shown] == [False, True, False]
        rig.answer("again")
        await rig.send(chat_id, "hi again")
        await rig.wait_chat_task_left(chat_id, epoch=3)
        assert (await roles(rig, chat_id))[3:] == ["user", "assistant"]


@pytest.mark.promise("P4")
async def test_an_interrupted_answer_is_stored_with_what_the_model_was_told(
    dsn: str, gate: Gate
) -> None:
    async with engine_rig(dsn, source=ChangingTools()) as rig:
        chat_id = await rig.ask("hi", "hel", gate)
        await rig.wait_shown(chat_id, "hel")
        await rig.interrupt(chat_id)
        await rig.wait_chat_task_left(chat_id)
        assert await roles(rig, chat_id) == ["user", "system", "assistant"]


async def test_a_summary_extends_the_last_request_and_the_state_is_told_again(dsn: str) -> None:
    source = ChangingTools()
    async with engine_rig(dsn, source=source) as rig:
        chat_id = await rig.ask("hi", "hello")
        await rig.wait_chat_task_left(chat_id, epoch=1)
        source.told = Instructions(workspace="It runs.", files="")
        rig.answer("fine")
        await rig.send(chat_id, "and now?")
        await rig.wait_chat_task_left(chat_id, epoch=3)
        rig.answer("they greeted each other")
        await rig.compact(chat_id)
        await rig.wait_chat_task_left(chat_id, epoch=5)
        last, summary = sent(rig)[-2:]
        assert summary[: len(last)] == last
        bodies = [request.json for request in rig.api.requests]
        for field in ("tools", "tool_choice"):
            assert bodies[-1][field] == bodies[-2][field]
        rig.answer("yes")
        await rig.send(chat_id, "still there?")
        await rig.wait_chat_task_left(chat_id, epoch=7)
        after = sent(rig)[-1]
        assert after[0] == last[0]
        assert "hello" not in str(after)
        assert "It runs." in str(after[-1]["content"])


async def test_a_model_that_calls_a_tool_instead_of_writing_a_summary_is_asked_again(
    dsn: str,
) -> None:
    source = ChangingTools()
    async with engine_rig(dsn, source=source) as rig:
        chat_id = await rig.ask("hi", "hello")
        await rig.wait_chat_task_left(chat_id, epoch=1)
        rig.call_tools(("c1", "echo", "{}"))
        rig.answer("they greeted each other")
        await rig.compact(chat_id)
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).state == "W"
        choices = [request.json["tool_choice"] for request in rig.api.requests]
        assert choices == ["auto", "auto", "none"]
        assert source.tool.runs == []
