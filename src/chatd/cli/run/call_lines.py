"""Tool calls in one line each, and what a chat that waits needs from a person."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec

from chatd.client.resources import Chat
from chatd.domain.text import Json
from chatd.terminal.answers.asks import Ask
from chatd.terminal.answers.call_text import describe_call
from chatd.terminal.answers.exact_text import exact_text
from chatd.terminal.answers.question_draft import questions_of
from chatd.terminal.policy.rule_draft import always_rule
from chatd.terminal.safe_text import safe_line, safe_text

MAX_LINE: Final = 160
_TELLING: Final = ("command", "path", "file_path", "url", "query", "name", "title", "prompt")
"""Arguments that say most about a call, the first of them that it has."""


def read_object(raw: Json) -> Mapping[str, object]:
    """An empty one for anything else than a JSON object."""
    if isinstance(raw, msgspec.UnsetType):
        return {}
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def call_line(tool_name: str, args: Json, width: int = MAX_LINE) -> str:
    """Such as `execute  pytest -q`."""
    found = read_object(args)
    texts = (value for key in _TELLING if isinstance(value := found.get(key), str))
    listed = [*_each(found.get("files"), "path"), *_each(found.get("questions"), "question")]
    telling = next(texts, None) or ", ".join(listed)
    if not telling and found:
        telling = msgspec.json.encode(found).decode()
    return safe_line(f"{tool_name} {telling}", width).replace(" ", "  ", 1)


def _each(entries: object, field: str) -> list[str]:
    """The texts of this field in a list of objects."""
    listed = cast("list[object]", entries) if isinstance(entries, list) else []
    objects = [cast("Mapping[str, object]", one) for one in listed if isinstance(one, dict)]
    return [text for one in objects if isinstance(text := one.get(field), str)]


def subagent_lines(chat: Chat) -> list[str]:
    """What a subagent waits for, which is answered by its own id. The command shows the call and
    asks first, because the call's id is not known here."""
    needed = safe_line(chat.action_summary or "an answer", MAX_LINE)
    kinds = () if chat.action is None else chat.action.kinds
    answer = f"answer {chat.id} TEXT" if "question" in kinds else f"approve {chat.id}"
    return [f"A subagent waits: {needed}", f"  chatd chats {answer}"]


def ask_lines(asks: Sequence[Ask]) -> list[str]:
    """What each call waits for, and the commands that answer it. They name the call: another one
    may wait when they are run. Nothing of a call that is to be approved is left out or hidden."""
    return [line for ask in asks for line in (*told_lines(ask), *_command_lines(ask))]


def told_lines(ask: Ask) -> list[str]:
    """What a call waits for."""
    match ask.call.kind:
        case "approval":
            return _approval_lines(ask)
        case "question":
            return _question_lines(ask)
        case _:
            name = safe_line(ask.call.tool_name, MAX_LINE)
            return [f"The client that declared the tool {name} must send its result, not you."]


def always_text(ask: Ask) -> str:
    """The rule that `--always` stores, in words; empty if there is none."""
    rule = always_rule(ask.call.tool_name, ask.args)
    if rule is None:
        return ""
    which = (
        "with exactly this command and directory"
        if rule.args
        else "every call, whatever its arguments"
    )
    return f"run {exact_line(rule.tool)} without asking in this chat, {which}"


def plan_lines(chat_id: str, call_id: str) -> list[str]:
    named = f"{chat_id} --call {_quote_id(call_id)}"
    return [
        "The model proposes a plan. To have it implemented, changed or dropped:",
        f"  chatd chats approve {named}",
        f"  chatd chats answer {named} TEXT",
        f"  chatd chats deny {named}",
    ]


def exact_line(text: str) -> str:
    return exact_text(text).replace("\n", "\\n")


def _quote_id(call_id: str) -> str:
    """Models give ids: one that a shell or a terminal would obey names no call here."""
    return shlex.quote(exact_line(call_id))


def _command_lines(ask: Ask) -> list[str]:
    named = f"{ask.chat_id} --call {_quote_id(ask.call.tool_call_id)}"
    match ask.call.kind:
        case "approval":
            lines = [f"  chatd chats approve {named}"]
            if ask.call.can_always and (stored := always_text(ask)):
                lines += [f"  chatd chats approve {named} --always", f"    stores: {stored}"]
            return [*lines, f"  chatd chats deny {named} --reason TEXT"]
        case "question":
            answers = " ".join(["TEXT"] * max(len(questions_of(ask.args)), 1))
            return [f"  chatd chats answer {named} {answers}", f"  chatd chats deny {named}"]
        case _:
            return []


def _approval_lines(ask: Ask) -> list[str]:
    told = describe_call(ask.call, ask.args)
    lines = [told.title]
    for block in told.blocks:
        lines += _block_lines(block.name, exact_text(block.text))
    for name, text in told.facts:
        head, *rest = exact_text(text).split("\n")
        lines += [f"  {name}: {head}", *(f"  | {line}" for line in rest)]
    return [*lines, *(f"  Attention: {text}" for text in told.warnings)]


def _block_lines(name: str, text: str) -> list[str]:
    """Each line of the text with the same mark before it, so that none looks like ours."""
    first = f"  | {name}: " if name else "  | "
    head, *rest = text.split("\n")
    return [f"{first}{head}", *(f"  | {line}" for line in rest)]


def _question_lines(ask: Ask) -> list[str]:
    lines: list[str] = []
    questions = questions_of(ask.args)
    for number, question in enumerate(questions, 1):
        mark = f"{number}. " if len(questions) > 1 else ""
        lines.append(f"{mark}{safe_text(question.question)}")
        for place, one in enumerate(question.options, 1):
            told = f"{one.label}: {one.description}" if one.description else one.label
            lines.append(f"  {place}. {safe_line(told, MAX_LINE)}")
    return lines
