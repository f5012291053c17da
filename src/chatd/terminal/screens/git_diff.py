"""Reads what `git diff` prints."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

_TOKEN: Final = re.compile(rb"\\[0-7]{1,3}|\\.|[^\\]+", re.DOTALL)
_ESCAPES: Final[Mapping[bytes, bytes]] = {
    b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r",
}  # fmt: skip
_NAME: Final = r'("(?:[^"\\]|\\.)*"|\S+)'
_TWO_NAMES: Final = re.compile(f"{_NAME} {_NAME}")


def unquote_name(name: str) -> str:
    if len(name) < 2 or name[0] != '"' or name[-1] != '"':
        return name
    tokens = _TOKEN.findall(name[1:-1].encode())
    return b"".join(_decode(token) for token in tokens).decode(errors="replace")


def _decode(token: bytes) -> bytes:
    if token[:1] != b"\\":
        return token
    if token[1:2] in b"01234567":
        return bytes([int(token[1:], 8) & 0xFF])
    return _ESCAPES.get(token[1:], token[1:])


def side_name(line: str) -> str | None:
    """The name in a line `--- a/x` or `+++ b/x`; None for /dev/null. A tab ends a name that has
    spaces."""
    name = line[4:].partition("\t")[0]
    if name == "/dev/null":
        return None
    return re.sub(r"^[ab]/", "", unquote_name(name))


def split_names(names: str) -> tuple[str, str]:
    """The name in `a/x b/x`. Names with spaces are not quoted: then both are the same, or a later
    line of the diff has them."""
    if (match := _TWO_NAMES.fullmatch(names)) is not None:
        old, new = unquote_name(match.group(1)), unquote_name(match.group(2))
        return old.removeprefix("a/"), new.removeprefix("b/")
    half = (len(names) - 1) // 2
    old, new = names[:half], names[half + 1 :]
    if old[2:] == new[2:]:
        return old[2:], new[2:]
    return names, names


# Reads the output of `git diff`: files, hunks and lines. Pure. The page has the same reader in
# `ui/src/panel/changes/git-diff.ts`.

FileKind = Literal["added", "deleted", "changed", "renamed", "copied", "conflict"]

_HUNK: Final = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)")
_BINARY: Final = re.compile(r"Binary files .* differ|GIT binary patch")
_KINDS: Final[Mapping[str, Literal["add", "del", "context"]]] = {
    "+": "add",
    "-": "del",
    " ": "context",
    "": "context",
}


class DiffLine(Struct, frozen=True):
    """A line with its numbers on both sides. Those who draw a diff add `hunk` and `note`."""

    kind: Literal["context", "add", "del", "hunk", "note"]
    text: str
    old: int | None = None
    new: int | None = None


class Hunk(Struct, frozen=True, kw_only=True):
    title: str
    lines: tuple[DiffLine, ...]


class FileDiff(Struct, frozen=True, kw_only=True):
    """`path` is its name now; of a deleted file the name it had. `old_path` is its former name, if
    it has another one now."""

    path: str
    old_path: str = ""
    kind: FileKind = "changed"
    is_binary: bool = False
    modes: tuple[str, str] | None = None
    added: int = 0
    removed: int = 0
    hunks: tuple[Hunk, ...] = ()


class GitDiff(Struct, frozen=True):
    """`note` is text in place of a diff, such as a reason why there is none."""

    files: tuple[FileDiff, ...]
    note: str


class _Draft(Struct, kw_only=True):
    old_name: str
    new_name: str
    kind: FileKind = "changed"
    is_binary: bool = False
    old_mode: str = ""
    new_mode: str = ""
    hunks: list[Hunk] = []


def parse_git_diff(text: str) -> GitDiff:
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._lines = text.removesuffix("\n").split("\n")
        self._at = 0

    def read(self) -> GitDiff:
        files: list[FileDiff] = []
        notes: list[str] = []
        while self._at < len(self._lines):
            line = self._line()
            if line.startswith("diff --git "):
                files.append(_finish(self._git_file(line.removeprefix("diff --git "))))
            elif re.match(r"diff --(cc|combined) ", line):
                files.append(_finish(self._conflict(line)))
            elif line.startswith("--- ") and self._line(1).startswith("+++ "):
                files.append(_finish(self._plain_file()))
            else:
                notes.append(line)
                self._at += 1
        return GitDiff(tuple(files), "" if files else "\n".join(notes).strip())

    def _line(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._lines[at] if at < len(self._lines) else ""

    def _git_file(self, names: str) -> _Draft:
        old, new = split_names(names)
        draft = _Draft(old_name=old, new_name=new)
        self._at += 1
        while self._at < len(self._lines) and _read_header(draft, self._line()):
            self._at += 1
        self._read_hunks(draft)
        return draft

    def _plain_file(self) -> _Draft:
        old, new = side_name(self._line()), side_name(self._line(1))
        draft = _Draft(old_name=old or new or "", new_name=new or old or "")
        if old is None:
            draft.kind = "added"
        elif new is None:
            draft.kind = "deleted"
        self._at += 2
        self._read_hunks(draft)
        return draft

    def _conflict(self, first: str) -> _Draft:
        """A merge in progress: its diff has a column for each parent, which is not shown."""
        name = unquote_name(re.sub(r"^diff --\w+ ", "", first))
        self._at += 1
        while self._at < len(self._lines) and not self._line().startswith("diff --"):
            self._at += 1
        return _Draft(old_name=name, new_name=name, kind="conflict")

    def _read_hunks(self, draft: _Draft) -> None:
        while (head := _HUNK.fullmatch(self._line())) is not None:
            self._at += 1
            draft.hunks.append(self._hunk(head))

    def _hunk(self, head: re.Match[str]) -> Hunk:
        """As many lines as its head counts, whatever they look like."""
        old, new = int(head[1]), int(head[3])
        old_end, new_end = old + int(head[2] or 1), new + int(head[4] or 1)
        lines: list[DiffLine] = []
        while self._at < len(self._lines) and (old < old_end or new < new_end):
            line = self._line()
            # An empty context line may have lost its space on the way.
            kind = _KINDS.get(line[:1])
            if kind is None and line[:1] != "\\":
                break
            self._at += 1
            if kind is None:
                continue
            lines.append(
                DiffLine(
                    kind,
                    line[1:].removesuffix("\r"),
                    None if kind == "add" else old,
                    None if kind == "del" else new,
                )
            )
            old += kind != "add"
            new += kind != "del"
        while self._line().startswith("\\"):
            self._at += 1
        return Hunk(title=head[0], lines=tuple(lines))


def _read_header(draft: _Draft, line: str) -> bool:
    """One line between `diff --git` and the first hunk. False: it belongs to what follows."""
    if line.startswith(("diff --", "@@ ")):
        return False
    word, _, rest = line.partition(" ")
    match word, rest.split(" ", 2):
        case "old", ["mode", mode]:
            draft.old_mode = mode
        case "new", ["mode", mode]:
            draft.new_mode = mode
        case "new", ["file", *_]:
            draft.kind = "added"
        case "deleted", ["file", *_]:
            draft.kind = "deleted"
        case (("rename" | "copy"), ["from", *_]):
            draft.old_name = unquote_name(rest.removeprefix("from "))
        case (("rename" | "copy"), ["to", *_]):
            draft.new_name = unquote_name(rest.removeprefix("to "))
            draft.kind = "renamed" if word == "rename" else "copied"
        case "---", _:
            draft.old_name = side_name(line) or draft.old_name
        case "+++", _:
            draft.new_name = side_name(line) or draft.new_name
        case _:
            draft.is_binary = draft.is_binary or _BINARY.fullmatch(line) is not None
    return True


def _finish(draft: _Draft) -> FileDiff:
    path = draft.old_name if draft.kind == "deleted" else draft.new_name
    is_moved = draft.kind in ("renamed", "copied") and draft.old_name != path
    has_modes = draft.old_mode and draft.new_mode and draft.old_mode != draft.new_mode
    kinds = [line.kind for hunk in draft.hunks for line in hunk.lines]
    return FileDiff(
        path=path or draft.old_name,
        old_path=draft.old_name if is_moved else "",
        kind=draft.kind,
        is_binary=draft.is_binary,
        modes=(draft.old_mode, draft.new_mode) if has_modes else None,
        added=kinds.count("add"),
        removed=kinds.count("del"),
        hunks=tuple(draft.hunks),
    )
