"""The colours of the terminal: those of the page (`ui/src/styles/tokens.css`), light and dark, and
some others. What was chosen in the terminal is kept in a file of the user's state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from rich.style import Style
from textual.theme import Theme

from chatd.terminal.session import keep_choice, read_kept_choice

_COLOURS: Final[Mapping[str, tuple[str, str]]] = {
    "text": ("#ecedef", "#1b1c1e"),
    "muted": ("#a2a8b2", "#55585f"),
    "faint": ("#6d747f", "#85857b"),
    "accent": ("#a7b0ff", "#3f3cbb"),
    "info": ("#7cc4f2", "#0b5c8f"),
    "ok": ("#6fd694", "#17683a"),
    "warn": ("#f2b45c", "#8a4b00"),
    "danger": ("#ff8f86", "#b3261e"),
    "code": ("#c9cffc", "#37349c"),
    "background": ("#0f1113", "#fbfbf9"),
    "surface": ("#17191d", "#f2f2ee"),
    "panel": ("#1c1f24", "#ecece6"),
    "boost": ("#23272d", "#ecece6"),
    "raised": ("#1e2126", "#f0f0ea"),
    "bar": ("#131518", "#f5f5f1"),
    "line": ("#2b2f36", "#dadad3"),
    "selected": ("#2a2f37", "#e5e5de"),
    "selection": ("#3b4077", "#c9c7ee"),
    "on_accent": ("#12132b", "#ffffff"),
    "accent_ground": ("#1f2240", "#e0dff6"),
    "ok_ground": ("#12291c", "#e4f3e8"),
    "warn_ground": ("#2c2213", "#fbf0de"),
    "danger_ground": ("#311a19", "#fbeae8"),
    "added": ("#12301d", "#e0f3e5"),
    "added_words": ("#1f5a35", "#b5e3c2"),
    "removed": ("#3a1817", "#fbe4e2"),
    "removed_words": ("#6e2a28", "#f3bdb9"),
}
"""By meaning: dark, light."""
_DARK_COLOURS: Final = {name: dark for name, (dark, _) in _COLOURS.items()}
_LIGHT_COLOURS: Final = {name: light for name, (_, light) in _COLOURS.items()}
_CONTRAST: Final = {
    "text": "#ffffff", "muted": "#d6d6d6", "faint": "#b4b4b4", "accent": "#ffe066",
    "info": "#8fd3ff", "ok": "#7dff9b", "warn": "#ffc04d", "danger": "#ff9d94", "code": "#ffe9a8",
    "background": "#000000", "surface": "#000000", "panel": "#101010", "boost": "#1c1c1c",
    "raised": "#141414", "bar": "#000000", "line": "#8a8a8a", "selected": "#3a3a3a",
    "selection": "#5a5200", "on_accent": "#000000", "accent_ground": "#2b2700",
}  # fmt: skip
_CONTRAST_LIGHT: Final = {
    "text": "#000000", "muted": "#2b2b2b", "faint": "#4a4a4a", "accent": "#1a1a8c",
    "info": "#00406b", "ok": "#00471f", "warn": "#5e3000", "danger": "#8a0f08", "code": "#1a1a8c",
    "background": "#ffffff", "surface": "#ffffff", "panel": "#f2f2f2", "boost": "#e6e6e6",
    "raised": "#f2f2f2", "bar": "#ffffff", "line": "#5a5a5a", "selected": "#d0d0d0",
}  # fmt: skip
_WARM: Final = {
    "text": "#ece3d4", "muted": "#b9ab95", "faint": "#84786a", "accent": "#e8b06a",
    "info": "#9fc1b5", "ok": "#b4c77a", "warn": "#eac06a", "danger": "#f08f77", "code": "#e6cfa6",
    "background": "#1d1916", "surface": "#241f1b", "panel": "#2a2520", "boost": "#332c26",
    "raised": "#2b2621", "bar": "#191512", "line": "#40372f", "selected": "#3b332b",
    "selection": "#5f4826", "on_accent": "#1d1916", "accent_ground": "#3a2c19",
}  # fmt: skip
_PAPER: Final = {
    "text": "#3b3226", "muted": "#6b5f4e", "faint": "#8f8371", "accent": "#8a4b1f",
    "background": "#f6efe0", "surface": "#efe6d3", "panel": "#e9dfc9", "boost": "#e4d8bf",
    "raised": "#efe6d3", "bar": "#f0e7d5", "line": "#d3c5a8", "selected": "#e0d3b6",
    "accent_ground": "#eeddc0",
}  # fmt: skip


def _theme(name: str, of: Mapping[str, str], *, is_dark: bool) -> Theme:
    return Theme(
        name=name,
        dark=is_dark,
        primary=of["accent"],
        secondary=of["info"],
        accent=of["accent"],
        foreground=of["text"],
        background=of["background"],
        surface=of["surface"],
        panel=of["panel"],
        boost=of["boost"],
        success=of["ok"],
        warning=of["warn"],
        error=of["danger"],
        variables={
            "text": of["text"],
            "text-muted": of["muted"],
            "text-disabled": of["faint"],
            "text-primary": of["accent"],
            "text-accent": of["accent"],
            "text-success": of["ok"],
            "text-warning": of["warn"],
            "text-error": of["danger"],
            "primary-muted": of["accent_ground"],
            "accent-muted": of["accent_ground"],
            "success-muted": of["ok_ground"],
            "warning-muted": of["warn_ground"],
            "error-muted": of["danger_ground"],
            "border": of["faint"],
            "border-blurred": of["line"],
            "scrollbar": of["line"],
            "scrollbar-hover": of["faint"],
            "scrollbar-active": of["accent"],
            "scrollbar-background": of["background"],
            "scrollbar-background-hover": of["background"],
            "scrollbar-background-active": of["background"],
            "footer-background": of["bar"],
            "footer-key-foreground": of["accent"],
            "footer-description-foreground": of["muted"],
            "input-cursor-background": of["accent"],
            "input-selection-background": of["selection"],
            "block-cursor-background": of["accent"],
            "block-cursor-foreground": of["on_accent"],
            "block-cursor-blurred-background": of["selected"],
            "block-cursor-blurred-foreground": of["text"],
            "sidebar": of["bar"],
            "selected": of["selected"],
        },
    )


_NAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "dark": _DARK_COLOURS,
    "light": _LIGHT_COLOURS,
    "contrast": {**_DARK_COLOURS, **_CONTRAST},
    "contrast-light": {**_LIGHT_COLOURS, **_CONTRAST_LIGHT},
    "warm": {**_DARK_COLOURS, **_WARM},
    "paper": {**_LIGHT_COLOURS, **_PAPER},
}
_LIGHT_NAMES: Final = frozenset({"light", "contrast-light", "paper"})
THEMES: Final[Mapping[str, Theme]] = {
    name: _theme(f"chatd-{name}", of, is_dark=name not in _LIGHT_NAMES)
    for name, of in _NAMED.items()
}
_KEPT_FILE: Final = "theme"


def choose_theme(asked: str, kept: str, colorfgbg: str) -> str:
    """What was asked for, else what was chosen before, else what the terminal says about its
    background: `COLORFGBG` is «15;0» for white on black, and most terminals that set none are
    dark."""
    for name in (asked, kept):
        if name in THEMES:
            return name
    background = colorfgbg.rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"


def read_kept_theme(directory: Path | None) -> str:
    """The stored choice; empty if there is none."""
    return read_kept_choice(directory, _KEPT_FILE)


def keep_theme(directory: Path | None, name: str) -> None:
    keep_choice(directory, _KEPT_FILE, name)


class Palette(Struct, frozen=True, kw_only=True):
    """Styles of the timeline by what they mean. Words and glyphs say the same without colours."""

    plain: Style
    strong: Style
    muted: Style
    faint: Style
    accent: Style
    ok: Style
    warn: Style
    danger: Style
    info: Style
    link: Style
    code: Style
    code_block: Style
    user: Style
    user_bar: Style
    added: Style
    added_words: Style
    removed: Style
    removed_words: Style
    comment: Style


def _palette(of: Mapping[str, str]) -> Palette:
    return Palette(
        plain=Style(),
        strong=Style(color=of["text"], bold=True),
        muted=Style(color=of["muted"]),
        faint=Style(color=of["faint"]),
        accent=Style(color=of["accent"]),
        ok=Style(color=of["ok"]),
        warn=Style(color=of["warn"]),
        danger=Style(color=of["danger"]),
        info=Style(color=of["info"]),
        link=Style(color=of["info"], underline=True),
        code=Style(color=of["code"]),
        code_block=Style(bgcolor=of["raised"]),
        user=Style(color=of["text"], bgcolor=of["raised"]),
        user_bar=Style(color=of["accent"], bgcolor=of["raised"]),
        added=Style(bgcolor=of["added"]),
        added_words=Style(bgcolor=of["added_words"]),
        removed=Style(bgcolor=of["removed"]),
        removed_words=Style(bgcolor=of["removed_words"]),
        comment=Style(color=of["muted"], italic=True),
    )


DARK_PALETTE: Final = _palette(_DARK_COLOURS)
LIGHT_PALETTE: Final = _palette(_LIGHT_COLOURS)
_PALETTES: Final = {f"chatd-{name}": _palette(of) for name, of in _NAMED.items()}


def palette_of(theme: Theme) -> Palette:
    return _PALETTES.get(theme.name, DARK_PALETTE if theme.dark else LIGHT_PALETTE)
