"""The demo model as a coding agent, with real files and commands.

Each turn runs Python's test runner twice, which takes a second or more.
"""

import asyncio
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.call_waits import read_questions
from chatd.domain.chat.parts import TextPart, ToolCallPart
from chatd.domain.model.protocol import (
    ModelRequest,
    PromptCall,
    PromptMessage,
    PromptText,
    ToolSpec,
)
from chatd.providers.demo_provider import DemoProvider
from chatd.providers.provider_config import ProviderConfig
from tests.support.clock import FakeClock
from tests.support.providers.file_tools import ALL_TOOLS, FileToolRunner, tool
from tests.support.providers.prompts import call as prompt_call
from tests.support.providers.prompts import message, result
from tests.support.providers.stream_reader import answer_of

CODE = """\
def total(prices, discount_percent=0):
    amount = sum(prices)
    return amount - discount_percent
"""
FIXED = CODE.replace("- discount_percent", "* (100 - discount_percent) / 100")
UNPACED = Raw(b'{"tokens_per_second":0}')
STEPS = 20
WAIT_S = 30


async def run_turn(
    workshop: FileToolRunner,
    tools: tuple[ToolSpec, ...] = ALL_TOOLS,
    history: tuple[PromptMessage, ...] = (),
    prompt: str = "Please fix the failing test",
) -> list[PromptMessage]:
    """The messages of a turn. Each step has a new provider, because the request alone must decide
    the next step."""
    messages = history or (message("user", prompt),)
    for _ in range(STEPS):
        provider = DemoProvider(ProviderConfig(kind="demo"), FakeClock())
        request = ModelRequest(model="demo", messages=messages, tools=tools, options=UNPACED)
        async with asyncio.timeout(WAIT_S), provider.stream(request) as events:
            answer = answer_of([event async for event in events])
        calls = [part for part in answer.content if isinstance(part, ToolCallPart)]
        texts = [
            PromptText(text=part.text) for part in answer.content if isinstance(part, TextPart)
        ]
        sent = [
            PromptCall(id=call.tool_call_id, name=call.tool_name, input=Raw(bytes(call.args)))
            for call in calls
            if isinstance(call.args, Raw)
        ]
        messages = (*messages, message("assistant", *texts, *sent))
        if not sent:
            return list(messages)
        messages = (*messages, *[await answered(call, workshop) for call in sent])
    raise AssertionError("the turn does not end")


async def answered(call: PromptCall, workshop: FileToolRunner) -> PromptMessage:
    args = msgspec.json.decode(call.input, type=dict[str, object])
    text, is_error = await workshop.run(call.name, args)
    return message("tool", result(call.id, text, call.name, is_error=is_error))


def last_text(messages: list[PromptMessage]) -> str:
    return "".join(part.text for part in messages[-1].parts if isinstance(part, PromptText))


async def test_the_failing_test_is_fixed(tmp_path: Path) -> None:
    workshop = FileToolRunner(tmp_path)
    messages = await run_turn(workshop)
    assert "All three tests pass now." in last_text(messages)
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


async def test_the_model_creates_a_missing_workspace(tmp_path: Path) -> None:
    workshop = FileToolRunner(tmp_path, exists=False)
    messages = await run_turn(workshop)
    assert "All three tests pass now." in last_text(messages)
    assert workshop.calls[:4] == ["execute", "list_templates", "create_workspace", "execute"]


async def test_the_model_creates_a_workspace_before_it_runs_a_command(tmp_path: Path) -> None:
    (tmp_path / "hello.txt").touch()
    workshop = FileToolRunner(tmp_path, exists=False)
    words = last_text(await run_turn(workshop, prompt="run a command"))
    assert words.startswith("Done. The tool `execute` answered:")
    assert "Linux" in words
    assert "hello.txt" in words
    assert workshop.calls == ["execute", "list_templates", "create_workspace", "execute"]


async def test_the_model_starts_a_stopped_workspace(tmp_path: Path) -> None:
    workshop = FileToolRunner(tmp_path, stopped=True)
    words = last_text(await run_turn(workshop, prompt="run a command"))
    assert words.startswith("Done.")
    assert workshop.calls == ["execute", "start_workspace", "execute"]


@pytest.mark.parametrize("name", ["execute", "list_templates", "create_workspace"])
async def test_without_a_workspace_the_answer_quotes_the_tools_error(
    tmp_path: Path, name: str
) -> None:
    """Each tool is tried twice, because a user may have interrupted the first call."""
    workshop = FileToolRunner(tmp_path, exists=name == "execute", broken=frozenset({name}))
    words = last_text(await run_turn(workshop, prompt="run a command"))
    assert words.startswith("I have no workspace that I can run commands in.")
    assert f"{name} is broken" in words
    assert workshop.calls.count(name) == 2


