"""What stands in one paragraph, heading or cell: emphasis, code, links, images."""

from collections.abc import Iterator
from typing import Final

from markdown_it.token import Token
from rich.style import Style
from rich.text import Text

from chatd.terminal.timeline.lines import one_line
from chatd.terminal.timeline.palette import Palette

_MAX_URL: Final = 200

_EMPHASES: Final = {
    "strong_open": Style(bold=True),
    "em_open": Style(italic=True),
    "s_open": Style(strike=True),
}
_BREAKS: Final = {"softbreak": " ", "hardbreak": "\n"}


def inline_text(token: Token, palette: Palette, style: Style | None = None) -> Text:
    """The content of an `inline` token. Its text has passed `safe_text` with the whole."""
    text = Text(style=style or palette.plain)
    writer = _Writer(palette)
    for child in token.children or ():
        for piece, own in writer.pieces(child):
            text.append(piece, own)
    return text


class _Writer:
    """Walks over the children of an inline token, and keeps what is open."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._styles: list[Style] = [Style()]
        self._links: list[tuple[str, int]] = []
        self._said = ""

    def pieces(self, child: Token) -> Iterator[tuple[str, Style]]:
        kind, style = child.type, self._styles[-1]
        if kind in _BREAKS:
            yield _BREAKS[kind], style
        elif kind == "link_close":
            self._styles.pop()
            yield from self._target()
        elif kind == "image":
            url = one_line(str(child.attrGet("src") or ""), _MAX_URL)
            yield f"[image: {one_line(child.content)}] ({url})", self._palette.muted
        elif child.nesting == 1:
            self._open(child)
        elif child.nesting == -1:
            self._styles.pop()
        else:
            self._said += child.content
            yield child.content, style + self._palette.code if kind == "code_inline" else style

    def _open(self, child: Token) -> None:
        own = _EMPHASES.get(child.type, Style())
        if child.type == "link_open":
            own = self._palette.link
            self._links.append((str(child.attrGet("href") or ""), len(self._said)))
        self._styles.append(self._styles[-1] + own)

    def _target(self) -> Iterator[tuple[str, Style]]:
        """Where a link leads, unless its text says it."""
        url, start = self._links.pop()
        said = self._said[start:]
        if url and url not in (said, f"mailto:{said}"):
            yield f" ({one_line(url, _MAX_URL)})", self._palette.muted
