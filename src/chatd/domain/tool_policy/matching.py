"""Which calls a rule matches.

A rule that runs calls without asking must not match more than its author meant; one that asks or
denies may. So `auto` matches narrowly and `ask` and `deny` widely:

- `auto`: every argument that it names is there once, spelled exactly, and is a plain value. A
  wildcard matches no control characters and no value with a `..` between slashes. A command with a
  wildcard is matched only if the shell would run it as one command with fixed words.
- `ask`, `deny`: an argument matches if any text in it does, at any depth; so does one of that name
  within another argument, such as the path of each file that is edited. A path counts also as it
  is without blanks around it, `.`, `..` and double slashes, and of a command each part between
  separators. `~` and `$HOME` stand for any home directory. Arguments that cannot be read match, and
  so do those with too many home directories to try each.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final, cast

from msgspec import UNSET

from chatd.domain.text import Json
from chatd.domain.tool_policy.home_paths import with_homes
from chatd.domain.tool_policy.rules import ToolRule

COMMAND_ARGUMENT: Final = "command"
"""The argument of that name is text for a shell, whatever the tool."""

Arguments = Sequence[tuple[str, object]]
"""The fields of a call's arguments, with repeated ones."""

# Words of plain characters, '...' and "..." without anything that a shell expands. No separators,
# redirections, expansions, globs, comments, escapes or line breaks.
_PLAIN_WORD: Final = r"""(?:[\w@%+=:,./^-]|'[^'\x00-\x1f\x7f]*'|"[^"$`\\!\x00-\x1f\x7f]*")+"""
_PLAIN_COMMAND: Final = re.compile(rf"{_PLAIN_WORD}(?: +{_PLAIN_WORD})*", re.ASCII)
_SEPARATORS: Final = re.compile(r"[;&|\n\r(){}`<>]|\$\(")
_DOT_DOT: Final = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class _Fields(list[tuple[str, object]]):
    """A JSON object with its repeated keys."""


def read_arguments(args: Json) -> Arguments | None:
    """None if they are no JSON object: no tool runs with them."""
    if args is UNSET:
        return None
    try:
        value: object = json.loads(bytes(args), object_pairs_hook=_Fields)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, _Fields) else None


class CallArguments:
    """The arguments of one call, for many rules. `fields` is None if they cannot be read: the
    tool's parser may read more than this one."""

    def __init__(self, args: Json) -> None:
        self.fields = () if args is UNSET else read_arguments(args)
        self._texts: dict[str, tuple[str, ...]] = {}

    @cached_property
    def _values(self) -> Mapping[str, Sequence[object]]:
        """The values of all fields, at any depth, by their names without case."""
        found: dict[str, list[object]] = {}
        todo: list[object] = [_Fields(self.fields or ())]
        while todo:
            item = todo.pop()
            if isinstance(item, _Fields):
                for key, value in item:
                    found.setdefault(key.casefold(), []).append(value)
                    todo.append(value)
            elif isinstance(item, list):
                todo.extend(cast("list[object]", item))
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """All texts in fields of this name, which is without case."""
        if name not in self._texts:
            self._texts[name] = tuple(_texts(self._values.get(name, ())))
        return self._texts[name]


def matches(rule: ToolRule, tool_name: str, args: CallArguments) -> bool:
    if not _glob(rule.tool).fullmatch(tool_name):
        return False
    if args.fields is None:
        return rule.action != "auto" or not rule.args
    if rule.action == "auto":
        fields = args.fields
        return all(_matches_narrowly(name, value, fields) for name, value in rule.args.items())
    return all(_matches_widely(name, pattern, args) for name, pattern in rule.args.items())


def _matches_narrowly(name: str, pattern: str, args: Arguments) -> bool:
    found = [(key, value) for key, value in args if key.casefold() == name.casefold()]
    if len(found) != 1 or found[0][0] != name:
        return False
    text = _scalar_text(found[0][1])
    if text is None:
        return False
    if pattern.startswith("="):
        return text == pattern[1:]
    if not _has_wildcard(pattern):
        return text == pattern
    if name.casefold() == COMMAND_ARGUMENT:
        return _matches_plain_command(pattern, text)
    if _CONTROL.search(text) or _DOT_DOT.search(text):
        return False
    return _glob(pattern).fullmatch(text) is not None


def _matches_plain_command(pattern: str, text: str) -> bool:
    """A `*` at the end, after a space, stands for any words, also for none."""
    if not _PLAIN_COMMAND.fullmatch(text):
        return False
    if pattern.endswith(" *") and _glob(pattern[:-2]).fullmatch(text):
        return True
    return _glob(pattern).fullmatch(text) is not None


def _matches_widely(name: str, pattern: str, args: CallArguments) -> bool:
    wanted = name.casefold()
    is_command = wanted == COMMAND_ARGUMENT
    return any(_matches_text(pattern, text, is_command=is_command) for text in args.texts(wanted))


def _matches_text(pattern: str, text: str, *, is_command: bool) -> bool:
    if pattern.startswith("="):
        return text == pattern[1:]
    others = with_homes(pattern, text)
    if others is None:
        return True
    spellings = ((pattern, text), *others)
    return any(_matches_spelling(*spelling, is_command=is_command) for spelling in spellings)


def _matches_spelling(pattern: str, text: str, *, is_command: bool) -> bool:
    if _glob(pattern).fullmatch(text):
        return True
    if not is_command:
        return _glob(pattern).fullmatch(_plain_path(text)) is not None
    return any(_matches_part(pattern, part) for part in _command_parts(text))


def _plain_path(text: str) -> str:
    """As the tools read it: `normpath` alone keeps two slashes at the beginning."""
    text = text.strip()
    return posixpath.normpath(f"/{text.lstrip('/')}" if text.startswith("/") else text)


@lru_cache(maxsize=16)  # many rules look at one call
def _command_parts(text: str) -> tuple[str, ...]:
    """What stands between separators, with single blanks."""
    return tuple(" ".join(part.split()) for part in _SEPARATORS.split(text))


def _matches_part(pattern: str, words: str) -> bool:
    if pattern.endswith(" *") and _glob(pattern[:-2]).fullmatch(words):
        return True
    return _glob(pattern).fullmatch(words) is not None


def _texts(values: Sequence[object]) -> Iterator[str]:
    """A value that lies in another one is read once."""
    todo, seen = list(values), set[int]()
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            if id(cast("object", item)) in seen:
                continue
            seen.add(id(cast("object", item)))
            if isinstance(item, _Fields):
                todo.extend(inner for _, inner in item)
            else:
                todo.extend(cast("list[object]", item))
        elif (text := _scalar_text(item)) is not None:
            yield text


def _scalar_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return None


def _has_wildcard(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    """Every fixed text between two `*` is matched at the first place where it fits."""
    pieces = [
        "".join("." if char == "?" else re.escape(char) for char in piece)
        for piece in re.split(r"\*+", pattern)
    ]
    if len(pieces) == 1:
        return re.compile(pieces[0], re.DOTALL)
    first, *middle, last = pieces
    # An atomic gap never backtracks: matching takes linear time, whatever the model sends.
    gaps = "".join(f"(?>.*?{piece})" for piece in middle)
    return re.compile(f"{first}{gaps}.*{last}", re.DOTALL)
