"""Commands that a person runs: what a turn does with them, and what the model reads of them."""

import json

import pytest
from msgspec import Raw

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import CommandPart, ToolCallPart
from chatd.domain.chat.person_commands import (
    PERSON_COMMAND_TIMEOUT_S,
    command_call,
    command_of,
    has_ended,
    listed_process,
    open_call,
    running_process,
)
from chatd.domain.decisions import (
    Action,
    AskHooks,
    Finish,
    Generate,
    RequireAction,
    RunTools,
    StartCommand,
    TurnRules,
    next_action,
)
from chatd.domain.deployment.hooks import find_prompt
from chatd.domain.ids import MessageId
from chatd.domain.model.protocol import PromptText
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.domain.prompt.titles import title_input
from chatd.domain.text import parse_json
from chatd.domain.tool_policy.rules import PolicyLayer, ToolPolicy, ToolRule
from tests.support.domain.prompt_rules import find_problems
from tests.support.factories import OWNER, call, chat, message, pending, result, text

COMMAND = CommandPart(command="make test")
ASKED = ToolPolicy(rules=(ToolRule(tool="*", action="deny"),))
RULES = TurnRules(policy=(PolicyLayer(name="deployment", policy=ASKED),))


def asked(message_id: int) -> Message:
    return message(message_id, "user", COMMAND, created_by=OWNER)


def started(message_id: int, by: int) -> Message:
    """The call for the command of message `by`."""
    made = command_call(asked(by), "2026-01-01T00:00:00Z")
    return message(message_id, "assistant", *made.content)


def reported(message_id: int, by: int) -> Message:
    return message(message_id, "tool", result(f"person-command-{by}"))


def said(message_id: int) -> Message:
    return message(message_id, "user", text("go on"))


def called(message_id: int) -> tuple[Message, Message]:
    """A call of the model with its result."""
    answer = message(message_id, "assistant", call("a"))
    return answer, message(message_id + 1, "tool", result("a"))


@pytest.mark.parametrize(
    ("rows", "turn", "action"),
    [
        ((asked(1),), 1, StartCommand(message=asked(1))),
        ((asked(1), started(2, 1), reported(3, 1)), 1, Finish(reason="complete")),
        ((asked(1), started(2, 1), reported(3, 1), said(4)), 4, Generate()),
        ((said(1), *called(2), asked(4)), 1, StartCommand(message=asked(4))),
        ((said(1), *called(2), asked(4), started(5, 4), reported(6, 4)), 1, Generate()),
        ((asked(1), said(2)), 1, StartCommand(message=asked(1))),
        ((asked(1), said(2), started(3, 1), reported(4, 1)), 1, Generate()),
        ((asked(1), asked(2)), 1, StartCommand(message=asked(1))),
        (
            (asked(1), asked(2), started(3, 1), reported(4, 1)),
            1,
            StartCommand(message=asked(2)),
        ),
        (
            (asked(1), asked(2), started(3, 1), reported(4, 1), started(5, 2), reported(6, 2)),
            1,
            Finish(reason="complete"),
        ),
        ((asked(1), said(2)), 2, Generate()),
        ((asked(1), started(2, 1), reported(3, 1), said(4)), None, Generate()),
    ],
    ids=[
        "a command",
        "its report",
        "a message after it",
        "one that joined a turn",
        "its report, and the turn goes on",
        "a message that joined before it was started",
        "its report after that message",
        "two of a queue",
        "the second of them",
        "both reports",
        "one that was interrupted before it began",
        "a turn that no message began",
    ],
)
def test_a_command_runs_once_and_a_model_answers_only_what_was_said(
    rows: tuple[Message, ...], turn: int | None, action: Action
) -> None:
    began = None if turn is None else MessageId(turn)
    row = chat(status="running", turn_message_id=began)
    assert next_action(rows, row, RULES) == action


