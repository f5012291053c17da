"""The screen of changes: of this turn, of the chat, or of the working tree."""

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar, Final, get_args

from msgspec import Struct
from msgspec.structs import replace
from rich.segment import Segment
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.geometry import Size
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import ChatChanges
from chatd.domain.ids import ChatId
from chatd.domain.workspace.agent_api import DiffScope
from chatd.terminal.keys import bindings_of
from chatd.terminal.safe_text import cell_width, safe_line, safe_text
from chatd.terminal.screens.git_diff import DiffLine, FileDiff, parse_git_diff
from chatd.terminal.session import session_of

SCOPES: Final[tuple[DiffScope, ...]] = get_args(DiffScope)
SCOPE_NAMES: Final[Mapping[DiffScope, str]] = {
    "turn": "This turn",
    "chat": "Chat",
    "git": "Working tree",
}
NOTHING: Final[Mapping[DiffScope, str]] = {
    "turn": "Nothing changed in this turn.",
    "chat": "This chat has changed nothing.",
    "git": "Nothing changed since the last commit, or there is no git repository.",
}


def read_scope(word: str) -> DiffScope:
    """The scope for the word after /diff; this turn for any other word."""
    wanted = word.strip().lower()
    for one in SCOPES:
        if one == wanted:
            return one
    return "turn"


def next_scope(scope: DiffScope) -> DiffScope:
    return SCOPES[(SCOPES.index(scope) + 1) % len(SCOPES)]


# The changed files of a chat: read from the reply of the server, and as lines to draw. Pure.

MAX_CHANGED_FILES: Final = 500
"""How many files the list of changes shows."""
MAX_FILE_LINES: Final = 5000
"""How many lines of one file's diff are shown."""
MAX_LINE_CHARS: Final = 2000

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


def rows_of(file: FileDiff) -> tuple[DiffLine, ...]:
    rows = list(_head(file))
    for hunk in file.hunks:
        rows.append(DiffLine("hunk", _safe(hunk.title)))
        rows += [replace(one, text=_safe(one.text)) for one in hunk.lines]
        if len(rows) > MAX_FILE_LINES:
            break
    if len(rows) > MAX_FILE_LINES:
        total = sum(len(hunk.lines) for hunk in file.hunks)
        rows = rows[:MAX_FILE_LINES]
        rows.append(DiffLine("note", f"The file has {total:,} lines of changes; the rest is cut."))
    return tuple(rows)


def _head(file: FileDiff) -> Iterator[DiffLine]:
    if file.old_path:
        verb = "Renamed" if file.kind == "renamed" else "Copied"
        yield DiffLine("note", f"{verb} from {_safe(file.old_path)}")
    if file.modes is not None:
        yield DiffLine("note", f"Mode {file.modes[0]} became {file.modes[1]}")
    if file.is_binary:
        yield DiffLine("note", "A binary file: its content is not shown.")
    elif file.kind == "conflict":
        yield DiffLine("note", "A merge is in progress: the file has conflicts.")
    elif not file.hunks:
        words = {"added": "An empty file was added.", "deleted": "An empty file was deleted."}
        yield DiffLine("note", words.get(file.kind, "Its content is the same."))


def _safe(text: str) -> str:
    cut = text[: MAX_LINE_CHARS + 1]
    shown = safe_text(cut).replace("\t", _TAB).replace("\n", " ")
    return shown if len(text) <= MAX_LINE_CHARS else f"{shown[:MAX_LINE_CHARS]}…"


def hunk_places(rows: tuple[DiffLine, ...]) -> tuple[int, ...]:
    return tuple(at for at, row in enumerate(rows) if row.kind == "hunk")


# The diff of one file, drawn line by line: only what is on the screen costs time.

_SIGNS: Final = {"add": "+", "del": "-", "context": " "}


