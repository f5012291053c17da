"""Colours of the timeline, by what they mean. Words and glyphs say the same without colours."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from rich.style import Style


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


DARK: Final = _palette(
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
LIGHT: Final = _palette(
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
    return DARK if is_dark else LIGHT
