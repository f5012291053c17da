"""Changes: what the turn, the chat or the working tree has changed."""

import asyncio
from functools import partial
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from chatd.client.choice_resources import ChatChanges
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.domain.ids import ChatId
from chatd.domain.workspace.agent_api import DiffScope
from chatd.terminal.changes.changed_files import ChangedFile, Changes, read_changes, rows_of
from chatd.terminal.changes.diff_body import DiffBody
from chatd.terminal.changes.diff_scope import NOTHING, SCOPE_NAMES, SCOPES, next_scope
from chatd.terminal.keys import bindings_of
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import session_of

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
            reply = await api.get(f"/chats/{self._chat_id}/diff", ChatChanges, scope=scope)
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
            notes = [f"{NOTHING[self._scope]} Tab looks at {self._next_name()}."]
        self._say("\n".join(safe_line(note, 300) for note in notes), keeps_files=True)
        if changes.files:
            listed.highlighted = 0

    def _next_name(self) -> str:
        return SCOPE_NAMES[next_scope(self._scope)].lower()

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
        """The end of a long path says more than its beginning."""
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
        """The last file is followed by the first."""
        listed = self.query_one(OptionList)
        if listed.option_count:
            listed.highlighted = ((listed.highlighted or 0) + by) % listed.option_count

    def action_hunk(self, by: int) -> None:
        if not self.query_one(DiffBody).step_hunk(by):
            self.notify("No more changes in this file. n shows the next one.", timeout=2)
