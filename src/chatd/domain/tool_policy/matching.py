"""Which calls a rule matches.

A rule that runs calls without asking must not match more than its author meant; one that asks or
denies may. So `auto` matches narrowly and `ask` and `deny` widely:

- `auto`: every argument that it names is there once, spelled exactly, and is a plain value; one
  with the pattern `=` is empty or missing. A wildcard matches no control characters and no value
  with a `..` between slashes. A command with a wildcard is matched only if the shell would run it
  as one command with fixed words.
- `ask`, `deny`: an argument matches if any text in it does, at any depth; so does one of that name
  within another argument, such as the path of each file that is edited. A path counts also as it
  is without blanks around it, `.`, `..` and double slashes, and of a command each command that the
  shell would run (shell_commands.py). `~` and `$HOME` stand for any home directory. Arguments that
  cannot be read match, and so do those with too many home directories to try each. A command of
  which only the running shell knows whether it matches, `may` match.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import Final, Literal, cast

from msgspec import UNSET

from chatd.domain.text import Json
from chatd.domain.tool_policy.rules import PolicyLayer, ToolRule
from chatd.domain.tool_policy.shell_commands import read_shell
from chatd.domain.tool_policy.shell_syntax import ANY_NAME, ANY_TEXT

# `~` and `$HOME` in the texts of calls and in patterns, for rules that ask or deny.
#
# The rules do not know the home directory of a workspace. So a `~` stands for every home directory
# that the other side names, or for the usual ones: such a rule may match more than its author
# meant.

_USUAL: Final = ("/root", "/home/dev")
_VARIABLE: Final = re.compile(
    r""""\$HOME"|"\$\{HOME\}"|\$HOME(?!\w)|\$\{HOME\}|(?:^|(?<=[\s=:'"(]))~(?=[/\s'")]|$)"""
)
_DIRECTORY: Final = re.compile(r"/(?:home|Users)/[^/\s'\"]{1,255}|/root(?![^/\s'\"])")
_USER: Final = re.compile(r"""(?:^|(?<=[\s=:'"(]))~(\w[\w.-]{0,31})(?=[/\s'")]|$)""")
_MAX_HOMES: Final = 16
_MAX_VARIABLES: Final = 256
"""What a model sends must cost neither much memory nor much time. A call with more counts as a
match, so that nothing hides behind the bound."""


def with_homes(pattern: str, text: str) -> list[tuple[str, str]] | None:
    """The pattern and the text with each home directory that a `~` or `$HOME` in them may be.
    Nothing if they have none; None if there are too many to tell."""
    found: list[tuple[str, str]] = []
    named = _name_users(pattern), _name_users(text)
    if named != (pattern, text):
        found.append(named)
        pattern, text = named
    homes: list[str] = []
    in_pattern, in_text = _count_variables(pattern), _count_variables(text)
    if in_text > _MAX_VARIABLES and (in_pattern or "/" in pattern):
        return None
    if in_text:
        homes += [_plain(home) for home in _named(pattern)]
    if in_pattern:
        homes += _named(text)
    if len(homes) > _MAX_HOMES:
        return None
    if in_pattern or in_text:
        filled = dict.fromkeys(homes or _USUAL)
        found += [(_fill_in(pattern, home), _fill_in(text, home)) for home in filled]
    return found


@lru_cache(maxsize=16)  # many rules look at one call
def _named(text: str) -> tuple[str, ...]:
    """Each once, and one more than the bound at most."""
    found: dict[str, None] = {}
    for one in _DIRECTORY.finditer(text):
        found[one[0]] = None
        if len(found) > _MAX_HOMES:
            break
    return tuple(found)


@lru_cache(maxsize=16)
def _count_variables(text: str) -> int:
    """No more than one above the bound."""
    return sum(1 for _ in islice(_VARIABLE.finditer(text), _MAX_VARIABLES + 1))


@lru_cache(maxsize=16)
def _name_users(text: str) -> str:
    """`~dev` is the home directory of that user."""
    return _USER.sub(lambda one: "/root" if one[1] == "root" else f"/home/{one[1]}", text)


@lru_cache(maxsize=16)
def _fill_in(text: str, home: str) -> str:
    return _VARIABLE.sub(lambda _: home, text, _MAX_VARIABLES)


def _plain(pattern: str) -> str:
    """A directory that the pattern matches."""
    return pattern.replace("*", "x").replace("?", "x")


COMMAND_ARGUMENT: Final = "command"
"""The argument of that name is text for a shell, whatever the tool."""

MatchResult = Literal["no", "may", "yes"]
MAX_UNKNOWN_CHARS: Final = 1024
"""Of the commands with unknown text that are compared with a pattern sign by sign. In longer ones
only the fixed text at the beginning counts."""

MAX_SHOWN_COMMANDS: Final = 50
MAX_COMPARED_COMMANDS: Final = 250
"""Of one call. Reading a command takes time on the event loop, so a call with more texts for a
shell counts as meant by every rule that asks or denies.
"""

Commands = Sequence[tuple[str, MatchResult]]
Arguments = Sequence[tuple[str, object]]
"""The fields of a call's arguments, with repeated ones."""

# Words of plain characters, '...' and "..." without anything that a shell expands. No separators,
# redirections, expansions, globs, comments, escapes or line breaks.
_PLAIN_WORD: Final = r"""(?:[\w@%+=:,./^-]|'[^'\x00-\x1f\x7f]*'|"[^"$`\\!\x00-\x1f\x7f]*")+"""
_PLAIN_COMMAND: Final = re.compile(rf"{_PLAIN_WORD}(?: +{_PLAIN_WORD})*", re.ASCII)
_BLANKS_AT_HOLES: Final = re.compile(rf" *{ANY_TEXT}[ {ANY_TEXT}]*")
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


def matches(rule: ToolRule, tool_name: str, args: CallArguments) -> MatchResult:
    if not _glob(rule.tool).fullmatch(tool_name):
        return "no"
    if args.fields is None:
        return "yes" if rule.action != "auto" or not rule.args else "no"
    if rule.action == "auto":
        fields = args.fields
        found = all(_matches_narrowly(name, value, fields) for name, value in rule.args.items())
        return "yes" if found else "no"
    results = {_match_widely(name, pattern, args) for name, pattern in rule.args.items()}
    return "no" if "no" in results else "may" if "may" in results else "yes"


def simple_commands(rule: ToolRule | None, args: CallArguments) -> Commands:
    """The commands that a shell would run for the call, each with whether the rule means it. What
    only the running shell knows stands as `…`. At most `MAX_SHOWN_COMMANDS`."""
    named = () if rule is None else rule.args.items()
    patterns = [value for name, value in named if name.casefold() == COMMAND_ARGUMENT]
    found: dict[str, MatchResult] = {}
    for text in args.texts(COMMAND_ARGUMENT)[:MAX_SHOWN_COMMANDS]:
        for command in read_shell(text).commands[:MAX_SHOWN_COMMANDS]:
            shown = command.replace(ANY_TEXT, "…").replace(ANY_NAME, "…")
            found.setdefault(shown, _match_simple(patterns, command))
    return tuple(found.items())[:MAX_SHOWN_COMMANDS]


def _match_simple(patterns: Sequence[str], command: str) -> MatchResult:
    globs = [
        glob
        for pattern in patterns
        for wanted in (pattern, _by_base_name(pattern))
        for glob in (wanted, wanted.removesuffix(" *"))
    ]
    if any(_match_text(glob, command) == "yes" for glob in globs):
        return "yes"
    return "may" if any(_may_match(glob, [command]) for glob in globs) else "no"


def denied_tools(layers: Sequence[PolicyLayer], names: Sequence[str]) -> frozenset[str]:
    """Those of the tools that a policy denies whatever their arguments."""
    patterns = tuple(
        rule.tool
        for layer in layers
        for rule in layer.policy.rules
        if rule.action == "deny" and not rule.args
    )
    if not patterns:
        return frozenset()
    return frozenset(name for name in names if _any_glob(patterns).fullmatch(name))


def _matches_narrowly(name: str, pattern: str, args: Arguments) -> bool:
    found = [(key, value) for key, value in args if key.casefold() == name.casefold()]
    if not found:
        return pattern == "="
    if len(found) != 1 or found[0][0] != name:
        return False
    text = scalar_text(found[0][1])
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


def _match_widely(name: str, pattern: str, args: CallArguments) -> MatchResult:
    wanted = name.casefold()
    texts = dict.fromkeys(args.texts(wanted))
    if wanted == COMMAND_ARGUMENT and len(texts) > MAX_COMPARED_COMMANDS:
        return "yes"
    match_text = _match_command if wanted == COMMAND_ARGUMENT else _match_text
    results = {match_text(pattern, text) for text in texts}
    return "yes" if "yes" in results else "may" if "may" in results else "no"


def _match_text(pattern: str, text: str) -> MatchResult:
    if pattern.startswith("="):
        return "yes" if text == pattern[1:] else "no"
    others = with_homes(pattern, text)
    if others is None:
        return "yes"
    for glob, spelling in ((pattern, text), *others):
        if _glob(glob).fullmatch(spelling) or _glob(glob).fullmatch(_plain_path(spelling)):
            return "yes"
    return "no"


def _match_command(pattern: str, text: str) -> MatchResult:
    if pattern.startswith("="):
        return "yes" if text == pattern[1:] else "no"
    if _match_text(pattern, text) == "yes":
        return "yes"
    reading = read_shell(text)
    lines = "\n".join(reading.commands)
    may_match = reading.is_unclear
    for wanted in dict.fromkeys((pattern, _by_base_name(pattern))):
        others = with_homes(wanted, lines)
        if others is None:
            return "yes"
        for glob, spelling in ((wanted, lines), *others):
            globs = [glob, glob[:-2]] if glob.endswith(" *") else [glob]
            commands = spelling.split("\n")
            if any(_glob(one).fullmatch(command) for one in globs for command in commands):
                return "yes"
            may_match = may_match or any(_may_match(one, commands) for one in globs)
    return "may" if may_match else "no"


def _by_base_name(pattern: str) -> str:
    """A program with a path counts by its name, in a pattern as in a command."""
    program, blank, rest = pattern.partition(" ")
    return pattern if _has_wildcard(program) else f"{program.rsplit('/', 1)[-1]}{blank}{rest}"


def _may_match(pattern: str, commands: Sequence[str]) -> bool:
    """Whether there is a text for each hole with which a command matches."""
    budget = MAX_UNKNOWN_CHARS
    for command in commands:
        if ANY_TEXT not in command and ANY_NAME not in command:
            continue
        # An unknown word may also be none.
        text = _BLANKS_AT_HOLES.sub(ANY_TEXT, command)
        budget -= len(text)
        if budget < 0:
            text = text[: max(0, len(text) + budget)][:64] + ANY_TEXT
        if _signs_of(pattern).may_match(text):
            return True
    return False


class _PatternSigns:
    """Follows a pattern through a text with holes, as a set of places in the pattern: bit N is set
    if the text so far may be the first N signs of the pattern."""

    def __init__(self, pattern: str) -> None:
        signs = [char for char in pattern if char != "*"]
        self._end = 1 << len(signs)
        self._all = (self._end << 1) - 1
        self._places: dict[str, int] = {}
        self._any = self._repeat = self._in_name = 0
        place = 0
        for char in pattern:
            bit = 1 << place
            if char == "*":
                self._repeat |= bit
                continue
            if char == "?":
                self._any |= bit
            else:
                self._places[char] = self._places.get(char, 0) | bit
            if char not in " /":
                self._in_name |= bit
            place += 1

    def may_match(self, text: str) -> bool:
        places = 1
        for char in text:
            if char == ANY_TEXT:
                places = self._all & -(places & -places)
            elif char == ANY_NAME:
                # The addition carries each place through all signs that a name may have.
                passed = (places & self._in_name) + self._in_name
                places |= (passed ^ self._in_name) & self._all
            else:
                fitting = places & (self._places.get(char, 0) | self._any)
                places = (fitting << 1) | (places & self._repeat)
            if not places:
                return False
        return bool(places & self._end)


def _plain_path(text: str) -> str:
    """As the tools read it: `normpath` alone keeps two slashes at the beginning."""
    text = text.strip()
    return posixpath.normpath(f"/{text.lstrip('/')}" if text.startswith("/") else text)


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
        elif (text := scalar_text(item)) is not None:
            yield text


def scalar_text(value: object) -> str | None:
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


@lru_cache(maxsize=256)  # looked up at every step of a chat
def _any_glob(patterns: tuple[str, ...]) -> re.Pattern[str]:
    globs = (f"(?:{_glob(pattern).pattern})" for pattern in dict.fromkeys(patterns))
    return re.compile("|".join(globs), re.DOTALL)


@lru_cache(maxsize=1024)
def _signs_of(pattern: str) -> _PatternSigns:
    return _PatternSigns(pattern)
