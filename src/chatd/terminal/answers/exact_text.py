r"""Text by which a person decides: nothing is left out, nothing can hide.

`safe_text` removes what the eye cannot see. A person who approves a command must see that it is
there, so here it becomes an escape such as `\u200b`. Rows are cut here and not by the widget: the
first row of each line has its own mark, so that a wrapped row never looks like a new line.
"""

import json
import re
from collections.abc import Iterator
from typing import Final, Literal, cast
from unicodedata import category

from msgspec import UNSET, Struct
from rich.cells import get_character_cell_size

from chatd.client.state import ShownChat
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.text import Json
from chatd.domain.tool_policy.matching import COMMAND_ARGUMENT, read_arguments
from chatd.terminal.safe_text import character_width, safe_text

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_MARKS: Final = frozenset({"Mn", "Me"})
_BLANK: Final = frozenset("\u2800\u3164\u115f\u1160\uffa0\u034f\u17b4\u17b5\U0001d159")
_WORD: Final = re.compile(r"\w+")
_NAME: Final = re.compile(r"[\w.$@/-]+")

HEAD_ROWS: Final = 3
TAIL_ROWS: Final = 3
"""How many rows of a folded text's end are shown: a long command could hide its effect there."""


class ExactRow(Struct, frozen=True):
    """One row on the screen. `starts` is false if the line began in a row above; `hidden` counts
    the rows that are folded in its place."""

    text: str
    starts: bool = True
    hidden: int = 0


def exact_text(text: str) -> str:
    """The text with every character that cannot be seen as an escape. Line feeds stay."""
    return "\n".join(map(_exact_line, text.split("\n")))


def exact_line(text: str) -> str:
    """The same in one line: line feeds are escapes too."""
    return exact_text(text).replace("\n", "\\n")


def exact_name(name: str) -> str:
    """A name in one line; in quotes if it could be taken for words of this program."""
    return exact_line(name if _NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False))


def _exact_line(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line
    shown: list[str] = []
    before = ""
    for character in line:
        shown.append(_escape(character) if _is_hidden(character, before) else character)
        before = character
    return "".join(shown)


def _is_hidden(character: str, before: str) -> bool:
    if character == " ":
        return False
    kind = category(character)
    if kind in _MARKS:  # a mark belongs on a letter; alone, or as a selector, it is not seen
        return not before.isalnum() or safe_text(character) != character
    return kind in _HIDDEN or character in _BLANK or safe_text(character) != character


def _escape(character: str) -> str:
    code = ord(character)
    if character in "\t\r":
        return "\\t" if character == "\t" else "\\r"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def exact_rows(text: str, width: int) -> list[ExactRow]:
    """All rows of the text, none wider than `width` cells."""
    lines = exact_text(text).split("\n")
    return [row for line in lines for row in _cut(line, max(width, 2))]


def _cut(line: str, width: int) -> Iterator[ExactRow]:
    if line.isascii():  # the usual case, and much faster
        for begin in range(0, len(line) or 1, width):
            yield ExactRow(line[begin : begin + width], starts=begin == 0)
        return
    begin, used = 0, 0
    for index, character in enumerate(line):
        # The wider of both: a row must not be cut again where it is drawn.
        cells = max(character_width(character), get_character_cell_size(character))
        if used + cells > width:
            yield ExactRow(line[begin:index], starts=begin == 0)
            begin, used = index, 0
        used += cells
    yield ExactRow(line[begin:], starts=begin == 0)


def folded(rows: list[ExactRow]) -> list[ExactRow]:
    """The beginning and the end of long texts, with the number of rows between them."""
    hidden = len(rows) - HEAD_ROWS - TAIL_ROWS
    if hidden <= 1:
        return rows
    return [*rows[:HEAD_ROWS], ExactRow("", hidden=hidden), *rows[-TAIL_ROWS:]]


def mixed_words(text: str) -> list[str]:
    """Words that have letters of ASCII next to others, which may look the same."""
    return [
        word
        for word in dict.fromkeys(_WORD.findall(text))
        if any(one.isascii() and one.isalpha() for one in word)
        and any(not one.isascii() and one.isalpha() for one in word)
    ]


# What an approval says of its call: the command or all arguments, and why it asks. Pure.

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
    """Every argument as text, including repeated ones."""
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
