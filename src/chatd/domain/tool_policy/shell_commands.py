"""The commands that a shell would run for a text, for rules that ask or deny.

A rule that allows a command does not use this: it matches plain commands only (matching.py).

tree-sitter finds every simple command: in lists, pipes, conditions, loops, functions, subshells,
substitutions and here-documents. This module removes quotes, takes a program by its base name, and
looks through programs that start others (`env`, `sudo`, `xargs`, `find -exec`) and through text
for another shell (`bash -c`, `eval`, `trap`, a here-document for `sh`).

What only the running shell knows, such as a variable, is a hole: it may be any text. What cannot
be read at all, such as a syntax error or a pipe into a shell, makes the reading unclear.

tree-sitter is a library of C code that computes a tree from bytes. It does no I/O, and the same
text gives the same tree, so it is part of the domain.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import dropwhile, pairwise, takewhile
from typing import Final

from msgspec import Struct
from tree_sitter import Language, Node, Parser
from tree_sitter_bash import language

ANY_TEXT: Final = "\x00"
"""A hole: any text, also none and also several words."""
ANY_NAME: Final = "\x01"
"""A hole left by `*`, `?` or `[...]`: text without blanks and slashes."""

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

_LANGUAGE: Final = Language(language())
_SIGNS: Final = re.compile(r"[|&;<>(){}$`'\"\[\]]")
_SEPARATORS: Final = re.compile(r"[;&|\n\r(){}`<>]|\$\(")
_NOT_PLAIN: Final = re.compile(r"[^\S ]|[|&;<>(){}`'\"\[\]\\*?#!]|\$(?!HOME\b)")
_LINE_BREAK: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\\n")
_LINE_WITH_ESCAPE: Final = re.compile(r"\n([ \t]*)\\(?!\n)")
"""The parser takes such a line for a part of the one before; two quotes make it another word."""
_HEREDOC: Final = re.compile(
    r"""<<-?[ \t]*(['"]?)([A-Za-z_]\w{0,63})\1[^\n'"\\`$(){}#<]*\n""", re.ASCII
)
"""Nothing on the rest of the line may join it with the next one."""
_MAX_HEREDOCS: Final = 32
_MAX_SIGNS_OF_XARGS: Final = 4
_UNQUOTED: Final = re.compile(
    r"\\(.)|(\{[^{}\s]*(?:,|\.\.)[^{}\s]*\})|([*?]|\[[^\]\s]+\])", re.DOTALL
)
"""An escaped character, braces that bash expands, a sign that stands for file names."""
_STANDARD_INPUT: Final = re.compile(r"-|/dev/(?:stdin|fd/.*)|/proc/.*/fd/.*")
_BACKTICKS: Final = re.compile(r"(?<!\\)`((?:[^`\\]|\\.)*)`", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b"}
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)

# What a shell without bash's additions, such as Debian's /bin/sh, reads differently.
_POSIX: Final = (
    (re.compile(r"\$(?=['\"])"), ""),
    (re.compile(r"&>"), "& >"),
    (re.compile(r"(?<!\$)\(\("), "( ("),
    (re.compile(r"(?:(?<=[\s;&|(!])|^)\[\[(?=\s)"), "x"),
)

SHELLS: Final = frozenset({
    "ash", "bash", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "oksh", "posh", "rbash", "sh",
    "tcsh", "yash", "zsh",
})  # fmt: skip


class _Starter(Struct, frozen=True, kw_only=True):
    """A program that starts the command in its arguments. `values`: its options with a value in
    the next word. `skips`: words before the command. `text`: options whose value is for a shell."""

    values: frozenset[str] = frozenset()
    skips: int = 0
    text: frozenset[str] = frozenset()
    is_text: bool = False
    """It joins the words into a text for a shell."""


def _starter(
    values: str = "", *, skips: int = 0, text: str = "", is_text: bool = False
) -> _Starter:
    return _Starter(
        values=frozenset(values.split()),
        skips=skips,
        text=frozenset(text.split()),
        is_text=is_text,
    )


_STARTERS: Final[Mapping[str, _Starter]] = {
    # Words of the shell's own, where the parser takes them for commands.
    "!": _starter(),
    "{": _starter(),
    "do": _starter(),
    "else": _starter(),
    "then": _starter(),
    "busybox": _starter(),
    "builtin": _starter(),
    "bwrap": _starter(
        "--bind --ro-bind --dev-bind --proc --dev --tmpfs --chdir --setenv --unsetenv --symlink"
        " --uid --gid --hostname --file --dir"
    ),
    "catchsegv": _starter(),
    "chroot": _starter("--userspec --groups", skips=1),
    "chrt": _starter("-p -T -P -D", skips=1),
    "command": _starter(),
    "coproc": _starter(),
    "dbus-run-session": _starter("--config-file --dbus-daemon"),
    "doas": _starter("-u -C"),
    "dumb-init": _starter("-r --rewrite"),
    "entr": _starter(text="-s"),
    "env": _starter("-u --unset -C --chdir -P --argv0 -a", text="-S --split-string -vS -iS -ivS"),
    "eval": _starter(is_text=True),
    "exec": _starter("-a"),
    "fakeroot": _starter("-l --lib -s -i -b --faked"),
    "flock": _starter("-w --timeout -E --conflict-exit-code", skips=1, text="-c --command"),
    "hyperfine": _starter("-w -m -M -r -p -c -n -L -P -S --warmup --runs --prepare", is_text=True),
    "ionice": _starter("-c -n -p -P -u --class --classdata"),
    "ld.so": _starter("--library-path --preload --audit --argv0"),
    "linux32": _starter(),
    "linux64": _starter(),
    "ltrace": _starter("-o -p -e -s -u -a -n -l -x -F"),
    "nice": _starter("-n --adjustment"),
    "nohup": _starter(),
    "npx": _starter("-p --package", text="-c --call"),
    "nsenter": _starter("-t --target -S --setuid -G --setgid -r -w"),
    "parallel": _starter(
        "-j --jobs -a --arg-file -I -N -n -L -d -P -S --colsep --delay --joblog", is_text=True
    ),
    "perf": _starter("-e -o -p -F", skips=1),
    "pkexec": _starter("--user -u"),
    "prlimit": _starter("-o --output"),
    "rlwrap": _starter("-f -H -s -C -D"),
    "runuser": _starter(
        "-u --user -g --group -G -s --shell", text="-c --command --session-command"
    ),
    "script": _starter("-I -O -B -T -m -o -E", skips=1, text="-c --command"),
    "setarch": _starter(),
    "setpriv": _starter("--reuid --regid --groups --inh-caps --ambient-caps --bounding-set"),
    "setsid": _starter(),
    "sg": _starter(skips=1, text="-c", is_text=True),
    "ssh": _starter(
        "-b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", skips=1, is_text=True
    ),
    "stdbuf": _starter("-i --input -o --output -e --error"),
    "strace": _starter("-o -p -e -s -u -E -a -b -I -P -S -X"),
    "su": _starter("-s --shell -g --group -G -w", skips=99, text="-c --command"),
    "sudo": _starter(
        "-u --user -g --group -h --host -p --prompt -C -D --chdir -R --chroot -r --role -t --type"
        " -T -U"
    ),
    "systemd-run": _starter("-p --property -u --unit --slice -E --setenv -M --uid --gid"),
    "taskset": _starter("-p", skips=1),
    "time": _starter("-f --format -o --output"),
    "timeout": _starter("-k --kill-after -s --signal", skips=1),
    "tini": _starter("-p -e"),
    "torsocks": _starter(),
    "toybox": _starter(),
    "trap": _starter(is_text=True),
    "unbuffer": _starter(),
    "unshare": _starter("-S --setuid -G --setgid -R --root -w --wd --propagation"),
    "valgrind": _starter(),
    "watch": _starter("-n --interval -q --equexit", is_text=True),
    "xargs": _starter(
        "-a --arg-file -d --delimiter -E -I -L --max-lines -n --max-args -P --max-procs -s"
        " --max-chars --process-slot-var -J -R -S"
    ),
    "xvfb-run": _starter("-n -s -e -f -p -w"),
}
_SUBCOMMANDS: Final = {
    "bundle": "exec", "conda": "run", "hatch": "run", "mise": "exec", "nix": "run", "npm": "exec",
    "pdm": "run", "pipenv": "run", "pnpm": "exec", "poetry": "run", "rye": "run", "uv": "run",
    "yarn": "exec",
}  # fmt: skip
"""Programs with a subcommand that starts a command."""
_SUBCOMMAND_VALUES: Final = frozenset({
    "--with", "--extra", "--group", "--python", "-p", "-n", "--name", "--env-file", "--directory",
})  # fmt: skip
_GLOBAL_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "git": frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env"}),
    "docker": frozenset({"-c", "--context", "-H", "--host", "--config", "-l", "--log-level"}),
    "kubectl": frozenset({"-n", "--namespace", "--context", "--kubeconfig", "--cluster", "-s"}),
    "npm": frozenset({"--prefix", "-w", "--workspace", "-C"}),
    "systemctl": frozenset({"-H", "--host", "-M", "--machine", "-p", "-t", "-n", "-o"}),
}
"""Options with a value before the subcommand: `git -C dir push` is a `git push` too."""
_EXEC_FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "find": frozenset({"-exec", "-execdir", "-ok", "-okdir"}),
    "fd": frozenset({"-x", "-X", "--exec", "--exec-batch"}),
    "fdfind": frozenset({"-x", "-X", "--exec", "--exec-batch"}),
    "gdb": frozenset({"--args", "-args"}),
}
_SHELL_VALUES: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_COMMAND_NODES: Final = frozenset({"command", "declaration_command", "unset_command"})
_READS_COMMANDS: Final = frozenset({"at", "batch", "crontab"})
_STARTING: Final = (
    SHELLS, _STARTERS, _SUBCOMMANDS, _EXEC_FLAGS, _READS_COMMANDS, {"alias", "hash", "source", "."},
)  # fmt: skip


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


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self.is_unclear = False
        self._texts = 0
        self._form_chars = 0
        self._reads_input = False

    def read(self, text: str) -> None:
        """The commands of a text for a shell. A hole in it may be a command of its own."""
        self._texts += 1
        if self._texts > MAX_SHELL_TEXTS:
            self.is_unclear = True
            return
        if _has_hole(text):
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
        expected: set[int] = set()
        if not _is_small(text):
            if not _NOT_PLAIN.search(text):
                self._add_plain(text)
                return True
            text, bodies, expected = _without_heredocs(text)
            if not _is_small(text):
                return False
        root = Parser(_LANGUAGE).parse(text.encode(errors="replace")).root_node
        nodes = list(_nodes(root))
        expected -= {node.start_byte for node in nodes if node.type == "heredoc_redirect"}
        outer, self._reads_input = self._reads_input, False
        later = _words_after_redirections(nodes)
        commands = [
            [*_words(node), *later.get(node.id, ())]
            for node in nodes
            if node.type in _COMMAND_NODES
        ]
        for words in commands:
            self._add(words)
        for node in nodes:
            self.is_unclear |= node.type == "command" and _has_line_end(node)
            for hidden in _hidden_texts(node):
                self.read(hidden)
        if self._reads_input:
            self.is_unclear = True
            for fed in (*bodies, *_fed_texts(nodes, commands)):
                self.read(fed)
        self._reads_input = outer
        return not root.has_error and not expected

    def _add_plain(self, text: str) -> None:
        """One command of plain words. The end of a long one may be an option's value, so that it
        is two holes."""
        words = text[:MAX_SHELL_CHARS].split()
        is_cut = len(text) > MAX_SHELL_CHARS
        if is_cut:
            words = [*words[:-1], f"{words[-1] if words else ''}{ANY_TEXT}", ANY_TEXT]
        words = list(dropwhile(lambda word: re.match(r"\w+=", word), words))
        if is_cut:
            self.is_unclear |= _has_hole(words[0]) or _starts_others(_base_name(words[0]))
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
            if (values := _GLOBAL_VALUES.get(name)) is not None:
                forms.append([name, *_after_options(rest, values)])
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
        if name in SHELLS:
            self._read_script(words)
        elif name in _EXEC_FLAGS:
            return _executed(words, _EXEC_FLAGS[name])
        elif name == "alias":
            for word in words:
                self.read(word.partition("=")[2])
        elif name == "hash":
            return [words[1:2]]
        elif name in {"source", "."}:
            self._reads_input |= _is_input(words[:1])
        elif name in _READS_COMMANDS:
            self._reads_input |= "-l" not in words
        elif name in _SUBCOMMANDS:
            rest = _after_options(words, frozenset())
            if rest[:1] == [_SUBCOMMANDS[name]]:
                return [_after_options(rest[1:], _SUBCOMMAND_VALUES)]
        else:
            starter = _STARTERS.get("ld.so" if name.startswith("ld-") else name)
            return [] if starter is None else self._read_starter(name, starter, words)
        return []

    def _read_script(self, words: list[str]) -> None:
        """The arguments of a shell."""
        rest = _after_options(words, _SHELL_VALUES)
        options = words[: len(words) - len(rest)]
        if any(re.match(r"-[A-Za-z]*c|--command$", option) for option in options):
            self.read(rest[0] if rest else ANY_TEXT)
        elif not {"--version", "--help"} & set(options):
            self._reads_input |= not rest or "-s" in options or _is_input(rest[:1])
        for option in options:
            if option.startswith("--command="):
                self.read(option.partition("=")[2])

    def _read_starter(self, name: str, starter: _Starter, words: list[str]) -> list[list[str]]:
        texts = list(_option_values(words, starter.text))
        for text in texts:
            self.read(text)
        if name == "command" and words[:1] and re.fullmatch("-p?[vV]+", words[0]):
            return []
        rest = _after_options(words, starter.values | starter.text)[starter.skips :]
        if name in {"env", "sudo", "doas"}:
            rest = list(dropwhile(lambda word: re.match(r"\w+=", word), rest))
        if name in {"ssh", "su"} or (name == "sudo" and {"-i", "-s"} & set(words)):
            self._reads_input |= not rest and not texts
        if name == "xargs":
            rest = self._filled_by_xargs(words, rest)
        elif name == "parallel":
            given = rest
            rest = [_with_holes(word, {"{}"}) for word in _until(rest, {":::", "::::", ":::+"})]
            self._reads_input |= not rest
            for word in given if not rest else ():
                self.read(word)
        elif name == "trap":
            rest = rest[:1]
        elif name == "coproc" and rest[1:2] == ["{"]:
            rest = rest[1:]
        if not starter.is_text:
            return [rest]
        if rest:
            self.read(" ".join(rest))
        return []

    def _filled_by_xargs(self, words: list[str], started: list[str]) -> list[str]:
        signs = {"{}", *_option_values(words, frozenset({"-I", "-J", "-i"}))}
        if len(signs) > _MAX_SIGNS_OF_XARGS:
            self.is_unclear, signs = True, {"{}"}
        return [*(_with_holes(word, signs) for word in started), ANY_TEXT] if started else []


