"""What the parser finds in a text for a shell: commands with their words, assignments, texts.

tree-sitter finds every simple command: in lists, pipes, conditions, loops, functions, subshells,
substitutions and here-documents. This module removes quotes and leaves a hole for what only the
running shell knows, such as a variable.

tree-sitter is a library of C code that computes a tree from bytes. It does no I/O, and the same
text gives the same tree, so it is part of the domain.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

from msgspec import Struct
from tree_sitter import Language, Node, Parser
from tree_sitter_bash import language

ANY_TEXT: Final = "\x00"
"""A hole: any text, also none and also several words."""
ANY_NAME: Final = "\x01"
"""A hole left by `*`, `?` or `[...]`: text without blanks and slashes."""
PIPE_FILE: Final = "/dev/fd/63"
"""The name that bash gives to `<(...)`."""

_LANGUAGE: Final = Language(language())
_HEREDOC: Final = re.compile(
    r"""<<-?[ \t]*(['"]?)([A-Za-z_]\w{0,63})\1[^\n'"\\`$(){}#<]*\n""", re.ASCII
)
"""Nothing on the rest of the line may join it with the next one."""
_MAX_HEREDOCS: Final = 32
_UNQUOTED: Final = re.compile(
    r"\\(.)|(\{[^{}\s]*(?:,|\.\.)[^{}\s]*\})|([*?]|\[[^\]\s]+\])", re.DOTALL
)
"""An escaped character, braces that bash expands, a sign that stands for file names."""
_BACKTICKS: Final = re.compile(r"(?<!\\)`((?:[^`\\]|\\.)*)`", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b"}
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)
_COMMAND_NODES: Final = frozenset({"command", "declaration_command", "unset_command"})
_COMPUTING_NODES: Final = frozenset({
    "((", "arithmetic_expansion", "c_style_for_statement", "declaration_command", "expansion",
    "subscript", "test_command", "unset_command",
})  # fmt: skip
_COMPUTING_NAMES: Final = frozenset({
    "[", "declare", "exec", "export", "getopts", "let", "local", "mapfile", "printf", "read",
    "readarray", "readonly", "test", "typeset", "unset", "wait",
})  # fmt: skip
"""Where bash takes a text for a number or for a name with a subscript, and runs the substitutions
in the subscript: `let 'a[$(rm x)]'`."""
_LITERAL_NODES: Final = frozenset({
    "ansi_c_string", "concatenation", "heredoc_body", "herestring_redirect", "raw_string", "string",
    "word",
})  # fmt: skip
_MAX_SUBSTITUTIONS: Final = 24
"""Of one text that a program or bash expands later. It equals the bound of texts in a command."""


class SimpleCommand(Struct, frozen=True, kw_only=True):
    """`feeder` has the words of the command before it in a pipe; None if there is none."""

    words: list[str]
    feeder: list[str] | None


class ShellSyntax(Struct, frozen=True, kw_only=True):
    """`hidden`: texts of substitutions that the parser has no nodes for. `fed`: here-documents and
    here-strings. `is_unclear`: it may run more. `is_whole`: no part was left unread."""

    commands: tuple[SimpleCommand, ...]
    assignments: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    fed: tuple[str, ...]
    is_unclear: bool
    is_whole: bool


def parse_shell(text: str, heredocs: Collection[int] = ()) -> ShellSyntax:
    """`heredocs`: places in the text, in bytes, where here-documents must be."""
    root = Parser(_LANGUAGE).parse(text.encode(errors="replace")).root_node
    walked = list(_walk(root))
    nodes = [one.node for one in walked]
    later = _words_after_redirections(nodes)
    commands = tuple(
        SimpleCommand(
            words=[*_words(one.node), *later.get(one.node.id, ())],
            feeder=None if one.feeder is None else _feeding_words(one.feeder),
        )
        for one in walked
        if one.node.type in _COMMAND_NODES
    )
    hidden = [found for node in nodes for found in _hidden_texts(node)]
    if re.search(r"[\[(]", text) and _is_computing(nodes, commands):
        hidden += [found for one in walked for found in _computed_texts(one.node, one.parent)]
    return ShellSyntax(
        commands=commands,
        assignments=tuple(
            _assignment(node) for node in nodes if node.type == "variable_assignment"
        ),
        hidden=tuple(hidden),
        fed=tuple(_fed_texts(nodes)),
        is_unclear=any(_is_unclear(node) for node in nodes),
        is_whole=not root.has_error
        and not set(heredocs) - {one.start_byte for one in nodes if one.type == "heredoc_redirect"},
    )


# Texts


def has_hole(text: str) -> bool:
    return ANY_TEXT in text or ANY_NAME in text


def substitutions(text: str) -> Iterator[str]:
    """The commands of $(...) and `...` in a text that is expanded later."""
    return islice(_substitutions(text), _MAX_SUBSTITUTIONS + 1)


def _substitutions(text: str) -> Iterator[str]:
    place = 0
    while (start := re.compile(r"\$\((?!\()|`").search(text, place)) is not None:
        depth, place = 1, start.end()
        is_quoted = start[0] == "`"
        for sign in re.compile(r"`" if is_quoted else r"[()]").finditer(text, place):
            depth += 1 if sign[0] == "(" else -1
            place = sign.end()
            if not depth:
                break
        yield text[start.end() : place - 1 if not depth else len(text)]
        if depth:
            return


def unescape(text: str) -> str:
    def char(escape: re.Match[str]) -> str:
        code = next((int(one, 16) for one in escape.groups()[:3] if one), None)
        if escape[4]:
            code = int(escape[4], 8)
        if code is not None:
            return chr(code) if 1 < code < 0x110000 else ANY_TEXT
        return _ESCAPES.get(escape[5], escape[5])

    return _ESCAPE.sub(char, text)


def without_heredocs(text: str) -> tuple[str, list[str], set[int]]:
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


# Nodes


class _Walked(NamedTuple):
    """A node, and the one that feeds it through a pipe."""

    node: Node
    parent: Node | None
    feeder: Node | None


def _walk(root: Node) -> Iterator[_Walked]:
    todo = [_Walked(root, None, None)]
    while todo:
        node, parent, feeder = walked = todo.pop()
        yield walked
        # `cat <<E | sh`: the rest of the line is a part of the here-document's start.
        if node.type == "pipeline" and parent is not None and parent.type == "heredoc_redirect":
            feeder = parent.prev_named_sibling
        children: list[_Walked] = []
        for child in node.children:
            children.append(_Walked(child, node, feeder))
            feeder = child if node.type == "pipeline" and child.is_named else feeder
        todo += reversed(children)


def _feeding_words(node: Node) -> list[str]:
    """None of a loop or another statement of several commands."""
    if node.type == "redirected_statement":
        node = node.child_by_field_name("body") or node
    return _words(node) if node.type == "command" else []


def _is_unclear(node: Node) -> bool:
    """Two lines that the parser has joined, as it does where one begins with an escape; and
    ${x@P}, which expands the value of x."""
    if node.type == "expansion":
        return re.search(rb"@P\}$", node.text or b"") is not None
    if node.type != "command":
        return False
    raw, start = node.text or b"", node.start_byte
    gaps = (
        raw[one.end_byte - start : other.start_byte - start]
        for one, other in pairwise(node.children)
    )
    return any(re.search(rb"(?<!\\)\n", gap) for gap in gaps)


def _is_computing(nodes: Sequence[Node], commands: Sequence[SimpleCommand]) -> bool:
    return any(node.type in _COMPUTING_NODES for node in nodes) or any(
        not _COMPUTING_NAMES.isdisjoint(command.words[:2]) for command in commands
    )


def _computed_texts(node: Node, parent: Node | None) -> Iterator[str]:
    """Substitutions in a quoted subscript, wherever the text is: bash runs them when it computes
    with a variable that has the text."""
    if node.type not in _LITERAL_NODES:
        return
    raw = node.text or b""
    if node.type == "word" and b"\\" not in raw:
        return
    in_subscript = parent is not None and parent.type == "subscript"
    in_list = (
        parent is not None
        and parent.type == "declaration_command"
        and re.match(rb"..?\w+\+?=\(", raw) is not None
    )
    if node.type in {"heredoc_body", "herestring_redirect"}:
        text = _decode(node)
    elif in_subscript or in_list or b"[" in raw or node.type in {"ansi_c_string", "word"}:
        text = _text(node, globs=False)
    else:
        return
    # The parser splits a[\$\(b\)] into two words.
    depth = int(in_subscript or in_list or node.type == "word")
    for sign in re.finditer(r"[\[\]`]|\$\(", text):
        if sign[0] in {"$(", "`"} and depth > 0:
            yield from substitutions(text[sign.start() :])
            return
        depth += {"[": 1, "]": -1}.get(sign[0], 0)


def _assignment(node: Node) -> tuple[str, str]:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    return "" if name is None else _decode(name), "" if value is None else _text(value)


def _fed_texts(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        if node.type == "heredoc_body":
            yield _decode(node)
        elif node.type == "herestring_redirect":
            yield " ".join(_text(child) for child in node.named_children)


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


def _text(node: Node, *, globs: bool = True) -> str:
    """A word as the command gets it, without quotes, with holes. Without `globs`: as bash gets a
    text that it computes."""
    raw = _decode(node)
    match node.type:
        case "command_name" | "concatenation" | "translated_string":
            joined = "".join(_text(child, globs=globs) for child in node.children)
            if node.type != "concatenation" or not globs:
                return joined
            joined = re.sub(r"\[[^\]\s]+\]", ANY_NAME, joined)
            return re.sub(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}", ANY_TEXT, joined)
        case "string":
            return _string_text(node)
        case "raw_string":
            return raw[1:-1]
        case "ansi_c_string":
            return unescape(raw[2:-1])
        case "simple_expansion" | "expansion":
            return raw if raw in {"$HOME", "${HOME}"} else ANY_TEXT
        case "process_substitution":
            return PIPE_FILE
        case "arithmetic_expansion" | "brace_expression":
            return ANY_NAME
        case "variable_assignment":
            name, value = _assignment(node)
            return f"{name}={value}"
        case _ if node.named_child_count:
            return ANY_TEXT
        case _ if not globs:
            return re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL)
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
