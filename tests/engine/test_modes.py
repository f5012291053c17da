"""The mode of a chat, as the model meets it: its tools and what it is told."""

from collections.abc import Sequence
from typing import Final

import msgspec
import pytest
from msgspec import Raw, Struct
from msgspec.structs import replace

from chatd.domain.chat.commands import SendMessage, UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId
from chatd.domain.ports import Tool
from chatd.domain.prompt.instructions import PLAN_MODE_TEXT, Instructions
from chatd.tools.chat_tools import ChatTools
from tests.support.engine_rig import EngineRig, engine_rig, engine_rig_with
from tests.support.providers.anthropic import FakeAnthropic
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool

MODE_START: Final = PLAN_MODE_TEXT[:30]
OPEN_PAGE: Final = Raw(b'[{"name":"open_page","description":"Opens.","input_schema":{}}]')


class _Family:
    def __init__(self, *tools: Tool) -> None:
        self._tools = tools

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        del chat
        return self._tools


async def _told_nothing(chat: Chat) -> Instructions:
    del chat
    return Instructions()


def source(*tools: Tool) -> ChatTools:
    return ChatTools([_Family(*tools)], _told_nothing)


class _Function(Struct):
    name: str


class _OfferedTool(Struct):
    function: _Function


def offered(rig: EngineRig, request: int = -1) -> list[str]:
    """The names of the tools of a request."""
    tools = rig.api.requests[request].json.get("tools", [])
    return sorted(tool.function.name for tool in msgspec.convert(tools, list[_OfferedTool]))


def sent(rig: EngineRig, request: int = -1) -> str:
    return msgspec.json.encode(rig.api.requests[request].json["messages"]).decode()


async def send(rig: EngineRig, chat_id: ChatId, text: str, mode: str) -> None:
    rig.answer("done")
    prompt = replace(rig.prompt(text), mode=mode)
    with rig.replica.worker.reserve_slot(root=True) as free:
        chat = await rig.run(chat_id, SendMessage(prompt=prompt), free)
    await rig.wait_chat_task_left(chat_id, epoch=chat.epoch)


TOOLS: Final = ("process_list", "read_file", "propose_plan")


@pytest.mark.covers("loop-18")
async def test_plan_mode_begins_and_ends_with_a_message(dsn: str) -> None:
    async with engine_rig(dsn, source=source(*map(GatedTool, TOOLS))) as rig:
        rig.answer("hello")
        chat_id = await rig.create("hi", client_tools=OPEN_PAGE)
        await rig.wait_chat_task_left(chat_id)
        tools = ["open_page", "process_list", "propose_plan", "read_file"]
        assert offered(rig) == tools
        assert MODE_START not in sent(rig)
        await send(rig, chat_id, "plan it", "plan")
        assert offered(rig) == tools
        assert MODE_START in sent(rig)
        assert f"PLAN-{chat_id}.md" in sent(rig)
        await send(rig, chat_id, "implement it", "off")
        assert offered(rig) == tools
        assert "The instructions of the chat's mode given earlier no longer apply." in sent(rig)


@pytest.mark.covers("loop-18")
async def test_an_update_of_the_mode_counts_from_the_next_step(dsn: str) -> None:
    gate = Gate()
    tools = (GatedTool("process_list", gate=gate), GatedTool("read_file"))
    async with engine_rig(dsn, source=source(*tools)) as rig:
        rig.call_tools(("c1", "process_list", "{}"))
        chat_id = await rig.create("go")
        await gate.reached.wait()
        await rig.run(chat_id, UpdateChat(mode="plan"))
        rig.call_tools(("c2", "process_list", "{}"))
        rig.answer("done")
        gate.open()
        await rig.wait_chat_task_left(chat_id)
        assert [offered(rig, at) for at in (0, 1, 2)] == [["process_list", "read_file"]] * 3
        assert MODE_START in sent(rig, 1)
        assert "Not run: plan mode does not allow process_list." in sent(rig, 2)


async def test_a_client_is_not_asked_for_a_call_that_plan_mode_does_not_allow(dsn: str) -> None:
    async with engine_rig(dsn, source=source(GatedTool("read_file"))) as rig:
        rig.call_tools(("c1", "open_page", "{}"))
        rig.answer("done")
        chat_id = await rig.create("go", client_tools=OPEN_PAGE, mode="plan")
        await rig.wait_chat_task_left(chat_id)
        assert offered(rig) == ["open_page", "read_file"]
        assert "Not run: plan mode does not allow open_page." in sent(rig)


async def test_a_plan_is_proposed_in_plan_mode_only(dsn: str) -> None:
    async with engine_rig(dsn, source=source(GatedTool("propose_plan"))) as rig:
        rig.call_tools(("c1", "propose_plan", "{}"))
        rig.answer("done")
        await rig.wait_chat_task_left(await rig.create("go"))
        assert "propose_plan is for plan mode, which only the user can start." in sent(rig)


@pytest.mark.parametrize("mode", [None, "plan"])
async def test_the_provider_searches_in_every_mode(dsn: str, mode: str | None) -> None:
    async with FakeAnthropic.running() as api, engine_rig_with(dsn, api, kind="anthropic") as rig:
        options = Raw(b'{"web_search_enabled":true}')
        rig.model.config = replace(rig.model.config, options=options)
        api.script_text("hello")
        chat_id = await rig.create("hi", mode=mode)
        await rig.wait_chat_task_left(chat_id)
        assert "web_search" in str(api.requests[-1].json.get("tools"))