# Words


def _base_name(program: str) -> str:
    return program.rsplit("/", 1)[-1]


def _starts_others(name: str) -> bool:
    return name.startswith("ld-") or any(name in names for names in _STARTING)


def _after_options(words: list[str], values: frozenset[str]) -> list[str]:
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return words[place + 1 :]
        if not word.startswith(("-", "+")):
            break
        place += 2 if _takes_value(word, values) else 1
    return words[place:]


def _takes_value(option: str, values: frozenset[str]) -> bool:
    """Also of `-nu`, if `-u` takes one."""
    if option in values:
        return True
    letters = [f"-{letter}" for letter in option[1:]]
    is_cluster = option.startswith("-") and not option.startswith("--") and len(letters) > 1
    return is_cluster and letters[-1] in values and not values.intersection(letters[:-1])


def _option_values(words: list[str], options: frozenset[str]) -> Iterator[str]:
    for option, value in pairwise(words):
        if _takes_value(option, options):
            yield value
    for word in words:
        option, equals, value = word.partition("=")
        if equals and option in options:
            yield value
        elif word[:2] in options and len(word) > 2:
            yield word[2:]


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


def _has_hole(text: str) -> bool:
    return ANY_TEXT in text or ANY_NAME in text


def _is_input(words: Sequence[str]) -> bool:
    return any(_STANDARD_INPUT.fullmatch(word) or _has_hole(word) for word in words)


