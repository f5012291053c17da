"""The text box of the composer: a text area in which Enter sends, and which offers completions."""

import asyncio
import re
import tempfile
from pathlib import Path
from typing import ClassVar, Final

from msgspec import Struct
from textual import events
from textual.app import App, SuspendNotSupported
from textual.binding import BindingType
from textual.widgets import TextArea

from chatd.terminal.keys import KEYS, bindings_of
from chatd.terminal.safe_text import safe_text
from chatd.terminal.session import Machine, app_of

# Pasted text: one draft however many lines it has. A long one becomes a file of the message.

MAX_INLINE_CHARS: Final = 20_000
"""Longer pasted text is attached as a file: the text box stays quick and readable."""
MAX_INLINE_LINES: Final = 400
MAX_PASTED_CHARS: Final = 4_000_000
"""Only this much of a longer paste is kept, and a notice says so."""
MAX_TEXT_CHARS: Final = 200_000
"""Limit for the text of one message; a request may have 1 MiB."""

_COMPOSER_ACTIONS: Final = frozenset(key.action for key in KEYS["composer"])
_BLOCK: Final = re.compile(r"\[Pasted text (\d+), [\d,]+ lines?\]")


class Pasted(Struct, frozen=True, kw_only=True):
    """What is put into the box: the text, or a word that stands for the file."""

    text: str
    is_long: bool
    is_cut: bool


def read_paste(raw: str) -> Pasted:
    """Terminals send the line breaks of a paste as carriage returns."""
    cut = raw[:MAX_PASTED_CHARS]
    text = safe_text(cut.replace("\r\n", "\n").replace("\r", "\n"))
    is_long = len(text) > MAX_INLINE_CHARS or text.count("\n") >= MAX_INLINE_LINES
    return Pasted(text=text, is_long=is_long, is_cut=len(raw) > len(cut))


def write_block(number: int, text: str) -> str:
    """Stands in the draft for the pasted file; removing it removes the file."""
    lines = text.count("\n") + (0 if text.endswith("\n") else 1)
    return f"[Pasted text {number}, {lines:,} {'line' if lines == 1 else 'lines'}]"


def next_number(text: str) -> int:
    return 1 + max((int(match.group(1)) for match in _BLOCK.finditer(text)), default=0)


class LongPaste(Struct, frozen=True):
    """A text that is too long for the box, which has `word` in its place."""

    text: str
    word: str
    name: str
    is_cut: bool


class TextBox(TextArea):
    """The actions of its keys are the composer's, in which it is."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_of("composer")

    DEFAULT_CSS = """
    TextBox {
        height: auto;
        min-height: 3;
        max-height: 8;
        padding: 0 1;
        border: round $panel-lighten-2;
        background: $background;
        & .text-area--cursor-line { background: $background; }
        &:focus { border: round $accent; background-tint: $foreground 0%; }
    }
    """

    def __init__(self) -> None:
        super().__init__(
            soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, max_checkpoints=100
        )
        self._long_pastes: list[LongPaste] = []

    def write(self, text: str) -> None:
        """Replaces the text, which may come from the server; the cursor is at its end."""
        self.load_text(safe_text(text)[:MAX_TEXT_CHARS])
        self.move_cursor(self.document.end)

    def put(self, text: str, start: int) -> None:
        """Replaces what stands before the cursor in its line, from the column `start` on."""
        row, column = self.cursor_location
        result = self.replace(text, (row, start), (row, column))
        self.move_cursor(result.end_location)

    @property
    def line_before_cursor(self) -> str:
        row, column = self.cursor_location
        return self.document.get_line(row)[:column]

    async def _on_key(self, event: events.Key) -> None:
        """Runs the bindings of this box at once, in the order of the keys. Textual would run them
        when the key has come up to the app; letters that were typed after it are in the text then,
        and Enter would send them too."""
        bindings = self._bindings.key_to_bindings.get(event.key, ())
        if not bindings:
            return
        event.prevent_default()
        for binding in bindings:
            node = self.parent if binding.action in _COMPOSER_ACTIONS else self
            if await app_of(self).run_action(binding.action, node):
                event.stop()
                return

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        pasted = read_paste(event.text)
        if pasted.is_long or len(self.text) + len(pasted.text) > MAX_TEXT_CHARS:
            number = next_number(self.text)
            word = write_block(number, pasted.text)
            self.insert(f"{word} ")
            name = f"pasted-text-{number}.txt"
            self._long_pastes.append(LongPaste(pasted.text, word, name, pasted.is_cut))
            await app_of(self).run_action("attach_pasted", self.parent)
            return
        result = self._replace_via_keyboard(pasted.text, *self.selection)
        if result is not None:
            self.move_cursor(result.end_location)

    def take_long_pastes(self) -> list[LongPaste]:
        taken, self._long_pastes = self._long_pastes, []
        return taken

    def ends_with_backslash(self) -> bool:
        """A backslash at the end of the text makes a new line, as in a shell."""
        row, column = self.cursor_location
        before = self.line_before_cursor
        is_at_end = (row, column) == self.document.end
        return is_at_end and before.endswith("\\") and not before.endswith("\\\\")

    def new_line(self, *, instead: int = 0) -> None:
        """Insert in place of the selection, or of this many characters before the cursor."""
        start, end = self.selection
        if instead:
            start = (end[0], end[1] - instead)
        result = self._replace_via_keyboard("\n", start, end)
        if result is not None:
            self.move_cursor(result.end_location)


# Writes a draft in the person's own editor, in the same terminal.


class EditorFailed(Exception):
    """The editor failed; the message says why, for people."""


async def edit_text(app: App[None], machine: Machine, text: str) -> str:
    """The text as the editor left it. Raises EditorFailed.

    The process continues during the edit, so the connection stays open; nothing is drawn, because a
    write to a suspended terminal would block.
    """
    editor = machine.editor
    with tempfile.TemporaryDirectory(prefix="chatd-") as directory:
        path = Path(directory) / "message.md"
        path.write_text(text, encoding="utf-8")
        try:
            with app.batch_update(), app.suspend():
                env = machine.program_env
                process = await asyncio.create_subprocess_exec(*editor, str(path), env=env)
                code = await process.wait()
        except SuspendNotSupported:
            raise EditorFailed("This terminal cannot be lent to an editor.") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise EditorFailed(f"{editor[0]} did not start: {reason}. Set VISUAL.") from None
        if code != 0:
            raise EditorFailed(f"{editor[0]} ended with {code}; the text is as it was.")
        try:
            return path.read_text(encoding="utf-8", errors="replace").removesuffix("\n")
        except OSError as error:
            raise EditorFailed(f"The text was not read back: {error.strerror}.") from None
