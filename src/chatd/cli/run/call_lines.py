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
    """What a subagent waits for, which is answered by its own id."""
    needed = safe_line(chat.action_summary or "an answer", MAX_LINE)
    kinds = () if chat.action is None else chat.action.kinds
    answer = f"answer {chat.id} TEXT" if "question" in kinds else f"approve {chat.id}"
    return [f"A subagent waits: {needed}", f"  chatd chats {answer}"]


def ask_lines(asks: Sequence[Ask]) -> list[str]:
    """What each call waits for, and the commands that answer it. Nothing of a call that is to be
    approved is left out or hidden."""
    lines: list[str] = []
    for ask in asks:
        is_only = sum(one.chat_id == ask.chat_id for one in asks) == 1
        option = "" if is_only else f" --call {shlex.quote(ask.call.tool_call_id)}"
        match ask.call.kind:
            case "approval":
                lines += _approval_lines(ask, option)
            case "question":
                lines += _question_lines(ask, option)
            case _:
                name = safe_line(ask.call.tool_name, MAX_LINE)
                lines.append(
                    f"The client that declared the tool {name} must send its result; this command"
                    " cannot."
                )
    return lines


def plan_lines(chat_id: str) -> list[str]:
    return [
        "The model proposes a plan. To have it implemented, changed or dropped:",
        f"  chatd chats approve {chat_id}",
        f"  chatd chats answer {chat_id} TEXT",
        f"  chatd chats deny {chat_id}",
    ]


def _approval_lines(ask: Ask, option: str) -> list[str]:
    call, told = ask.call, describe_call(ask.call, ask.args)
    lines = [told.title]
    for block in told.blocks:
        lines += _block_lines(block.name, exact_text(block.text))
    for name, text in told.facts:
        head, *rest = exact_text(text).split("\n")
        lines += [f"  {name}: {head}", *(f"  | {line}" for line in rest)]
    lines += [f"  Attention: {text}" for text in told.warnings]
    lines.append(f"  chatd chats approve {ask.chat_id}{option}")
    if call.can_always:
        lines.append(f"  chatd chats approve {ask.chat_id}{option} --always")
    return [*lines, f"  chatd chats deny {ask.chat_id}{option} --reason TEXT"]


def _block_lines(name: str, text: str) -> list[str]:
    """Each line of the text with the same mark before it, so that none looks like ours."""
    first = f"  | {name}: " if name else "  | "
    head, *rest = text.split("\n")
    return [f"{first}{head}", *(f"  | {line}" for line in rest)]


def _question_lines(ask: Ask, option: str) -> list[str]:
    lines: list[str] = []
    questions = questions_of(ask.args)
    for number, question in enumerate(questions, 1):
        mark = f"{number}. " if len(questions) > 1 else ""
        lines.append(f"{mark}{safe_text(question.question)}")
        for place, one in enumerate(question.options, 1):
            told = f"{one.label}: {one.description}" if one.description else one.label
            lines.append(f"  {place}. {safe_line(told, MAX_LINE)}")
    answers = " ".join(["TEXT"] * max(len(questions), 1))
    lines.append(f"  chatd chats answer {ask.chat_id}{option} {answers}")
    return [*lines, f"  chatd chats deny {ask.chat_id}{option}"]