class DiffBody(ScrollView, can_focus=True):
    """Signs and numbers say what the colours say."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "diff--add",
        "diff--del",
        "diff--context",
        "diff--hunk",
        "diff--note",
        "diff--number",
    }
    DEFAULT_CSS = """
    DiffBody {
        height: 1fr;
        background: $background;
        & .diff--add { color: $text-success; background: $success-muted; }
        & .diff--del { color: $text-error; background: $error-muted; }
        & .diff--context { color: $foreground; }
        & .diff--hunk { color: $text-accent; text-style: bold; }
        & .diff--note { color: $text-muted; text-style: italic; }
        & .diff--number { color: $text-muted; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[DiffLine, ...] = ()
        self._digits = 1

    def show_rows(self, rows: tuple[DiffLine, ...]) -> None:
        self._rows = rows
        numbers = [max(row.old or 0, row.new or 0) for row in rows]
        self._digits = len(str(max(numbers, default=1)))
        longest = max((cell_width(row.text) for row in rows), default=0)
        self.virtual_size = Size(longest + 2 * self._digits + 5, len(rows))
        self.scroll_to(0, 0, animate=False)
        self.refresh()

    def step_hunk(self, by: int) -> bool:
        """Go to the next hunk below the first line on the screen, or above it. False: there is
        none."""
        places = hunk_places(self._rows)
        top = round(self.scroll_target_y)
        found = (
            [place for place in places if place > top]
            if by > 0
            else [place for place in reversed(places) if place < top]
        )
        if not found or (by > 0 and top >= self.max_scroll_y):
            return False
        self.scroll_to(y=found[0], animate=False)
        return True

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        width = self.size.width
        at = y + scroll_y
        if at >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        strip = self._strip(self._rows[at], max(width + scroll_x, self.virtual_size.width))
        return strip.crop(scroll_x, scroll_x + width)

    def _strip(self, row: DiffLine, width: int) -> Strip:
        style = self.get_component_rich_style(f"diff--{row.kind}")
        if row.kind in ("hunk", "note"):
            return Strip([Segment(row.text, style)]).extend_cell_length(width, style)
        number = self.get_component_rich_style("diff--number")
        sides = (row.old, row.new)
        gutter = "".join(f"{'' if one is None else one:>{self._digits}} " for one in sides)
        text = Segment(f"{_SIGNS[row.kind]} {row.text}", style)
        return Strip([Segment(gutter, number), text]).extend_cell_length(width, style)


# Changes: what the turn, the chat or the working tree has changed.

MAX_PATH_CELLS: Final = 1000
_NO_WORKSPACE: Final = frozenset({"no_workspace", "workspaces_off"})
_KIND_SIGNS: Final = {
    "added": "A",
    "deleted": "D",
    "changed": "M",
    "renamed": "R",
    "copied": "C",
    "conflict": "!",
}


class ChangesScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("changes")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
    COMPONENT_CLASSES: ClassVar[set[str]] = {"changes--added", "changes--removed"}
    DEFAULT_CSS = """
    ChangesScreen {
        background: $background;
        & .changes--added { color: $text-success; }
        & .changes--removed { color: $text-error; }
        & #changes-head { height: 1; padding: 0 1; background: $panel; }
        & #changes-columns { height: 1fr; layout: vertical; }
        & #changes-files {
            height: auto;
            max-height: 7;
            border: none;
            padding: 0;
            background: $surface;
        }
        & #changes-note { height: auto; padding: 1 2; color: $text-muted; display: none; }
        &.-wide #changes-columns { layout: horizontal; }
        &.-wide #changes-files { width: 40; height: 1fr; max-height: 100%; }
        &.-wide DiffBody { width: 1fr; }
    }
    """

    def __init__(self, chat_id: ChatId, scope: DiffScope = "turn") -> None:
        super().__init__()
        self._chat_id = chat_id
        self._scope: DiffScope = scope
        self._changes: Changes | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="changes-head", markup=False)
        yield Static(id="changes-note", markup=False)
        with Container(id="changes-columns"):
            yield OptionList(id="changes-files")
            yield DiffBody()
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DiffBody).focus()
        self._read()

    # What is shown

    def _read(self) -> None:
        self._changes = None
        self._show_head()
        self._say("Reading the changes …")
        self.run_worker(partial(self._load, self._scope), group="changes", exclusive=True)

    async def _load(self, scope: DiffScope) -> None:
        api = session_of(self).api
        try:
            reply = await api.get_diff(self._chat_id, scope)
        except ApiError as error:
            text = error.message
            if error.code in _NO_WORKSPACE:
                text = "This chat has no workspace, so it has changed no files."
            self._say(text)
            return
        except ServerUnreachable as error:
            self._say(f"{error.message} r reads again.")
            return
        self._show(await asyncio.to_thread(read_changes, reply))

    def _show(self, changes: Changes) -> None:
        self._changes = changes
        self._show_head()
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options([Option(self._file_row(one)) for one in changes.files])
        notes = list(changes.notes)
        if not changes.files and not notes:
            following = SCOPE_NAMES[next_scope(self._scope)].lower()
            notes = [f"{NOTHING[self._scope]} Tab looks at {following}."]
        self._say("\n".join(safe_line(note, 300) for note in notes), keeps_files=True)
        if changes.files:
            listed.highlighted = 0

    def _say(self, text: str, *, keeps_files: bool = False) -> None:
        note = self.query_one("#changes-note", Static)
        note.update(Text(safe_line(text, 600) if not keeps_files else text))
        note.display = bool(text)
        has_files = keeps_files and self._changes is not None and bool(self._changes.files)
        self.query_one("#changes-columns").display = has_files

    def _show_head(self) -> None:
        head = Text.assemble(("Changes  ", "bold"), no_wrap=True)
        for scope in SCOPES:
            is_chosen = scope == self._scope
            head.append(f" {SCOPE_NAMES[scope]} ", "reverse" if is_chosen else "dim")
        if self._changes is not None and self._changes.files:
            count = len(self._changes.files)
            head.append(f"   {count} {'file' if count == 1 else 'files'}", "dim")
            head.append("  ")
            head.append_text(self._counts(self._changes.added, self._changes.removed))
        self.query_one("#changes-head", Static).update(head)

    def _counts(self, added: int, removed: int) -> Text:
        more = self.get_component_rich_style("changes--added", partial=True)
        less = self.get_component_rich_style("changes--removed", partial=True)
        return Text.assemble((f"+{added}", more), " ", (f"-{removed}", less))

    def _file_row(self, changed: ChangedFile) -> Text:
        """Cut the beginning of a long path: its end says more."""
        file = changed.file
        path = f"{changed.root}/{file.path}" if changed.root else file.path
        shown = safe_line(path, MAX_PATH_CELLS)
        row = Text.assemble((f" {_KIND_SIGNS[file.kind]} ", "dim"), no_wrap=True)
        row.append(shown if len(shown) <= 26 else f"…{shown[-25:]}")
        row.append(" " * max(1, 30 - row.cell_len))
        row.append_text(self._counts(file.added, file.removed))
        return row

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if self._changes is not None and event.option_index < len(self._changes.files):
            chosen = self._changes.files[event.option_index]
            self.query_one(DiffBody).show_rows(rows_of(chosen.file))

    def on_option_list_option_selected(self, _: OptionList.OptionSelected) -> None:
        self.query_one(DiffBody).focus()

    # Keys

    def action_close(self) -> None:
        self.dismiss(None)

    def action_scope(self) -> None:
        self._scope = next_scope(self._scope)
        self._read()

    def action_reload(self) -> None:
        self._read()

    def action_file(self, by: int) -> None:
        """Go to the next file; the first follows the last."""
        listed = self.query_one(OptionList)
        if listed.option_count:
            listed.highlighted = ((listed.highlighted or 0) + by) % listed.option_count

    def action_hunk(self, by: int) -> None:
        if not self.query_one(DiffBody).step_hunk(by):
            self.notify("No more changes in this file. n shows the next one.", timeout=2)