# Texts


def _is_small(text: str) -> bool:
    return len(text) <= MAX_SHELL_CHARS and len(_SIGNS.findall(text)) <= MAX_SHELL_SIGNS


def _as_posix(text: str) -> str:
    for sign, other in _POSIX:
        text = sign.sub(other, text)
    return text


def _without_heredocs(text: str) -> tuple[str, list[str], set[int]]:
    """The text without the lines of here-documents in which nothing is expanded, these lines, and
    the places in the text, in bytes, where the parser must find a here-document."""
    bodies: list[str] = []
    kept: list[str] = []
    places: set[int] = set()
    end = size = tried = 0
    for start in _HEREDOC.finditer(text):
        if start.start() < end:
            continue
        tried += 1
        if tried > _MAX_HEREDOCS:
            break
        close = re.compile(rf"^\t*{start[2]}$", re.MULTILINE).search(text, start.end())
        if close is None:
            break
        body = text[start.end() : close.start()]
        if not start[1] and re.search(r"[$`\\]", body):
            continue
        places.add(size + len(text[end : start.start()].encode(errors="replace")))
        bodies.append(body)
        kept.append(text[end : start.end()])
        size += len(kept[-1].encode(errors="replace"))
        end = close.start()
    return "".join((*kept, text[end:])), bodies, places