async def test_a_tool_that_keeps_failing_ends_the_turn_with_its_error(tmp_path: Path) -> None:
    for name in ("execute", "write_file", "read_file", "edit_files", "create_workspace"):
        workshop = FileToolRunner(
            tmp_path,
            exists=name != "create_workspace",
            broken=frozenset({name}),
        )
        assert f"{name} is broken" in last_text(await run_turn(workshop))


async def test_without_the_tools_the_answer_names_the_missing_ones(tmp_path: Path) -> None:
    workshop = FileToolRunner(tmp_path)
    messages = await run_turn(workshop, tools=(tool("execute"), tool("read_file")))
    assert workshop.calls == []
    assert "`write_file`, `edit_files`" in last_text(messages)


async def test_an_interrupted_turn_continues_where_it_stopped(tmp_path: Path) -> None:
    whole = await run_turn(FileToolRunner(tmp_path))
    # An interrupt during the first test run gives its call an error as result.
    cut = next(at for at, m in enumerate(whole) if at > 6 and m.role == "tool")
    before = whole[: cut + 1]
    stopped = before[-1].parts[0]
    history = (
        *before[:-1],
        message("tool", msgspec.structs.replace(stopped, text="interrupted", is_error=True)),
        message("user", "Continue."),
    )
    (tmp_path / "chatd-demo" / "basket.py").write_text(CODE)
    workshop = FileToolRunner(tmp_path)
    messages = await run_turn(workshop, history=history)
    assert "All three tests pass now." in last_text(messages)
    assert workshop.calls == ["execute", "read_file", "read_file", "edit_files", "execute"]


async def test_a_failed_build_is_not_repeated_and_its_error_is_shown(tmp_path: Path) -> None:
    answer = '{"build_id":"b1","error":"Install bubblewrap."}'
    workshop = FileToolRunner(tmp_path, exists=False, failed_build=answer)
    words = last_text(await run_turn(workshop, prompt="run a command"))
    assert "The tool `create_workspace` answered:\n\n```\nInstall bubblewrap.\n```" in words
    assert workshop.calls == ["execute", "list_templates", "create_workspace"]


def told_turn(*calls: tuple[PromptCall, str, bool]) -> tuple[PromptMessage, ...]:
    """A turn in which these calls were answered."""
    messages = [message("user", "ask me first")]
    for made, text, is_error in calls:
        messages.append(message("assistant", made))
        messages.append(message("tool", result(made.id, text, made.name, is_error=is_error)))
    return tuple(messages)


async def next_scene(*calls: tuple[PromptCall, str, bool]) -> tuple[str, list[ToolCallPart]]:
    tools = (tool("ask_user_question"), tool("execute"))
    provider = DemoProvider(ProviderConfig(kind="demo"), FakeClock())
    request = ModelRequest(model="demo", messages=told_turn(*calls), tools=tools, options=UNPACED)
    async with provider.stream(request) as events:
        answer = answer_of([event async for event in events])
    texts = [part.text for part in answer.content if isinstance(part, TextPart)]
    return " ".join(texts), [part for part in answer.content if isinstance(part, ToolCallPart)]


CHOSEN = (
    prompt_call("q", "ask_user_question"),
    '{"answers":[{"chosen":["Green"],"text":""}]}',
    False,
)


async def test_the_demo_asks_and_then_acts_on_the_answer() -> None:
    _, [question] = await next_scene()
    assert question.tool_name == "ask_user_question"
    read_questions(question.args)
    _, [command] = await next_scene(CHOSEN)
    assert b"echo Green" in bytes(command.args or b"")
    text, calls = await next_scene(CHOSEN, run_of(command, '{"output":"Green"}', is_error=False))
    assert ("The command ran once" in text, calls) == (True, [])


async def test_the_demo_accepts_that_it_may_not() -> None:
    declined = (CHOSEN[0], '{"error":"The user did not answer."}', True)
    text, calls = await next_scene(declined)
    assert ("You did not choose" in text, calls) == (True, [])
    _, [command] = await next_scene(CHOSEN)
    denial = '{"error":"The user denied this call, so it did not run. The reason: no."}'
    text, calls = await next_scene(CHOSEN, run_of(command, denial, is_error=True))
    assert ("The reason: no." in text, calls) == (True, [])


def run_of(made: ToolCallPart, text: str, *, is_error: bool) -> tuple[PromptCall, str, bool]:
    return (prompt_call("x", "execute", bytes(made.args or b"")), text, is_error)
