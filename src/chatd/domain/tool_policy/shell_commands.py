"""The commands that a shell would run for a text, for rules that ask or deny.

A rule that allows a command does not use this: it matches plain commands only (matching.py).

The parser finds the simple commands (shell_syntax.py). This module takes a program by its base
name, and looks through programs that start others (shell_programs.py), through text for another
shell (`bash -c`, `eval`, a here-document for `sh`) and through code (shell_code.py).

What only the running shell knows, such as a variable, is a hole: it may be any text. What cannot
be read at all, such as a syntax error or a pipe into a shell, makes the reading unclear.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, dropwhile, pairwise, takewhile
from typing import Final

from msgspec import Struct

from chatd.domain.tool_policy.shell_code import LANGUAGES, MAX_SHELL_CODE_CHARS
from chatd.domain.tool_policy.shell_programs import (
    CODE_VARIABLES,
    COMMAND_VARIABLES,
    HAS_SUBCOMMANDS,
    PROGRAMS,
    PROMPTS,
    READS_COMMANDS,
    SCRIPT_FILES,
    SHELLS,
    VARIABLE_OPTIONS,
    Program,
    find_program,
    may_start_words,
    starts_others,
)
from chatd.domain.tool_policy.shell_syntax import (
    ANY_NAME,
    ANY_TEXT,
    PIPE_FILE,
    SimpleCommand,
    has_hole,
    parse_shell,
    substitutions,
    unescape,
    without_heredocs,
)

MAX_SHELL_CHARS: Final = 16_384
"""Of a command, without the here-documents that no shell reads. A longer one is unclear; of one
with plain words only, the rest is a hole."""
MAX_SHELL_SIGNS: Final = 400
"""Quotes, brackets and operators in it. The time that the parser needs for a text with errors
grows with their square: 400 take at most 0.1 s."""
MAX_SHELL_TEXTS: Final = 24
"""Texts that one command hands to other shells, however deeply."""
MAX_SHELL_COMMANDS: Final = 500
MAX_SHELL_DEPTH: Final = 32
"""Programs that start one another, as in `sudo nice ls`. What a longer chain runs is unclear."""
MAX_SHELL_FORM_CHARS: Final = 131_072
"""Of all commands in all spellings, each time that one is found. What follows is unclear."""

_SIGNS: Final = re.compile(r"[|&;<>(){}$`'\"\[\]]")
_SEPARATORS: Final = re.compile(r"[;&|\n\r(){}`<>]|\$\(")
_NOT_PLAIN: Final = re.compile(r"[^\S ]|[|&;<>(){}`'\"\[\]\\*?#!]|\$(?!HOME\b)")
_PLAIN_TEXT: Final = re.compile(r"[\w./:@%+,-]+(?: +[\w./:@%+,=-]+)*", re.ASCII)
_LINE_BREAK: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\\n")
_LINE_WITH_ESCAPE: Final = re.compile(r"\n([ \t]*)\\(?!\n)")
"""The parser takes such a line for a part of the one before; two quotes make it another word."""
_CLUSTER: Final = re.compile(r"-\w+")
_MAX_SIGNS_OF_XARGS: Final = 4
_STANDARD_INPUT: Final = re.compile(r"-|/dev/(?:stdin|fd/.*)|/proc/.*/fd/.*")
_ASSIGNMENT: Final = re.compile(r"(\w[\w%()]*)\+?=(.*)", re.DOTALL)
_FILLING: Final = frozenset({"mapfile", "printf", "read", "readarray"})
"""Builtins of bash that set the variables which they name."""
_ASSIGNING: Final = frozenset({"declare", "env", "export", "local", "readonly", "sudo", "typeset"})
_UNKNOWN_TEXT: Final = re.compile(rf"\s*(?:{ANY_TEXT}|\$\{{?\w+\}}?)\s*")
_VERSION_OPTIONS: Final = frozenset({"--version", "--help", "-V", "-VV", "-h", "-v"})

# What a shell without bash's additions, such as Debian's /bin/sh, reads differently.
_POSIX: Final = (
    (re.compile(r"\$(?=['\"])"), ""),
    (re.compile(r"&>"), "& >"),
    (re.compile(r"(?<!\$)\(\("), "( ("),
    (re.compile(r"(?:(?<=[\s;&|(!])|^)\[\[(?=\s)"), "x"),
)
_SHELL_VALUES: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})


class ShellReading(Struct, frozen=True, kw_only=True):
    """The words of each command, joined by blanks, with holes. `is_unclear`: it may run more."""

    commands: tuple[str, ...]
    is_unclear: bool


@lru_cache(maxsize=64)  # many rules look at one call
def read_shell(text: str) -> ShellReading:
    reader = _Reader()
    reader.is_unclear = ANY_TEXT in text or ANY_NAME in text
    reader.read(text.replace(ANY_TEXT, "\ufffd").replace(ANY_NAME, "\ufffd"))
    return ShellReading(commands=tuple(reader.found), is_unclear=reader.is_unclear)


class _Input(Struct):
    """What the commands of one text may read. `feeder` has the words of the command that feeds the
    current one. `is_read`: a shell reads it."""

    texts: Sequence[str] = ()
    feeder: list[str] | None = None
    is_read: bool = False


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self.is_unclear = False
        self._texts = 0
        self._form_chars = 0
        self._code_chars = 0
        self._scanned: set[tuple[str, str]] = set()
        self._input = _Input()

    def read(self, text: str) -> None:
        """The commands of a text for a shell. A hole in it may be a command of its own."""
        self._texts += 1
        if self._texts > MAX_SHELL_TEXTS:
            self.is_unclear = True
            return
        if has_hole(text):
            self.is_unclear = True
            text = text.replace(ANY_TEXT, "$_").replace(ANY_NAME, "$_")
        text = _LINE_WITH_ESCAPE.sub(r"\n\1''\\", text)
        if not self._read_variant(text):
            self.is_unclear = True
            for part in _SEPARATORS.split(text[:MAX_SHELL_CHARS]):
                self._add(part.split())
        for variant in {_LINE_BREAK.sub(r"\1", text), _as_posix(text)} - {text}:
            self._read_variant(variant)

    def _read_variant(self, text: str) -> bool:
        """False if the text cannot be read as a whole."""
        bodies: list[str] = []
        heredocs: set[int] = set()
        if not _is_small(text):
            if not _NOT_PLAIN.search(text):
                self._add_plain(text)
                return True
            text, bodies, heredocs = without_heredocs(text)
            if not _is_small(text):
                return False
        syntax = parse_shell(text, heredocs)
        outer, self._input = self._input, _Input((*bodies, *syntax.fed))
        self.is_unclear |= syntax.is_unclear
        for name, value in syntax.assignments:
            self._assign(name, value)
        for command in syntax.commands:
            self._input.feeder = command.feeder
            self._add(command.words)
        for hidden in syntax.hidden:
            self.read(hidden)
        if self._input.is_read:
            self.is_unclear = True
            for fed in (*self._input.texts, *_printed_texts(syntax.commands)):
                self.read(fed)
        self._input = outer
        return syntax.is_whole

    def _add_plain(self, text: str) -> None:
        """One command of plain words. The end of a long one may be an option's value, so that it
        is two holes."""
        words = text[:MAX_SHELL_CHARS].split()
        is_cut = len(text) > MAX_SHELL_CHARS
        if is_cut:
            words = [*words[:-1], f"{words[-1] if words else ''}{ANY_TEXT}", ANY_TEXT]
        words = list(dropwhile(lambda word: re.match(r"\w+=", word), words))
        if is_cut:
            self.is_unclear |= has_hole(words[0]) or starts_others(_base_name(words[0]))
        self._add(words)

    def _add(self, words: Sequence[str]) -> None:
        """A command, and those that it starts."""
        todo = [iter([list(words)])]
        while todo:
            if (started := next(todo[-1], None)) is None:
                todo.pop()
                continue
            if not started:
                continue
            name, rest = _base_name(started[0]), started[1:]
            forms = [started, [name, *rest]]
            if name in HAS_SUBCOMMANDS:
                forms.append([name, *_after_options(rest, PROGRAMS[name].values)])
            lines = {" ".join(" ".join(form).split()): None for form in forms}
            self._form_chars += sum(len(line) + 1 for line in lines)
            if (
                len(todo) > MAX_SHELL_DEPTH
                or len(self.found) >= MAX_SHELL_COMMANDS
                or self._form_chars > MAX_SHELL_FORM_CHARS
            ):
                self.is_unclear = True
                return
            self.found |= lines
            todo.append(iter(self._started(name, rest)))

    def _started(self, name: str, words: list[str]) -> Iterable[list[str]]:
        """The commands that this one starts. Reads what it hands to another shell."""
        if has_hole(name):
            prefix = re.split(f"[{ANY_TEXT}{ANY_NAME}]", name)[0]
            self.is_unclear |= bool(words) and may_start_words(prefix)
        self._read_variables(name, words)
        if name.rstrip("0123456789.-") in SHELLS or name in SHELLS:
            self._read_script(words)
        elif name == "alias":
            for word in words:
                self.read(word.partition("=")[2])
        elif name == "hash":
            return [words[1:2]]
        elif name in {"source", "."}:
            self._input.is_read |= _is_input(words[:1])
        elif name in READS_COMMANDS:
            self._input.is_read |= "-l" not in words
        elif (row := find_program(name)) is not None:
            return self._read_program(name, row, words)
        return []

    def _read_script(self, words: list[str]) -> None:
        """The arguments of a shell."""
        rest = _after_options(words, _SHELL_VALUES)
        options = words[: len(words) - len(rest)]
        files = _option_values(options, frozenset({"--rcfile", "--init-file"}))
        self._input.is_read |= _is_input(list(files))
        if any(re.match(r"-[A-Za-z]*c|-(?:-c|C)ommand$", option) for option in options):
            self.read(rest[0] if rest else ANY_TEXT)
        elif not {"--version", "--help"} & set(options):
            self._input.is_read |= not rest or "-s" in options or _is_input(rest[:1])
        for option in options:
            if option.startswith("--command="):
                self.read(option.partition("=")[2])

    # Programs that start others

    def _read_program(self, name: str, row: Program, words: list[str]) -> Iterable[list[str]]:
        if name == "command" and words[:1] and re.fullmatch("-p?[vV]+", words[0]):
            return []
        texts = list(_option_values(words, row.text))
        if row.bundled and words and re.search(rf"^\w*[{row.bundled}]", words[0]):
            texts += words[1 : len(words[0]) + 1]
        for text in texts:
            self._read_value(text)
        if row.settings is not None:
            self._read_settings(name, row.settings, words)
        if row.code or row.operands:
            self._read_code(row, words)
        started = _executed(words, row.exec_flags) if row.exec_flags else iter(())
        if name in HAS_SUBCOMMANDS:
            rest = _after_options(words, row.values, row.flags)
            if rest and (inner := PROGRAMS.get(f"{name} {rest[0]}")) is not None:
                found = self._read_program(f"{name} {rest[0]}", inner, rest[1:])
                return chain(started, found)
        if row.starts is None:
            return started
        rest = _after_options(words, row.values | row.text, row.flags)
        if row.skips:
            rest = _after_options(rest[row.skips :], row.values | row.text, row.flags)
        return chain(started, self._read_rest(name, row, words, rest, has_text=bool(texts)))

    def _read_rest(
        self, name: str, row: Program, words: list[str], rest: list[str], *, has_text: bool
    ) -> Iterable[list[str]]:
        """The command in the arguments."""
        if name in {"env", "sudo", "doas"}:
            rest = list(dropwhile(lambda word: re.match(r"\w[\w%()]*=", word), rest))
        if name in {"ssh", "su"} or (name == "sudo" and {"-i", "-s"} & set(words)):
            is_login = name != "ssh" or bool(_after_options(words, row.values))
            self._input.is_read |= not rest and not has_text and is_login
        if name == "xargs":
            rest = self._filled_by_xargs(words, rest)
        elif name == "parallel":
            given = rest
            rest = [_with_holes(word, {"{}"}) for word in _until(rest, {":::", "::::", ":::+"})]
            self._input.is_read |= not rest
            for word in given if not rest else ():
                self.read(word)
        elif name == "trap":
            rest = rest[:1]
        elif name == "coproc" and rest[1:2] == ["{"]:
            rest = rest[1:]
        if row.starts == "words":
            return (rest[start:] for start in range(len(rest) if row.is_loose else 1))
        if rest:
            self.read(" ".join(rest))
        return []

    def _filled_by_xargs(self, words: list[str], started: list[str]) -> list[str]:
        signs = {"{}", *_option_values(words, frozenset({"-I", "-J", "-i"}))}
        if len(signs) > _MAX_SIGNS_OF_XARGS:
            self.is_unclear, signs = True, {"{}"}
        return [*(_with_holes(word, signs) for word in started), ANY_TEXT] if started else []

    def _read_value(self, text: str) -> None:
        """The value of an option or a variable. A plain one needs no parser."""
        if _PLAIN_TEXT.fullmatch(text):
            self._add(text.split())
        elif text.strip():
            self.read(text)

    def _read_settings(self, name: str, pattern: re.Pattern[str], words: list[str]) -> None:
        for word in chain(words, (f"{one}={other}" for one, other in pairwise(words))):
            if (found := pattern.match(word)) is None:
                continue
            if found.lastgroup is None:
                self.is_unclear = True
                continue
            value = found[found.lastgroup]
            is_read = self._input.is_read
            self._read_value(f"{name} {value}" if found.lastgroup == "alias" else value)
            self._input.is_read = is_read

    def _read_variables(self, name: str, words: list[str]) -> None:
        """Those that a command sets."""
        if name in _ASSIGNING:
            for word in words:
                if (assignment := _ASSIGNMENT.fullmatch(word)) is not None:
                    self._assign(assignment[1], assignment[2])
        if name in _FILLING:
            self.is_unclear |= any(
                word in PROMPTS or COMMAND_VARIABLES.fullmatch(word) for word in words
            )

    def _assign(self, name: str, value: str) -> None:
        """Variables that a shell expands, and variables whose value a program runs."""
        name = name.partition("[")[0]
        if name in PROMPTS:
            self.is_unclear |= value == ANY_TEXT and name != "ENV"
            for text in substitutions(value):
                self.read(text)
        elif COMMAND_VARIABLES.fullmatch(name):
            is_read = self._input.is_read
            self._read_value(re.sub(r"^(?:\|{1,2}-?|!|\(\)\s*)", "", value))
            self._input.is_read = is_read
        elif (program := VARIABLE_OPTIONS.get(name)) is not None:
            self._add([program, *value.split()])
        elif (language := CODE_VARIABLES.get(name)) is not None:
            self._scan(language, value)
        self.is_unclear |= name == "GIT_CONFIG_PARAMETERS"

    # Code of other languages

    def _read_code(self, row: Program, words: list[str]) -> None:
        options = list(takewhile(lambda word: word != "--", words))
        given = list(_option_values(options, row.evals))
        files = _after_options(words, row.values | row.evals)
        scripts = list(_option_values(options, SCRIPT_FILES))
        leading = words[: len(words) - len(files)]
        if row.has_script and not any(_option_values(leading, row.evals | {"-f", "--file"})):
            given += files[:1]
        self.is_unclear |= ANY_TEXT in given
        for text in given:
            self._scan(row.code, text)
        for word in words if row.operands else ():
            self._scan(row.operands, word)
        self.is_unclear |= PIPE_FILE in (*scripts, *(files[:1] if row.reads == "all" else ()))
        is_read = any(map(_STANDARD_INPUT.fullmatch, scripts))
        if not is_read and (
            row.reads == "no" or given or (row.reads == "all" and not _reads_code(words, files))
        ):
            return
        must_know = row.reads == "all" or (is_read and row.code != "sql")
        for text in self._input.texts:
            self.is_unclear |= _UNKNOWN_TEXT.fullmatch(text) is not None
            self._scan(row.code, text)
        feeder = self._input.feeder
        if feeder is None or not feeder:
            self.is_unclear |= must_know and feeder is not None
        elif _base_name(feeder[0]) in {"echo", "printf"}:
            self._scan(row.code, unescape(" ".join(_after_options(feeder[1:], frozenset()))))
        else:
            self.is_unclear |= must_know and feeder != ["cat"]

    def _scan(self, language: str, code: str) -> None:
        if (language, code) in self._scanned:
            return
        self._scanned.add((language, code))
        self._code_chars += len(code)
        if self._code_chars > MAX_SHELL_CODE_CHARS:
            self.is_unclear = True
            return
        is_read = self._input.is_read
        for text in LANGUAGES[language](code):
            if text is None:
                self.is_unclear = True
            else:
                self._read_value(text)
        if language == "make":  # make SHELL=bash
            self._input.is_read = is_read


# Words


def _base_name(program: str) -> str:
    return program.rsplit("/", 1)[-1]


def _executed(words: list[str], flags: frozenset[str]) -> Iterator[list[str]]:
    for place, word in enumerate(words):
        if word in flags:
            following = (words[later] for later in range(place + 1, len(words)))
            started = _until(following, {";", "+"})
            yield [_with_holes(one, {"{}"}) for one in started]


def _until(words: Iterable[str], ends: set[str]) -> list[str]:
    return list(takewhile(lambda word: word not in ends, words))


def _with_holes(word: str, signs: set[str]) -> str:
    for sign in signs:
        word = word.replace(sign, ANY_TEXT) if sign else word
    return word


def _is_input(words: Sequence[str]) -> bool:
    return any(_STANDARD_INPUT.fullmatch(word) or has_hole(word) for word in words)


def _reads_code(words: list[str], files: list[str]) -> bool:
    """Whether an interpreter without code in its options reads its input."""
    if files:
        return _STANDARD_INPUT.fullmatch(files[0]) is not None
    if "-" in words:
        return True
    return "-m" not in words and not _VERSION_OPTIONS & set(words)


# Options


def _after_options(
    words: list[str], values: frozenset[str], flags: frozenset[str] = frozenset()
) -> list[str]:
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return words[place + 1 :]
        if not word.startswith(("-", "+")):
            break
        has_value = _takes_value(word, values) if not flags else _is_no_flag(word, flags)
        place += 2 if has_value else 1
    return words[place:]


def _takes_value(option: str, values: frozenset[str]) -> bool:
    """Also of `-nu`, if `-u` takes one."""
    if option in values:
        return True
    letters = [f"-{letter}" for letter in option[1:]]
    is_cluster = option.startswith("-") and not option.startswith("--") and len(letters) > 1
    return is_cluster and letters[-1] in values and not values.intersection(letters[:-1])


def _is_no_flag(option: str, flags: frozenset[str]) -> bool:
    """An option whose value is the next word, if these are the only ones without a value."""
    if option in flags or "=" in option:
        return False
    if option.startswith("--"):
        return True
    unknown = [place for place, letter in enumerate(option) if place and f"-{letter}" not in flags]
    return unknown[:1] == [len(option) - 1]


def _option_values(words: list[str], options: frozenset[str]) -> Iterator[str]:
    """Also of long options that are shortened, as GNU programs allow."""
    for option, value in pairwise(words):
        if _takes_value(option, options) or _is_shortened(option, options):
            yield value
    for word in words:
        option, equals, value = word.partition("=")
        if equals and (option in options or _is_shortened(option, options)):
            yield value
        elif (cluster := _CLUSTER.match(word)) is not None:
            places = (place for place in range(1, cluster.end()) if f"-{word[place]}" in options)
            if (place := next(places, 0)) and place + 1 < len(word):
                yield word[place + 1 :]


def _is_shortened(option: str, options: frozenset[str]) -> bool:
    return (
        len(option) > 4
        and option.startswith("--")
        and any(known.startswith(option) for known in options)
    )


# Texts


def _is_small(text: str) -> bool:
    return len(text) <= MAX_SHELL_CHARS and len(_SIGNS.findall(text)) <= MAX_SHELL_SIGNS


def _as_posix(text: str) -> str:
    for sign, other in _POSIX:
        text = sign.sub(other, text)
    return text


def _printed_texts(commands: Sequence[SimpleCommand]) -> Iterator[str]:
    """What a shell may read from a pipe."""
    for command in commands:
        words = command.words
        if words[:1] and _base_name(words[0]) in {"echo", "printf"}:
            yield unescape(" ".join(_after_options(words[1:], frozenset())))