def _fed_texts(nodes: Sequence[Node], commands: Sequence[list[str]]) -> Iterator[str]:
    """What a shell may read from its input: the other texts on its line."""
    for node in nodes:
        if node.type == "heredoc_body":
            yield _decode(node)
        elif node.type == "herestring_redirect":
            yield " ".join(_text(child) for child in node.named_children)
    for words in commands:
        if words[:1] and _base_name(words[0]) in {"echo", "printf"}:
            yield _unescape(" ".join(_after_options(words[1:], frozenset())))


def _unescape(text: str) -> str:
    def char(escape: re.Match[str]) -> str:
        code = next((int(one, 16) for one in escape.groups()[:3] if one), None)
        if escape[4]:
            code = int(escape[4], 8)
        if code is not None:
            return chr(code) if 1 < code < 0x110000 else ANY_TEXT
        return _ESCAPES.get(escape[5], escape[5])

    return _ESCAPE.sub(char, text)


# Nodes of the parser


def _has_line_end(command: Node) -> bool:
    """Whether the parser has joined two lines. It does so where one begins with an escape."""
    raw, start = command.text or b"", command.start_byte
    gaps = (
        raw[one.end_byte - start : other.start_byte - start]
        for one, other in pairwise(command.children)
    )
    return any(re.search(rb"(?<!\\)\n", gap) for gap in gaps)


