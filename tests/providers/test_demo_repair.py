"""The demo model as an agent, with real files and real commands.

Each story runs Python's own test runner twice, which takes its time.
"""

import asyncio
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.model import (
    ModelRequest,
    PromptCall,
    PromptMessage,
    PromptText,
    ToolSpec,
)
from chatd.domain.parts import Text, ToolCall
from chatd.providers.demo.project import CODE, FIXED
from chatd.providers.demo.provider import DemoProvider
from chatd.providers.settings import ProviderSettings
from tests.support.clock import FakeClock
from tests.support.providers.prompts import message, result
from tests.support.providers.reading import answer_of
from tests.support.providers.workshop import ALL_TOOLS, Workshop, tool

UNPACED = Raw(b'{"tokens_per_second":0}')
STEPS = 20
WAIT_S = 30


async def story(
    workshop: Workshop,
    tools: tuple[ToolSpec, ...] = ALL_TOOLS,
    told: tuple[PromptMessage, ...] = (),
    asked_for: str = "Please fix the failing test",
) -> list[PromptMessage]:
    """The conversation, until the model calls no more tools. Every step is played by a new
    provider: nothing may be remembered but what is in the request."""
    messages = told or (message("user", asked_for),)
    for _ in range(STEPS):
        provider = DemoProvider(ProviderSettings(kind="demo"), FakeClock())
        request = ModelRequest(model="demo", messages=messages, tools=tools, options=UNPACED)
        async with asyncio.timeout(WAIT_S), provider.stream(request) as events:
            answer = answer_of([event async for event in events])
        calls = [part for part in answer.content if isinstance(part, ToolCall)]
        said = [PromptText(text=part.text) for part in answer.content if isinstance(part, Text)]
        asked = [
            PromptCall(id=call.tool_call_id, name=call.tool_name, input=Raw(bytes(call.args)))
            for call in calls
            if isinstance(call.args, Raw)
        ]
        messages = (*messages, message("assistant", *said, *asked))
        if not asked:
            return list(messages)
        messages = (*messages, *[await answered(call, workshop) for call in asked])
    raise AssertionError("the story has no end")


async def answered(call: PromptCall, workshop: Workshop) -> PromptMessage:
    args = msgspec.json.decode(call.input, type=dict[str, object])
    text, is_error = await workshop.run(call.name, args)
    return message("tool", result(call.id, text, call.name, is_error=is_error))


def last_words(messages: list[PromptMessage]) -> str:
    return "".join(part.text for part in messages[-1].parts if isinstance(part, PromptText))


async def test_the_failing_test_is_fixed(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    messages = await story(workshop)
    assert "All three tests pass now." in last_words(messages)
    assert (tmp_path / "chatd-demo" / "basket.py").read_text() == FIXED
    assert workshop.calls == [
        "execute",
        "write_file",
        "write_file",
        "execute",
        "read_file",
        "read_file",
        "edit_files",
        "execute",
    ]


async def test_without_a_workspace_one_is_made(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, exists=False)
    messages = await story(workshop)
    assert "All three tests pass now." in last_words(messages)
    assert workshop.calls[:4] == ["execute", "list_templates", "create_workspace", "execute"]


@pytest.mark.parametrize(
    ("asked_for", "shown"), [("run a command", "Linux"), ("list the files", "hello.txt")]
)
async def test_a_command_without_a_workspace_makes_one_first(
    tmp_path: Path, asked_for: str, shown: str
) -> None:
    (tmp_path / "hello.txt").touch()
    workshop = Workshop(tmp_path, exists=False)
    words = last_words(await story(workshop, asked_for=asked_for))
    assert words.startswith("Done. The tool `execute` answered:")
    assert shown in words
    assert workshop.calls == ["execute", "list_templates", "create_workspace", "execute"]


async def test_a_stopped_workspace_is_started(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, stopped=True)
    words = last_words(await story(workshop, asked_for="list files"))
    assert words.startswith("Done.")
    assert workshop.calls == ["execute", "start_workspace", "execute"]


@pytest.mark.parametrize("name", ["execute", "list_templates", "create_workspace"])
async def test_a_command_that_finds_no_workspace_says_what_the_tool_said(
    tmp_path: Path, name: str
) -> None:
    """Each tool is tried twice: somebody may have stopped the first call."""
    workshop = Workshop(tmp_path, exists=name == "execute", broken=frozenset({name}))
    words = last_words(await story(workshop, asked_for="run a command"))
    assert words.startswith("I have no workspace that I can run commands in.")
    assert f"{name} is broken" in words
    assert workshop.calls.count(name) == 2


async def test_an_edit_that_fails_is_made_good_by_writing_the_file(tmp_path: Path) -> None:
    """With a tool that has older names for the two texts of an edit."""
    older = ToolSpec(name="edit_files", description="", input_schema=Raw(b'{"search":1}'))
    tools = (*(t for t in ALL_TOOLS if t.name != "edit_files"), older)
    messages = await story(Workshop(tmp_path, broken=frozenset({"edit_files"})), tools=tools)
    assert "All three tests pass now." in last_words(messages)
    assert (tmp_path / "chatd-demo" / "basket.py").read_text() == FIXED
    calls = [part for m in messages for part in m.parts if isinstance(part, PromptCall)]
    [edit] = [bytes(call.input) for call in calls if call.name == "edit_files"]
    assert b'"search":' in edit
    assert b'"replace":' in edit


async def test_tools_that_fail_end_the_story_with_what_they_said(tmp_path: Path) -> None:
    for name in ("execute", "write_file", "read_file", "create_workspace", "list_templates"):
        workshop = Workshop(
            tmp_path,
            exists=name not in ("create_workspace", "list_templates"),
            broken=frozenset({name}),
        )
        assert f"{name} is broken" in last_words(await story(workshop))


async def test_only_tools_that_are_offered_are_called(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    messages = await story(workshop, tools=(tool("execute"), tool("read_file")))
    assert workshop.calls == []
    assert "`write_file`, `edit_files`" in last_words(messages)


async def test_a_story_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = await story(Workshop(tmp_path))
    # Stopped while the first test run was under way: the call has an error for a result.
    cut = next(at for at, m in enumerate(whole) if at > 6 and m.role == "tool")
    before = whole[: cut + 1]
    stopped = before[-1].parts[0]
    told = (
        *before[:-1],
        message("tool", msgspec.structs.replace(stopped, text="interrupted", is_error=True)),
        message("user", "Continue."),
    )
    (tmp_path / "chatd-demo" / "basket.py").write_text(CODE)
    workshop = Workshop(tmp_path)
    messages = await story(workshop, told=told)
    assert "All three tests pass now." in last_words(messages)
    assert workshop.calls == ["execute", "read_file", "read_file", "edit_files", "execute"]
