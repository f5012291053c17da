"""Golden texts of the timeline. `python -m tests.terminal.timeline_golden` writes them anew; the
diff shows what a change does to every kind of row."""

from pathlib import Path
from typing import Final

from msgspec import Struct

from chatd.client.state import ShownChat
from chatd.terminal.themes import DARK_PALETTE
from chatd.terminal.timeline.card import Canvas, ChildStep, ChildView
from chatd.terminal.timeline.lines import plain_text
from chatd.terminal.timeline.row_lines import draw_row
from chatd.terminal.timeline.row_model import RowModel
from tests.terminal.timeline_scenes import CHILD, SCENES, START

DIRECTORY: Final = Path(__file__).parents[1] / "data" / "timeline"
WIDTHS: Final = (80, 120)
_CHILD: Final = ChildView(
    status="running",
    steps=(ChildStep(text="Read callers.py"), ChildStep(text="Execute rg", is_going=True)),
)


def drawn(chat: ShownChat, width: int, *, is_open: bool | None = None) -> str:
    """All rows as plain text, with the cards as they open by themselves, or all the same."""
    canvas = Canvas(
        width=width, palette=DARK_PALETTE, now=START.timestamp() + 4, children={CHILD: _CHILD}
    )
    texts: list[str] = []
    for row in RowModel().rows(chat):
        texts += [] if row.is_tight or not texts else [""]
        texts.append(plain_text(draw_row(row, canvas, is_open=is_open).lines))
    return "\n".join(texts) + "\n"


class Golden(Struct, frozen=True, kw_only=True):
    """One golden text. `unfolds`: every card is open."""

    scene: str
    width: int
    unfolds: bool = False

    @property
    def name(self) -> str:
        return f"{self.scene}-{self.width}{'-open' if self.unfolds else ''}"

    @property
    def path(self) -> Path:
        return DIRECTORY / f"{self.name}.txt"

    def draw(self) -> str:
        return drawn(SCENES[self.scene], self.width, is_open=True if self.unfolds else None)


GOLDEN: Final = (
    *(Golden(scene=scene, width=width) for scene in SCENES for width in WIDTHS),
    *(
        Golden(scene=scene, width=80, unfolds=True)
        for scene in ("work", "tools", "agents", "markdown", "retry", "failed")
    ),
)

if __name__ == "__main__":
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for golden in GOLDEN:
        golden.path.write_text(golden.draw())