def _hidden_texts(node: Node) -> Iterator[str]:
    """Substitutions that the parser has no nodes for: `...` in another one, in a here-document or
    in ${...}, and $(...) in a here-document with indented lines."""
    if node.type not in {"command_substitution", "expansion", "heredoc_redirect"}:
        return
    raw = _decode(node)
    if node.type == "heredoc_redirect":
        if re.match(r"<<-?\s*\S*['\"\\]", raw):
            return
        bodies = [child for child in node.children if child.type == "heredoc_body"]
        for body in bodies:
            if not body.named_child_count and "$(" in (text := _decode(body)):
                yield text.partition("$(")[2]
    if node.type == "command_substitution":
        if raw.startswith("`") and "\\`" in raw:
            yield raw[1:-1].replace("\\`", "`")
        return
    for found in _BACKTICKS.finditer(raw):
        yield found[1].replace("\\`", "`")


def _words_after_redirections(nodes: Sequence[Node]) -> Mapping[int, list[str]]:
    """`rm >f x`: the parser takes `x` for a second file."""
    found: dict[int, list[str]] = {}
    for node in nodes:
        if node.type != "redirected_statement" or not (command := _last_command(node)):
            continue
        words = found.setdefault(command.id, [])
        todo = [child for child in node.children if child.type.endswith("_redirect")]
        while todo:
            redirect = todo.pop(0)
            words += map(_text, redirect.children_by_field_name("destination")[1:])
            words += map(_text, redirect.children_by_field_name("argument"))
            todo += redirect.children_by_field_name("redirect")
    return found


