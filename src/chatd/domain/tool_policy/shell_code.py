"""Which commands the code of other languages starts: `python -c`, `awk`, `sed`, `vim -c`.

Each language is a function from code to the texts that it hands to a shell. None stands for a
command that is not known. Only the names of functions that start programs are looked for: code that
hides such a name is not found. The functions take linear time.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from chatd.domain.tool_policy.shell_syntax import substitutions

Language = Callable[[str], Iterator[str | None]]

MAX_SHELL_CODE_CHARS: Final = 524_288
"""Of all code in one command. What more of it starts is unclear."""

_MARKS: Final = (
    r"(?<!platform\.)\bsystem\w*|popen|subprocess|child_process|getoutput|shell_exec|passthru"
    r"|proc_open|(?<![.\w])exec\b|\bexec(?:l|v|File|Sync|ute)\w*\s{0,8}[('\"\[]|spawn|\bfork\b"
    r"|\bqx\b|%x\b|(?<![.\w])eval\b|\bpty\b|\bctypes\b|\bffi\b|__import__|import_module"
    r"|\bFunction\b|Open3|\breadpipe\b|\bsyscall\b|\bcall-process|shell-command|start-process"
    r"|do shell script|os:cmd|ProcessBuilder|getRuntime|callCommand|callProcess|\bCmd\(|System\.cmd"
)
_INDENT: Final = r"^[^\S\n]*+"
"""At the beginning of a line: it does not go on to the next lines, so that many empty ones take
linear time."""
_LITERAL: Final = (
    r"""(?:[\w.]{0,60}\s{0,8}[(\[]{0,2}\s{0,8}[bru]?['"](?P<text>[^'"\\\n]{1,2000})['"])?"""
)


def _by_pattern(pattern: str, flags: int = 0) -> Language:
    """A named group is a text for a shell; without it the command is not known."""
    compiled = re.compile(pattern, flags)

    def find(code: str) -> Iterator[str | None]:
        for found in compiled.finditer(code):
            yield found[found.lastgroup] or None if found.lastgroup else None

    return find


_calls = _by_pattern(rf"(?:{_MARKS}){_LITERAL}")
_backticks = _by_pattern(r"`(?P<text>[^`]{1,2000})`|`")


def _script(code: str) -> Iterator[str | None]:
    """A literal may be a part of a command only, so that the whole is unclear."""
    for text in _calls(code):
        yield from (text, None)


def _script_with_backticks(code: str) -> Iterator[str | None]:
    yield from _script(code)
    yield from _backticks(code)


def _perl(code: str) -> Iterator[str | None]:
    yield from _script_with_backticks(code)
    if re.search(r"\bopen\b[^;\n]{0,400}\|", code):
        yield None


_perl_file = _by_pattern(r"\A\s*\|(?P<to>.*)\Z|\A(?P<from>.*[^|\s])\s*\|\s*\Z", re.DOTALL)


def _perl_operand(word: str) -> Iterator[str | None]:
    """`perl -pe 1 'rm x|'` opens a file whose name is a command; `-M` takes code."""
    yield from _perl_file(word)
    if word.startswith(("-M", "-m")) and ";" in word:
        yield from _script_with_backticks(word)


_AWK_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"', re.DOTALL)
_AWK_PATTERN: Final = re.compile(r"(^|[({,;!~&|}\n])\s{0,40}/(?:\\.|\[[^\]\n]{0,200}\]|[^/\\\n])+/")
_AWK_STARTS: Final = re.compile(r"\bsystem\b|(?<!\|)\|(?!\|)|@")
_awk_texts = _by_pattern(
    r'\bsystem\s{0,8}\(\s{0,8}"(?P<text>[^"\\]{1,2000})"|\|&?\s{0,8}"(?P<to>[^"\\]{1,2000})"'
    r'|"(?P<from>[^"\\]{1,2000})"\s{0,8}\|&?\s{0,8}getline'
)


def _awk(code: str) -> Iterator[str | None]:
    """`system()`, `print | "..."`, `"..." | getline`, a function that is named by a variable."""
    yield from _awk_texts(code)
    plain = _AWK_PATTERN.sub(r"\1", _AWK_STRING.sub('""', code))
    if _AWK_STARTS.search(plain):
        yield None


_SED_ADDRESS: Final = re.compile(r"(?:[\s;{}\d$,+~!\x00\x01]|[IM](?=\s*[,!{a-zA-Z=]))*")
_SED_LINE: Final = re.compile(r"[^\n]*")
_SED_LABEL: Final = re.compile(r"[^\n;}]*")
_SED_BRACKET: Final = re.compile(r"\^?\]?[^\]\n]*\]?")


def _sed(code: str) -> Iterator[str | None]:
    """The command `e` and the flag `e` of `s`. A mark in brackets may end a pattern or not."""
    yield from _sed_commands(code, brackets=True)
    yield from _sed_commands(code, brackets=False)


def _sed_commands(code: str, *, brackets: bool) -> Iterator[str | None]:
    place = 0

    def take(pattern: re.Pattern[str]) -> str:
        nonlocal place
        found = pattern.match(code, place)
        place = place if found is None else found.end()
        return "" if found is None else found[0]

    while place < len(code):
        take(_SED_ADDRESS)
        sign, place = code[place : place + 1], place + 1
        if sign == "/":
            place = _after_mark(code, place, "/", brackets=brackets)
        elif sign == "\\":
            place = _after_mark(code, place + 1, code[place : place + 1], brackets=brackets)
        elif sign in {"s", "y"}:
            mark = code[place : place + 1]
            place = _after_mark(code, place + 1, mark, brackets=brackets)
            place = _after_mark(code, place, mark, brackets=False)
            flags = take(_SED_LABEL).partition("w")[0]
            if sign == "s" and re.search(r"[e\x00]", flags):
                yield None
        elif sign == "e":
            yield take(_SED_LINE).strip() or None
        elif sign and sign in "aicrRwW#":
            while take(_SED_LINE).endswith("\\") and place < len(code):
                place += 1
        elif sign and sign in ":btTv":
            take(_SED_LABEL)


def _after_mark(code: str, place: int, mark: str, *, brackets: bool) -> int:
    """The place after the next mark that is not escaped."""
    signs = re.compile(rf"\\.|{re.escape(mark)}" + (r"|\[" if brackets else ""), re.DOTALL)
    skipped = unclosed = place
    for found in signs.finditer(code, place):
        if found.start() < skipped:
            continue
        if found[0] == mark:
            return found.end()
        if found[0] == "[" and found.start() >= unclosed:
            bracket = _SED_BRACKET.match(code, found.end())
            end = found.end() if bracket is None else bracket.end()
            if code[end - 1 : end] == "]":
                skipped = end
            else:
                unclosed = end
    return len(code)


_EX_PROGRAMS: Final = (
    r"system\w*|term\w*|sh|py\w*|perl|ruby|lua\w*|tcl|mz\w*|make|l?grep|norm\w*|exe\w*|job_start"
    r"|libcall"
)
_ex = _by_pattern(rf"!\s{{0,40}}(?![\s|=!]|$)(?P<text>[^\n]*)|\b(?:{_EX_PROGRAMS})\b(?=[!\s(]|$)")


def _vim(code: str) -> Iterator[str | None]:
    yield from _ex(code)
    yield from _script(code)


def _vim_operand(word: str) -> Iterator[str | None]:
    """`+command`."""
    return _vim(word[1:]) if word.startswith("+") else iter(())


_make_functions = _by_pattern(r"\$[({]shell\s(?P<text>[^\n)}]*)")
_make_rules = _by_pattern(
    r"^\w+\s*[:+?!]*=(?P<set>[^\n$\x00\x01]*)$|^[^\n=;]{0,400}:[^\n=;]{0,400};[\s@+-]{0,8}(?P<rule>[^\n]*)"
    r"|^\t[\s@+-]{0,8}(?P<line>[^\n]*)",
    re.MULTILINE,
)


def _make(code: str) -> Iterator[str | None]:
    """Any variable may be the name of a program, as in `make CC=...`."""
    yield from _make_functions(code)
    yield from (text for text in _make_rules(code) if text is not None)
    if re.match(r"SHELL\s*[:+?!]*=[\x00\x01]", code):
        yield None


LANGUAGES: Final[Mapping[str, Language]] = {
    "awk": _awk,
    "ed": _by_pattern(rf"{_INDENT}[\d.,$%;+/\w\t -]{{0,200}}!(?P<text>[^\n]*)", re.MULTILINE),
    "expanded": substitutions,
    "gdb": _by_pattern(
        rf"{_INDENT}(?:(?:platform\s+)?shell|!|pipe|\|)\s*(?P<text>[^\n]+)|\bsystem\b"
        rf"|\bexec\w*\s{{0,8}}\(|\bpopen\b"
        rf"|{_INDENT}(?:py|python|python-interactive|guile|make)\b",
        re.MULTILINE,
    ),
    "make": _make,
    "m4": _by_pattern(r"syscmd\s{0,8}\(\s{0,8}[`']?(?P<text>[^'`)\n]*)|syscmd"),
    "pager": _by_pattern(r"^\+{1,2}[^!|]{0,80}[!|](?P<text>.*)"),
    "perl": _perl,
    "rpm": _by_pattern(r"%\((?P<text>[^)\n]*)"),
    "perl_operand": _perl_operand,
    "script": _script,
    "script_with_backticks": _script_with_backticks,
    "sed": _sed,
    "shell_line": _by_pattern(rf"{_INDENT}!\s*(?![<=>])(?P<text>[^\n]*)", re.MULTILINE),
    "sql": _by_pattern(
        rf"{_INDENT}\.(?:shell|system)\s+(?P<dot>[^\n]+)|\\!\s*(?P<bang>[^\n]*)"
        rf"|{_INDENT}system\s+(?P<word>[^\n;]+)|\\[go]\s*\||{_INDENT}\.\w{{1,20}}\s[^\n]{{0,80}}\|"
        r"|\bprogram\s+'(?P<program>[^'\n]*)'|\bload_extension\b",
        re.MULTILINE | re.IGNORECASE,
    ),
    "vim": _vim,
    "vim_operand": _vim_operand,
}
