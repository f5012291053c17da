"""A picker in which several things are chosen: Enter takes one or gives it back."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import OptionList

from chatd.terminal.pickers.picker import Pick, PickerFrame


class MultiPicker(PickerFrame[str, tuple[str, ...]]):
    """Returns the values of all that are chosen, in the order of the list."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "done", "Keep and close")]

    def __init__(self, title: str, picks: Sequence[Pick[str]], chosen: Sequence[str]) -> None:
        super().__init__(title, picks, foot="Enter takes or leaves · Esc keeps and closes")
        self._chosen = set(chosen)

    def action_done(self) -> None:
        self.dismiss(tuple(one.value for one in self._picks if one.value in self._chosen))

    def _take(self, pick: Pick[str]) -> None:
        self._chosen ^= {pick.value}
        listed = self.query_one(OptionList)
        at = listed.highlighted
        self._show(self.query_text)
        listed.highlighted = at

    def _mark(self, pick: Pick[str]) -> Text:
        is_on = pick.value in self._chosen or bool(pick.refusal)
        return Text("[x] " if is_on else "[ ] ")
