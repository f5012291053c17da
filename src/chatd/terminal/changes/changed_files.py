"""The changed files of a chat: read from the reply of the server, and as lines to draw. Pure."""

from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from chatd.client.choice_resources import ChatChanges
from chatd.terminal.changes.git_diff import FileDiff, parse_git_diff
from chatd.terminal.safe_text import safe_text

MAX_CHANGED_FILES: Final = 500
"""Files that the list of changes shows."""
MAX_FILE_LINES: Final = 5000
"""Lines of one file's diff that are shown."""
MAX_LINE_CHARS: Final = 2000

RowKind = Literal["context", "add", "del", "hunk", "note"]
_TAB: Final = "    "


class ChangedFile(Struct, frozen=True, kw_only=True):
    """`root` is its repository; empty if there is only one."""

    root: str
    file: FileDiff


class Changes(Struct, frozen=True, kw_only=True):
    """`notes` say why something is not there."""

    files: tuple[ChangedFile, ...] = ()
    notes: tuple[str, ...] = ()
    added: int = 0
    removed: int = 0


class DiffRow(Struct, frozen=True):
    """A line on the screen; `text` is safe."""

    kind: RowKind
    text: str
    old: int | None = None
    new: int | None = None


def read_changes(reply: ChatChanges) -> Changes:
    """Slow for a large diff: call it in a thread."""
    files: list[ChangedFile] = []
    notes: list[str] = []
    has_roots = len(reply.repositories) > 1
    for repository in reply.repositories:
        diff = parse_git_diff(repository.unified_diff)
        root = repository.repo_root if has_roots else ""
        files += [ChangedFile(root=root, file=file) for file in diff.files]
        if note := repository.omitted or diff.note:
            notes.append(note)
    if len(files) > MAX_CHANGED_FILES:
        notes.append(f"{len(files) - MAX_CHANGED_FILES:,} more files are not listed.")
    return Changes(
        files=tuple(files[:MAX_CHANGED_FILES]),
        notes=tuple(notes),
        added=sum(one.file.added for one in files),
        removed=sum(one.file.removed for one in files),
    )


def rows_of(file: FileDiff) -> tuple[DiffRow, ...]:
    rows = list(_head(file))
    for hunk in file.hunks:
        rows.append(DiffRow("hunk", _safe(hunk.title)))
        rows += [DiffRow(one.kind, _safe(one.text), one.old, one.new) for one in hunk.lines]
        if len(rows) > MAX_FILE_LINES:
            break
    if len(rows) > MAX_FILE_LINES:
        total = sum(len(hunk.lines) for hunk in file.hunks)
        rows = rows[:MAX_FILE_LINES]
        rows.append(DiffRow("note", f"The file has {total:,} lines of changes; the rest is cut."))
    return tuple(rows)


def _head(file: FileDiff) -> Iterator[DiffRow]:
    if file.old_path:
        verb = "Renamed" if file.kind == "renamed" else "Copied"
        yield DiffRow("note", f"{verb} from {_safe(file.old_path)}")
    if file.modes is not None:
        yield DiffRow("note", f"Mode {file.modes[0]} became {file.modes[1]}")
    if file.is_binary:
        yield DiffRow("note", "A binary file: its content is not shown.")
    elif file.kind == "conflict":
        yield DiffRow("note", "A merge is in progress: the file has conflicts.")
    elif not file.hunks:
        words = {"added": "An empty file was added.", "deleted": "An empty file was deleted."}
        yield DiffRow("note", words.get(file.kind, "Its content is the same."))


def _safe(text: str) -> str:
    cut = text[: MAX_LINE_CHARS + 1]
    shown = safe_text(cut).replace("\t", _TAB).replace("\n", " ")
    return shown if len(text) <= MAX_LINE_CHARS else f"{shown[:MAX_LINE_CHARS]}…"


def hunk_places(rows: tuple[DiffRow, ...]) -> tuple[int, ...]:
    return tuple(at for at, row in enumerate(rows) if row.kind == "hunk")
