"""`chatd run` with `--output-schema`, `--max-steps` and rules of tools: the checks as tables, and
whole runs with a scripted model."""

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from chatd.cli.api_session import ExitCode, UsageProblem
from chatd.cli.chats import run_report
from chatd.cli.chats.run_request import Prompt, RunRequest, read_tool_rule
from chatd.cli.chats.structured_output import NotFitting, OutputSchema, read_schema
from chatd.client.server import open_api
from chatd.domain.ids import ChatId
from chatd.domain.tool_policy.rules import PolicyAction, ToolRule
from tests.support.terminal import Json, TerminalServer, serve_terminal
from tests.support.terminal_answers import TOOL, tool_call, will_call

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer"}},
    "required": ["colour"],
}
WANTED = OutputSchema(SCHEMA, msgspec.json.encode(SCHEMA).decode())


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ('{"colour":"red"}', {"colour": "red"}),
        ('Here:\n```json\n{"colour": "blue", "count": 2}\n```\n', {"colour": "blue", "count": 2}),
        (' {"colour":"red"}\n', {"colour": "red"}),
    ],
)
def test_an_answer_is_read_also_from_a_block_of_code(answer: str, value: object) -> None:
    assert WANTED.read(answer) == value


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("red", "it is not JSON"),
        ("", "it is not JSON"),
        ("[" * 100_000 + "]" * 100_000, "it is not JSON"),
        ('{"colour":"green"}', "at /colour: 'green' is not one of"),
        ('{"count":1}', "at its top: 'colour' is a required property"),
        ('{"colour":"red","count":"1"}', "at /count: '1' is not of type 'integer'"),
    ],
)
def test_an_answer_that_does_not_fit_says_where(answer: str, problem: str) -> None:
    with pytest.raises(NotFitting, match=problem):
        WANTED.read(answer)


def test_a_schema_fetches_nothing() -> None:
    elsewhere = {"$ref": "http://127.0.0.1:1/schema.json"}
    with pytest.raises(NotFitting, match="the schema cannot be applied"):
        OutputSchema(elsewhere, "").read("1")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[" * 10_000 + "]" * 10_000, "is not JSON"),
        ("[]", "must be an object"),
        ('{"type": 7}', "is not a valid JSON Schema"),
        (" " * 70_000, "more than 64 KiB"),
    ],
)
def test_a_file_that_is_no_schema_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(text)
    with pytest.raises(UsageProblem, match=problem):
        read_schema(path)


@pytest.mark.parametrize(
    ("text", "action", "rule"),
    [
        ("execute", "auto", ToolRule(tool="execute", action="auto")),
        ("mcp_*", "deny", ToolRule(tool="mcp_*", action="deny")),
        (
            "execute:command=git log *",
            "auto",
            ToolRule(tool="execute", action="auto", args={"command": "git log *"}),
        ),
        (
            "look:path=a=b:c",
            "deny",
            ToolRule(tool="look", action="deny", args={"path": "a=b:c"}),
        ),
    ],
)
def test_a_rule_of_a_tool_is_its_name_with_a_pattern_if_need_be(
    text: str, action: PolicyAction, rule: ToolRule
) -> None:
    assert read_tool_rule(text, action) == rule


@pytest.mark.parametrize("text", ["", ":command=x", "execute:", "execute:command", "execute:=x"])
def test_a_rule_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="write NAME, or NAME:ARGUMENT=PATTERN"):
        read_tool_rule(text, "deny")


# Whole runs


@pytest.fixture
async def server(dsn: str, tmp_path: Path) -> AsyncGenerator[TerminalServer]:
    async with serve_terminal(dsn, tmp_path) as server:
        yield server


REQUEST = RunRequest(prompt=Prompt(text="Choose."), model="scripted", output=WANTED)


async def run(server: TerminalServer, request: RunRequest) -> ExitCode:
    async with open_api(server.address) as api:
        return await run_report.run(api, request, form="json", timeout_s=30, quiet=True)


def said(capsys: pytest.CaptureFixture[str]) -> Json:
    return msgspec.json.decode(capsys.readouterr().out, type=Json)


async def test_an_answer_that_does_not_fit_is_asked_for_once_more(
    server: TerminalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.will_answer("I like red best.")
    server.will_answer('{"colour": "red"}')
    assert await run(server, REQUEST) == ExitCode.DONE
    found = said(capsys)
    assert found["output"] == {"colour": "red"}
    page = await server.call("GET", f"/chats/{found['chat_id']}/prompts")
    texts = [str(one["text"]) for one in msgspec.convert(page["items"], list[Json])]
    assert "it is not JSON" in texts[0]
    assert texts[1].startswith("Choose.\n\nAnswer with one JSON value")


async def test_an_answer_that_never_fits_has_its_own_exit_code(
    server: TerminalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ('{"colour": "green"}', '{"colour": "grey"}'):
        server.will_answer(text)
    assert await run(server, REQUEST) == ExitCode.NOT_FITTING
    found = said(capsys)
    assert (found["ending"], found["exit_code"]) == ("failed", 7)
    assert "at /colour: 'grey' is not one of" in str(found["reason"])
    assert "output" not in found


async def test_rules_and_instructions_reach_the_chat_and_steps_are_limited(
    server: TerminalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(20):
        will_call(server, tool_call(0, TOOL, {}))
    request = replace(
        REQUEST,
        output=None,
        system="Be brief.",
        tool_rules=(ToolRule(tool=TOOL, action="deny"),),
        max_steps=2,
    )
    assert await run(server, request) == ExitCode.MODEL_ERROR
    found = said(capsys)
    assert found["reason"] == "It reached its limit of steps."
    policy = await server.call("GET", f"/chats/{found['chat_id']}/tool-policy")
    assert policy["rules"] == [{"tool": TOOL, "action": "deny"}]
    assert await server.status_of(msgspec.convert(found["chat_id"], ChatId)) == "waiting"
