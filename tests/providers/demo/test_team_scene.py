"""The demo model leads two subagents: it starts both in one step, waits for both, tells both
reports."""

import asyncio

import msgspec
from msgspec import Raw

from chatd.domain.chat.parts import TextPart, ToolCallPart
from chatd.domain.model.protocol import (
    ComputerTool,
    ModelRequest,
    PromptCall,
    PromptMessage,
    PromptText,
    ToolSpec,
)
from chatd.providers.demo_provider import DemoProvider
from chatd.providers.provider_config import ProviderConfig
from tests.support.clock import FakeClock
from tests.support.providers.prompts import message, result
from tests.support.providers.stream_reader import answer_of

SCHEMA = Raw(b'{"type":"object","properties":{}}')
TOOLS = tuple(
    ToolSpec(name=name, description="", input_schema=SCHEMA)
    for name in ("spawn_agent", "wait_agent")
)
DESKTOP_TOOLS = tuple(
    ToolSpec(name=name, description="", input_schema=SCHEMA)
    for name in ("spawn_agent", "wait_agent", "execute")
)
UNPACED = Raw(b'{"tokens_per_second":0}')


class Team:
    """Plays the tools. `timeouts`: so many waits of each subagent end without a report."""

    def __init__(self, *, timeouts: int = 0, error: str = "", programs: str = "") -> None:
        self.steps: list[list[str]] = []
        self._programs = programs
        self.waits: dict[object, int] = {}
        self._timeouts = timeouts
        self._error = error

    def run(self, call: PromptCall) -> str:
        args = msgspec.json.decode(call.input, type=dict[str, object])
        if call.name == "execute":
            return msgspec.json.encode({"output": self._programs}).decode()
        if call.name == "computer":
            return self._error
        if call.name == "attach_screenshot":
            return '{"name":"desktop.png"}'
        if call.name == "spawn_agent":
            spawned = {"chat_id": f"id of {args['type']}", "title": args["title"]}
            return self._error or msgspec.json.encode(spawned).decode()
        chat_id = args["chat_id"]
        self.waits[chat_id] = self.waits.get(chat_id, 0) + 1
        is_over = self.waits[chat_id] > self._timeouts
        report = {"report": f"report of {chat_id}"} if is_over else {"timed_out": True}
        return msgspec.json.encode({"chat_id": chat_id, **report}).decode()


async def lead(
    team: Team,
    tools: tuple[ToolSpec, ...] = TOOLS,
    *,
    prompt: str = "Review this with subagents",
    computer: ComputerTool | None = None,
) -> str:
    """The last words of the turn."""
    messages: tuple[PromptMessage, ...] = (message("user", prompt),)
    while True:
        provider = DemoProvider(ProviderConfig(kind="demo"), FakeClock())
        request = ModelRequest(
            model="demo", messages=messages, tools=tools, computer=computer, options=UNPACED
        )
        async with asyncio.timeout(30), provider.stream(request) as events:
            content = answer_of([event async for event in events]).content
        texts = [part.text for part in content if isinstance(part, TextPart)]
        calls = [
            PromptCall(id=part.tool_call_id, name=part.tool_name, input=Raw(bytes(part.args)))
            for part in content
            if isinstance(part, ToolCallPart) and isinstance(part.args, Raw)
        ]
        if not calls:
            return "".join(texts)
        team.steps.append([call.name for call in calls])
        answers = [message("tool", result(call.id, team.run(call), call.name)) for call in calls]
        said = [PromptText(text=text) for text in texts]
        messages = (*messages, message("assistant", *said, *calls), *answers)


async def test_both_subagents_are_started_in_one_step_and_waited_for_in_the_next() -> None:
    team = Team()
    words = await lead(team)
    assert team.steps == [["spawn_agent"] * 2, ["wait_agent"] * 2]
    assert "report of id of general" in words
    assert "report of id of explore" in words


async def test_a_wait_that_is_over_is_repeated_and_not_for_ever() -> None:
    team = Team(timeouts=1)
    assert "report of id of general" in await lead(team)
    assert len(team.steps) == 3
    team = Team(timeouts=100)
    assert "still at work" in await lead(team)


async def test_a_refused_subagent_ends_the_scene() -> None:
    team = Team(error='{"error":"no more may run at once"}')
    assert "no more may run at once" in await lead(team)
    assert len(team.steps) == 1


async def test_without_the_tools_the_model_says_so() -> None:
    assert "`spawn_agent`, `wait_agent`" in await lead(Team(), tools=())


async def test_a_subagent_at_the_desktop_is_started_where_there_is_one() -> None:
    team = Team(programs="/usr/bin/Xvnc")
    words = await lead(team, DESKTOP_TOOLS, prompt="Use the desktop")
    assert team.steps == [["execute"], ["spawn_agent"], ["wait_agent"]]
    assert "report of id of computer_use" in words
    without = Team(programs="/usr/bin/xterm")
    assert "tigervnc-standalone-server" in await lead(
        without, DESKTOP_TOOLS, prompt="Use the desktop"
    )
    assert without.steps == [["execute"]]


async def test_the_subagent_looks_opens_a_window_clicks_and_shows_the_picture() -> None:
    function = ToolSpec(name="computer", description="", input_schema=SCHEMA)
    screen = ComputerTool(width_px=1280, height_px=720, function=function)
    team, prompt = Team(), "Open a window and click it"
    words = await lead(team, DESKTOP_TOOLS, prompt=prompt, computer=screen)
    assert [name for step in team.steps for name in step] == [
        "computer",
        "execute",
        "computer",
        "computer",
        "computer",
        "attach_screenshot",
    ]
    assert "clicked it" in words
    failing = Team(error='{"error":"no desktop here"}')
    assert "no desktop here" in await lead(failing, prompt=prompt, computer=screen)
    assert len(failing.steps) == 1
