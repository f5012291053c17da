"""The colours of the terminal: those of the page (`ui/src/styles/tokens.css`), light and dark."""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from rich.style import Style
from textual.theme import Theme

ThemeChoice = Literal["dark", "light"]

DARK: Final = Theme(
    name="chatd-dark",
    dark=True,
    primary="#a7b0ff",
    secondary="#7cc4f2",
    accent="#a7b0ff",
    foreground="#ecedef",
    background="#0f1113",
    surface="#17191d",
    panel="#1c1f24",
    boost="#23272d",
    success="#6fd694",
    warning="#f2b45c",
    error="#ff8f86",
    variables={
        "text": "#ecedef",
        "text-muted": "#a2a8b2",
        "text-disabled": "#6d747f",
        "text-primary": "#a7b0ff",
        "text-accent": "#a7b0ff",
        "text-success": "#6fd694",
        "text-warning": "#f2b45c",
        "text-error": "#ff8f86",
        "primary-muted": "#1f2240",
        "accent-muted": "#1f2240",
        "success-muted": "#12291c",
        "warning-muted": "#2c2213",
        "error-muted": "#311a19",
        "border": "#6d747f",
        "border-blurred": "#2b2f36",
        "scrollbar": "#2b2f36",
        "scrollbar-hover": "#6d747f",
        "scrollbar-active": "#a7b0ff",
        "scrollbar-background": "#0f1113",
        "scrollbar-background-hover": "#0f1113",
        "scrollbar-background-active": "#0f1113",
        "footer-background": "#131518",
        "footer-key-foreground": "#a7b0ff",
        "footer-description-foreground": "#a2a8b2",
        "input-cursor-background": "#a7b0ff",
        "input-selection-background": "#3b4077",
        "block-cursor-background": "#a7b0ff",
        "block-cursor-foreground": "#12132b",
        "block-cursor-blurred-background": "#2a2f37",
        "block-cursor-blurred-foreground": "#ecedef",
        "sidebar": "#131518",
        "selected": "#2a2f37",
    },
)
LIGHT: Final = Theme(
    name="chatd-light",
    dark=False,
    primary="#3f3cbb",
    secondary="#0b5c8f",
    accent="#3f3cbb",
    foreground="#1b1c1e",
    background="#fbfbf9",
    surface="#f2f2ee",
    panel="#ecece6",
    boost="#ecece6",
    success="#17683a",
    warning="#8a4b00",
    error="#b3261e",
    variables={
        "text": "#1b1c1e",
        "text-muted": "#55585f",
        "text-disabled": "#85857b",
        "text-primary": "#3f3cbb",
        "text-accent": "#3f3cbb",
        "text-success": "#17683a",
        "text-warning": "#8a4b00",
        "text-error": "#b3261e",
        "primary-muted": "#e0dff6",
        "accent-muted": "#e0dff6",
        "success-muted": "#e4f3e8",
        "warning-muted": "#fbf0de",
        "error-muted": "#fbeae8",
        "border": "#85857b",
        "border-blurred": "#dadad3",
        "scrollbar": "#dadad3",
        "scrollbar-hover": "#85857b",
        "scrollbar-active": "#3f3cbb",
        "scrollbar-background": "#fbfbf9",
        "scrollbar-background-hover": "#fbfbf9",
        "scrollbar-background-active": "#fbfbf9",
        "footer-background": "#f5f5f1",
        "footer-key-foreground": "#3f3cbb",
        "footer-description-foreground": "#55585f",
        "input-cursor-background": "#3f3cbb",
        "input-selection-background": "#c9c7ee",
        "block-cursor-background": "#3f3cbb",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-blurred-background": "#e5e5de",
        "block-cursor-blurred-foreground": "#1b1c1e",
        "sidebar": "#f5f5f1",
        "selected": "#e5e5de",
    },
)


def choose_theme(asked: str, colorfgbg: str) -> ThemeChoice:
    """What was asked for, else what the terminal says about its background: `COLORFGBG` is
    «15;0» for white on black, and most terminals that set none are dark."""
    if asked in ("dark", "light"):
        return "light" if asked == "light" else "dark"
    background = colorfgbg.rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"


# Colours of the timeline, by what they mean. Words and glyphs say the same without colours.


class Palette(Struct, frozen=True, kw_only=True):
    is_dark: bool
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
    keyword: Style
    string: Style
    comment: Style
    number: Style
    name: Style

    def hue(self, name: str) -> Style:
        """A colour by the name that command output gives it."""
        return {
            "danger": self.danger,
            "ok": self.ok,
            "warn": self.warn,
            "info": self.info,
            "accent": self.accent,
        }.get(name, self.plain)


def _palette(colours: Mapping[str, str], *, is_dark: bool) -> Palette:
    def fore(name: str, *, bold: bool = False, italic: bool = False) -> Style:
        return Style(color=colours[name], bold=bold or None, italic=italic or None)

    return Palette(
        is_dark=is_dark,
        plain=Style(),
        strong=fore("text", bold=True),
        muted=fore("muted"),
        faint=fore("faint"),
        accent=fore("accent"),
        ok=fore("ok"),
        warn=fore("warn"),
        danger=fore("danger"),
        info=fore("info"),
        link=fore("info") + Style(underline=True),
        code=fore("code"),
        code_block=Style(bgcolor=colours["raised"]),
        user=Style(color=colours["text"], bgcolor=colours["raised"]),
        user_bar=Style(color=colours["accent"], bgcolor=colours["raised"]),
        added=Style(bgcolor=colours["added"]),
        added_words=Style(bgcolor=colours["added_words"]),
        removed=Style(bgcolor=colours["removed"]),
        removed_words=Style(bgcolor=colours["removed_words"]),
        keyword=fore("accent"),
        string=fore("ok"),
        comment=fore("muted", italic=True),
        number=fore("warn"),
        name=fore("info"),
    )


DARK_PALETTE: Final = _palette(
    {
        "text": "#ecedef",
        "muted": "#a2a8b2",
        "faint": "#6d747f",
        "accent": "#a7b0ff",
        "ok": "#6fd694",
        "warn": "#f2b45c",
        "danger": "#ff8f86",
        "info": "#7cc4f2",
        "code": "#c9cffc",
        "raised": "#1e2126",
        "added": "#12301d",
        "added_words": "#1f5a35",
        "removed": "#3a1817",
        "removed_words": "#6e2a28",
    },
    is_dark=True,
)
LIGHT_PALETTE: Final = _palette(
    {
        "text": "#1b1c1e",
        "muted": "#55585f",
        "faint": "#85857b",
        "accent": "#3f3cbb",
        "ok": "#17683a",
        "warn": "#8a4b00",
        "danger": "#b3261e",
        "info": "#0b5c8f",
        "code": "#37349c",
        "raised": "#f0f0ea",
        "added": "#e0f3e5",
        "added_words": "#b5e3c2",
        "removed": "#fbe4e2",
        "removed_words": "#f3bdb9",
    },
    is_dark=False,
)


def palette_of(*, is_dark: bool) -> Palette:
    return DARK_PALETTE if is_dark else LIGHT_PALETTE
