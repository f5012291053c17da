"""The text box of the composer: a text area in which Enter sends, and which offers completions."""

from typing import ClassVar, Protocol

from textual import events
from textual.actions import SkipAction
from textual.binding import BindingType
from textual.widgets import TextArea

from chatd.terminal.attachments.pasted_text import MAX_TEXT_CHARS, Pasted, read_paste
from chatd.terminal.keys import bindings_of
from chatd.terminal.safe_text import safe_text
from chatd.terminal.session import app_of


class BoxHost(Protocol):
    """Does what the keys ask for. False: the key means what it means in any text."""

    def send(self) -> None: ...
    def go_back(self) -> bool: ...
    def go_forward(self) -> bool: ...
    def take_offer(self) -> bool: ...
    def close(self) -> bool: ...
    def take_paste(self, pasted: Pasted) -> None: ...
    def run_key(self, action: str) -> None: ...


class TextBox(TextArea):
    """Says what the keys ask for; the composer does it."""

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

    def __init__(self, host: BoxHost) -> None:
        super().__init__(
            soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, max_checkpoints=100
        )
        self._host = host

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
            if await app_of(self).run_action(binding.action, self):
                event.stop()
                return

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        pasted = read_paste(event.text)
        if pasted.is_long or len(self.text) + len(pasted.text) > MAX_TEXT_CHARS:
            self._host.take_paste(pasted)
            return
        result = self._replace_via_keyboard(pasted.text, *self.selection)
        if result is not None:
            self.move_cursor(result.end_location)

    def action_send(self) -> None:
        """A backslash at the end of the text makes a new line, as in a shell."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        is_at_end = (row, column) == self.document.end
        if is_at_end and before.endswith("\\") and not before.endswith("\\\\"):
            self.replace("\n", (row, column - 1), (row, column))
            self.move_cursor(self.document.end)
            return
        self._host.send()

    def action_new_line(self) -> None:
        result = self._replace_via_keyboard("\n", *self.selection)
        if result is not None:
            self.move_cursor(result.end_location)

    def action_back(self) -> None:
        if not (self.cursor_at_first_line and self._host.go_back()):
            self.action_cursor_up()

    def action_forward(self) -> None:
        if not (self.cursor_at_last_line and self._host.go_forward()):
            self.action_cursor_down()

    def action_complete(self) -> None:
        if not self._host.take_offer():
            raise SkipAction

    def action_close(self) -> None:
        if not self._host.close():
            raise SkipAction

    def action_run(self, action: str) -> None:
        self._host.run_key(action)
