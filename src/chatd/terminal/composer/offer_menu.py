"""The menu of completions above the text box. It has no focus: the text box keeps it."""

from typing import ClassVar, Final

from rich.text import Text
from textual.app import RenderResult
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from chatd.terminal.composer.completions import Offer
from chatd.terminal.safe_text import safe_line

MAX_OFFER_ROWS: Final = 8


class OfferMenu(Widget):
    """`offers` and which of them is chosen. Hidden while there are none."""

    DEFAULT_CSS = """
    OfferMenu {
        height: auto;
        max-height: 10;
        margin: 0 1;
        padding: 0 1;
        background: $panel;
        display: none;
        &.-shown { display: block; }
        & .offer--chosen { background: $block-cursor-blurred-background; color: $foreground; }
        & .offer--note { color: $text-muted; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"offer--chosen", "offer--note"}

    offers: reactive[tuple[Offer, ...]] = reactive((), layout=True)
    chosen: reactive[int] = reactive(0)

    def show_offers(self, offers: tuple[Offer, ...], typed: str = "") -> None:
        """What is typed in full is chosen; else the same as before, or the first that can be used:
        Enter on `/mode` must not run `/model`."""
        before = self.offer
        self.offers = offers
        exact = [at for at, one in enumerate(offers) if one.insert.strip() == typed]
        kept = [at for at, one in enumerate(offers) if before and one.label == before.label]
        usable = [at for at, one in enumerate(offers) if not one.refusal]
        self.chosen = (exact or kept or usable or [0])[0]
        self.set_class(bool(offers), "-shown")

    @property
    def offer(self) -> Offer | None:
        return self.offers[self.chosen] if self.chosen < len(self.offers) else None

    def step(self, by: int) -> None:
        if self.offers:
            self.chosen = (self.chosen + by) % len(self.offers)

    def render(self) -> RenderResult:
        width = max(self.content_size.width, 20)
        first = max(0, min(self.chosen - MAX_OFFER_ROWS // 2, len(self.offers) - MAX_OFFER_ROWS))
        rows = range(first, min(first + MAX_OFFER_ROWS, len(self.offers)))
        names = max((len(self.offers[at].label) for at in rows), default=0)
        column = min(names, width // 2)
        text = Text(no_wrap=True, overflow="ellipsis")
        for at in rows:
            if at > first:
                text.append("\n")
            text.append_text(self._row(self.offers[at], column, width, is_chosen=at == self.chosen))
        return text

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return min(len(self.offers), MAX_OFFER_ROWS)

    def _row(self, offer: Offer, column: int, width: int, *, is_chosen: bool) -> Text:
        name = safe_line(offer.label, column)
        note_style = self.get_component_rich_style("offer--note", partial=True)
        row = Text("▸ " if is_chosen else "  ")
        row.append(name + " " * (column - len(name)), "bold" if is_chosen else "")
        note = f"({offer.refusal}) {offer.note}" if offer.refusal else offer.note
        row.append("  " + safe_line(note, max(width - column - 4, 1)), note_style)
        if offer.refusal:
            row.stylize("dim")
        if is_chosen:
            row.pad_right(max(0, width - row.cell_len))
            row.stylize(self.get_component_rich_style("offer--chosen", partial=True))
        return row