def _last_command(node: Node) -> Node | None:
    while node.type != "command":
        inner = node.child_by_field_name("body")
        if node.type in {"pipeline", "list", "negated_command"} and node.named_children:
            inner = node.named_children[-1]
        if inner is None or node.type == "function_definition":
            return None
        node = inner
    return node


def _nodes(root: Node) -> Iterator[Node]:
    todo = [root]
    while todo:
        node = todo.pop()
        yield node
        todo += reversed(node.children)


def _words(command: Node) -> list[str]:
    children = command.children
    if command.type != "command":
        return [_text(child) for child in children]
    name = command.child_by_field_name("name")
    if name is None:
        return []
    return [
        _text(child)
        for child in children
        if child.start_byte >= name.start_byte and not child.type.endswith("_redirect")
    ]


def _text(node: Node) -> str:
    """A word as the command gets it, without quotes, with holes."""
    raw = _decode(node)
    match node.type:
        case "command_name" | "concatenation" | "translated_string":
            joined = "".join(_text(child) for child in node.children)
            if node.type != "concatenation":
                return joined
            joined = re.sub(r"\[[^\]\s]+\]", ANY_NAME, joined)
            return re.sub(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}", ANY_TEXT, joined)
        case "string":
            return _string_text(node)
        case "raw_string":
            return raw[1:-1]
        case "ansi_c_string":
            return _unescape(raw[2:-1])
        case "simple_expansion" | "expansion":
            return raw if raw in {"$HOME", "${HOME}"} else ANY_TEXT
        case "arithmetic_expansion" | "brace_expression":
            return ANY_NAME
        case _ if node.named_child_count:
            return ANY_TEXT
        case _:
            return _UNQUOTED.sub(_unquoted, raw)


def _unquoted(found: re.Match[str]) -> str:
    if found[1]:
        return "" if found[1] == "\n" else found[1]
    return ANY_TEXT if found[2] else ANY_NAME


def _string_text(node: Node) -> str:
    """The parser has no node for some blanks between expansions."""
    raw = node.text or b""
    pieces: list[str] = []
    place = node.start_byte + 1

    def add_fixed(end: int) -> None:
        fixed = raw[place - node.start_byte : end - node.start_byte].decode(errors="replace")
        pieces.append(re.sub(r"\\([$`\"\\\n])", r"\1", fixed))

    for child in node.named_children:
        if child.type != "string_content":
            add_fixed(child.start_byte)
            pieces.append(_text(child))
            place = child.end_byte
    add_fixed(max(place, node.end_byte - 1))
    return "".join(pieces)


def _decode(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")