@pytest.mark.parametrize(
    ("asks_hooks", "kind"), [(False, RunTools), (True, AskHooks)], ids=["no hook", "a hook"]
)
def test_tool_policies_do_not_hold_a_person_and_hooks_do(
    kind: type[Action], *, asks_hooks: bool
) -> None:
    rules = TurnRules(
        policy=RULES.policy, refused_tools=frozenset({"execute"}), asks_hooks=asks_hooks
    )
    waiting = chat(
        status="running",
        turn_message_id=MessageId(1),
        pending_calls=(pending("person-command-1"),),
    )
    action = next_action((asked(1), started(2, 1)), waiting, rules)
    assert isinstance(action, kind)
    assert not (isinstance(action, RunTools) and action.denied)
    of_model = chat(
        status="running", turn_message_id=MessageId(1), pending_calls=(pending("call-1"),)
    )
    denied = next_action(
        (said(1), message(2, "assistant", call("call-1"))), of_model, TurnRules(policy=RULES.policy)
    )
    assert isinstance(denied, RunTools | RequireAction)
    assert isinstance(denied, RunTools)
    assert denied.denied


def test_the_call_names_its_message_and_the_person() -> None:
    made = command_call(asked(7), "2026-01-01T00:00:00Z")
    (part,) = made.content
    assert (made.role, made.created_by) == ("assistant", OWNER)
    assert part == started(8, 7).content[0]
    assert isinstance(part, ToolCallPart)
    assert parse_json(part.args) == {
        "command": "make test",
        "timeout": f"{PERSON_COMMAND_TIMEOUT_S}s",
    }


def test_the_model_reads_command_and_report_as_words_of_the_user() -> None:
    """No call of another than the model is in its prompt: vendors refuse those beside signed
    answers."""
    rows = [said(1), *called(2), message(4, "assistant", text("done")), asked(5)]
    rows += [started(6, 5), reported(7, 5), said(8)]
    prompt = build_prompt(rows, PromptTarget(provider="here"))
    assert find_problems(prompt) == []
    roles = ["user", "assistant", "tool", "assistant", "user", "user", "user"]
    assert [one.role for one in prompt] == roles
    told = [part.text for one in prompt[4:] for part in one.parts if isinstance(part, PromptText)]
    assert told == [
        "[The user ran this command in the workspace, without you:]\nmake test",
        "[The report of the command that the user ran:]\ndone",
        "go on",
    ]


def test_a_command_is_a_title_and_known_to_hooks() -> None:
    assert title_input([COMMAND], {}) == "make test"
    assert find_prompt([asked(3)]) == (MessageId(3), "! make test")
    assert command_of(asked(3)) == "make test"
    assert command_of(message(3, "assistant", COMMAND)) is None


@pytest.mark.parametrize(
    ("report", "process"),
    [
        ('{"running":true,"background_process_id":"p7"}', "p7"),
        ('{"success":true,"exit_code":0}', ""),
        ('{"background_process_id":"p7"}', ""),
        ('{"running":true,"background_process_id":7}', ""),
        ('"text"', ""),
    ],
)
def test_a_report_names_the_command_that_still_runs(report: str, process: str) -> None:
    assert running_process(Raw(report.encode())) == process
    assert has_ended(report) is ('"running":true' not in report)


def test_the_call_without_a_report_is_found_in_the_history() -> None:
    history = [asked(1), started(2, by=1)]
    found = open_call(history)
    assert found is not None
    assert found.tool_call_id == "person-command-1"
    assert open_call([*history, said(3)]) is not None, "a message that joined the turn"
    assert open_call([*history, reported(3, by=1)]) is None
    assert open_call([said(1), message(2, "assistant", call("c1"))]) is None
    assert open_call([]) is None


@pytest.mark.parametrize(
    ("entries", "process"),
    [
        ([{"id": "p2", "command": "make test", "running": True}], "p2"),
        ([{"id": "p2", "command": "make test", "running": False}], ""),
        ([{"id": "p2", "command": "make test", "running": True, "background": True}], ""),
        ([{"id": "p2", "command": "make", "running": True}], ""),
        (["odd", {"command": "make test", "running": True}], ""),
        (
            [
                {"id": "p3", "command": "make test", "running": True},
                {"id": "p2", "command": "make test", "running": True},
            ],
            "p3",
        ),
        (None, ""),
    ],
)
def test_the_process_of_a_command_is_found_in_the_list(entries: object, process: str) -> None:
    found = open_call([asked(1), started(2, by=1)])
    assert found is not None
    assert listed_process(json.dumps({"processes": entries}), found) == process
    assert listed_process("not json", found) == ""
