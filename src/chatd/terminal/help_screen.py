"""All keys and commands, on top of the chat."""

from collections.abc import Iterator
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from chatd.terminal.composer.commands import COMMANDS
from chatd.terminal.keys import AREA_TITLES, KEYS, key_names


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static("Keys and commands", classes="title", markup=False)
            with VerticalScroll(can_focus=True):
                for title, rows in _sections():
                    yield Static(title, classes="section", markup=False)
                    yield Static(_table(rows))
            yield Static("Esc closes; the arrows scroll", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def _sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for area, keys in KEYS.items():
        if keys:
            yield AREA_TITLES[area], [(key_names(key.keys), key.text) for key in keys]
    yield (
        "Commands: write them in the message box",
        [(command.usage, command.effect) for command in COMMANDS],
    )


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=24, no_wrap=False)
    table.add_column(ratio=1)
    for left, right in rows:
        table.add_row(Text(left, style="bold"), Text(right))
    return table
