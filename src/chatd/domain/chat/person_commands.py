"""Commands that a person runs in the workspace of a chat: a user message that is one command.

The worker commits a call of `execute` in the person's name, runs it as it runs a call of the model,
and ends the turn without a model call. At its next call the model reads the command and its report
as words of the user.
"""

from collections.abc import Sequence
from typing import Final, cast

import msgspec
from msgspec import Raw, Struct

from chatd.domain.chat.messages import Draft, Message, PublicMessage, local_calls
from chatd.domain.chat.parts import CommandPart, ToolCallPart
from chatd.domain.ids import MessageId, ToolCallId
from chatd.domain.text import Json, parse_json
from chatd.domain.workspace.agent_api import ProcessSignal

COMMAND_TOOL: Final = "execute"
PERSON_COMMAND_TIMEOUT_S: Final = 600
"""How long the worker waits for a person's command, which then continues in the background."""
END_WAIT_S: Final = 1.5
"""How long a person's command has to end after each signal."""
_CALL_PREFIX: Final = "person-command-"


class TurnCommands(Struct, frozen=True, kw_only=True):
    """`next` has not been started yet. `is_all`: the user said nothing else in this turn, so no
    model call follows."""

    next: Message | None = None
    is_all: bool = False


def command_of(message: Draft | PublicMessage) -> str | None:
    """The command that this message runs; None if it is another message."""
    if message.role != "user":
        return None
    return next((p.command for p in message.content if isinstance(p, CommandPart)), None)


def is_persons_call(call_id: str) -> bool:
    return call_id.startswith(_CALL_PREFIX)


def command_call(message: Message, at: str) -> Draft:
    """The call for this message. Its id is that of the message, so that it is made once."""
    args = {"command": command_of(message) or "", "timeout": f"{PERSON_COMMAND_TIMEOUT_S}s"}
    call = ToolCallPart(
        tool_call_id=_call_id(message.id),
        tool_name=COMMAND_TOOL,
        args=Raw(msgspec.json.encode(args)),
        created_at=at,
    )
    return Draft(role="assistant", content=(call,), created_by=message.created_by)


def open_call(history: Sequence[Message]) -> ToolCallPart | None:
    """The call of a person's command that has no report yet, if it is the newest of the chat."""
    for row in reversed(history):
        if row.deleted or row.role not in ("assistant", "tool"):
            continue
        calls = local_calls(row.content) if row.role == "assistant" else ()
        return next((call for call in calls if is_persons_call(call.tool_call_id)), None)
    return None


LIST_TOOL: Final = "process_list"


def listed_process(listed: str, call: ToolCallPart) -> str:
    """The id of the command of this call, if it runs by a report of `process_list`; or empty."""
    command = _fields(call.args).get("command")
    found = _fields(Raw(listed.encode())).get("processes")
    for entry in cast("list[object]", found) if isinstance(found, list) else []:
        known = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
        if known.get("running") is True and not known.get("background"):
            process = known.get("id")
            if known.get("command") == command and isinstance(process, str):
                return process
    return ""


def running_process(report: Json) -> str:
    """The id of the command that still ran when this report of `execute` was made; or empty."""
    fields = _fields(report)
    process = fields.get("background_process_id")
    return process if isinstance(process, str) and fields.get("running") is True else ""


def has_ended(report: str) -> bool:
    """Whether the command has ended, by a report of `process_output`."""
    return _fields(Raw(report.encode())).get("running") is not True


def end_calls(process_id: str, signal: ProcessSignal) -> tuple[tuple[str, Raw], ...]:
    """The tool calls that end a command and then get its report."""
    sent = {"process_id": process_id, "signal": signal}
    asked = {"process_id": process_id, "wait_timeout": f"{END_WAIT_S:g}s"}
    return (
        ("process_signal", Raw(msgspec.json.encode(sent))),
        ("process_output", Raw(msgspec.json.encode(asked))),
    )


def _fields(raw: Json) -> dict[str, object]:
    value = parse_json(raw)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def find_commands(history: Sequence[Message], turn_id: MessageId | None) -> TurnCommands:
    """The commands of the turn that the message with this id began, and of messages that joined."""
    prompts: list[Message] = []
    started: set[ToolCallId] = set()
    for row in reversed(history):
        if turn_id is None or row.id < turn_id:
            break
        if row.deleted:
            continue
        if row.starts_turn:
            prompts.append(row)
        elif row.role == "assistant":
            started.update(call.tool_call_id for call in local_calls(row.content))
    commands = [row for row in reversed(prompts) if command_of(row) is not None]
    return TurnCommands(
        next=next((row for row in commands if _call_id(row.id) not in started), None),
        is_all=bool(commands) and len(commands) == len(prompts),
    )


def _call_id(message_id: MessageId) -> ToolCallId:
    return ToolCallId(f"{_CALL_PREFIX}{message_id}")
