"""What an approval says of its call: the command or all arguments, and why it asks. Pure."""

import json
from typing import Final, Literal, cast

from msgspec import UNSET, Struct

from chatd.client.state import ShownChat
from chatd.domain.chat.events import RequestedCall
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.text import Json
from chatd.domain.tool_policy.matching import COMMAND_ARGUMENT, read_arguments
from chatd.terminal.answers.exact_text import exact_name, exact_text, mixed_words

BlockKind = Literal["command", "argument"]

_MOST_MIXED: Final = 3
_NO_OBJECT: Final = "The arguments are no JSON object: the tool may refuse them."
_UNREADABLE: Final = "The arguments have not arrived: approve it when they are shown."
_NAMES: Final = {"workdir": "Directory", "model_intent": "Purpose", "timeout": "Time limit"}


class TextBlock(Struct, frozen=True):
    """A text to be shown exactly, over rows of its own."""

    kind: BlockKind
    name: str
    text: str


class CallText(Struct, frozen=True, kw_only=True):
    """`blocks` have what the call will do, `facts` what is known about it."""

    title: str
    blocks: tuple[TextBlock, ...]
    facts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def arguments_of(call: RequestedCall, chat: ShownChat) -> Json:
    """Arguments that are too long for the request are in the message of the call."""
    if call.args is not UNSET:
        return call.args
    for message in reversed(chat.messages):
        for part in message.content:
            if isinstance(part, ToolCallPart) and part.tool_call_id == call.tool_call_id:
                return part.args
    return UNSET


def describe_call(call: RequestedCall, args: Json) -> CallText:
    """Every argument is in the text, one that is given twice too."""
    fields = read_arguments(args)
    facts = (("Why it asks", call.reason),) if call.reason else ()
    if fields is None:
        return CallText(
            title=f"Allow {exact_name(call.tool_name)}?",
            blocks=_raw_blocks(args),
            facts=facts,
            warnings=(_UNREADABLE if args is UNSET else _NO_OBJECT,),
        )
    commands = [text for name, text in fields if name == COMMAND_ARGUMENT]
    is_command = len(commands) == 1 and isinstance(commands[0], str)
    blocks = [_block(name, value, is_command=is_command) for name, value in fields]
    blocks.sort(key=lambda block: block.kind != "command")
    title = "Run this command?" if is_command else f"Allow {exact_name(call.tool_name)}?"
    if is_command and call.tool_name != "execute":
        title = f"Run this command with {exact_name(call.tool_name)}?"
    return CallText(
        title=title, blocks=tuple(blocks), facts=facts, warnings=_warnings(blocks, fields)
    )


def _raw_blocks(args: Json) -> tuple[TextBlock, ...]:
    if args is UNSET:
        return (TextBlock("argument", "", "(not readable)"),)
    return (TextBlock("argument", "", bytes(args).decode(errors="backslashreplace")),)


def _block(name: str, value: object, *, is_command: bool) -> TextBlock:
    if is_command and name == COMMAND_ARGUMENT:
        return TextBlock("command", "", cast("str", value))
    text = value if isinstance(value, str) else _json_text(value)
    return TextBlock("argument", _argument_name(name), text)


def _argument_name(name: str) -> str:
    """No argument can be taken for another one, nor for what this program says itself."""
    is_taken = name in _NAMES.values()
    return _NAMES.get(name) or (json.dumps(name) if is_taken else exact_name(name))


def _json_text(value: object) -> str:
    """JSON with repeated keys: the objects of `read_arguments` are lists of pairs."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    items = cast("list[object]", value)
    if type(items) is list:
        return f"[{', '.join(map(_json_text, items))}]"
    pairs = cast("list[tuple[str, object]]", items)
    return "{" + ", ".join(f"{_json_text(name)}: {_json_text(one)}" for name, one in pairs) + "}"


def _warnings(blocks: list[TextBlock], fields: object) -> tuple[str, ...]:
    names = [name for name, _ in cast("list[tuple[str, object]]", fields)]
    found: list[str] = []
    if len(set(names)) < len(names):
        found.append("An argument is given twice: which one counts is up to the tool.")
    texts = [*names, *(block.text for block in blocks)]
    if any(exact_text(text) != text.replace("\t", "\\t") for text in texts):
        found.append("Invisible characters are shown as escapes such as \\u200b.")
    mixed = [word for text in texts for word in mixed_words(text)][:_MOST_MIXED]
    if mixed:
        found.append(f"Letters of several alphabets in one word: {exact_text(', '.join(mixed))}")
    return tuple(found)
