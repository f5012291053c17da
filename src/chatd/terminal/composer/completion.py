"""Completions of a /command or an @path: what is offered, the menu, and taking one."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final, Literal

from msgspec import Struct
from rich.text import Text
from textual.app import RenderResult
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from chatd.domain.chat.states import PublicStatus
from chatd.terminal.composer.commands import ALIASES, BY_NAME, COMMANDS, refusal_of
from chatd.terminal.composer.custom_commands import CustomCommand
from chatd.terminal.composer.local_files import (
    FileName,
    PathWord,
    complete_path,
    path_word,
    write_mention,
)
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import Machine

# What the menu above the text box offers: commands, their arguments, or files. Pure but for the
# disk, which `offer_files` is given the result of.


class Offer(Struct, frozen=True, kw_only=True):
    """One line of the menu. `insert` takes the place of the text from `start` to the cursor.
    `refusal` says why it cannot be used now. `is_whole`: with it the command is complete, and
    Enter runs it."""

    label: str
    note: str = ""
    insert: str
    start: int = 0
    refusal: str = ""
    is_whole: bool = False
    kind: Literal["command", "argument", "file", "directory"] = "command"


def offer_commands(
    text: str, status: PublicStatus | None, customs: Sequence[CustomCommand] = ()
) -> tuple[Offer, ...]:
    """The offers for a one-line draft that begins with a slash; empty if it is not a command. The
    person's own commands come after those of the terminal."""
    if not text.startswith("/") or text.startswith("//") or "\n" in text:
        return ()
    word, space, argument = text[1:].partition(" ")
    if space:
        return _offer_arguments(word.lower(), argument, start=len(word) + 2)
    typed = word.lower()
    own = tuple(
        Offer(
            label=f"/{one.name} {one.argument}".rstrip(),
            note=one.effect,
            insert=f"/{one.name} " if one.argument else f"/{one.name}",
            is_whole=not one.argument or one.argument.startswith("["),
        )
        for one in customs
        if one.name.startswith(typed)
    )
    offers = tuple(
        Offer(
            label=one.usage,
            note=one.effect,
            insert=f"/{one.name} " if one.argument else f"/{one.name}",
            refusal=refusal_of(one, status),
            is_whole=not one.argument or one.argument.startswith("["),
        )
        for one in COMMANDS
        if one.name.startswith(typed)
    )
    return offers + own


def _offer_arguments(word: str, argument: str, *, start: int) -> tuple[Offer, ...]:
    command = BY_NAME.get(ALIASES.get(word, word))
    if command is None:
        return ()
    typed = argument.strip().lower()
    if typed in command.choices:
        return ()
    return tuple(
        Offer(label=choice, insert=choice, start=start, is_whole=True, kind="argument")
        for choice in command.choices
        if choice.startswith(typed)
    )


def wanted_path(line: str, column: int) -> PathWord | None:
    """The path that is being typed: after an at sign, or as the argument of /attach."""
    before = line[:column]
    if before.startswith("/attach "):
        return PathWord(len("/attach "), before[len("/attach ") :])
    return None if before.startswith("/") else path_word(line, column)


def offer_files(
    word: PathWord, names: Sequence[FileName], *, is_mention: bool
) -> tuple[Offer, ...]:
    """Complete a directory and keep the menu open, so that its files are offered next."""
    offers: list[Offer] = []
    for one in names:
        if one.is_directory:
            path = f"{one.path}/"
            opened = f'@"{path}' if " " in path else f"@{path}"
            insert = opened if is_mention else path
            offers.append(Offer(label=path, insert=insert, start=word.start, kind="directory"))
        else:
            insert = f"{write_mention(one.path)} " if is_mention else one.path
            offers.append(Offer(label=one.path, insert=insert, start=word.start, kind="file"))
    return tuple(offers)


# The menu of completions above the text box. It has no focus: the text box keeps it.

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


# Keeps the menu of completions current, and puts the chosen one into the text.


class Completion:
    """`status` is that of the open chat, None in a new one."""

    def __init__(
        self,
        host: Widget,
        machine: Machine,
        status: Callable[[], PublicStatus | None],
        customs: Callable[[], Sequence[CustomCommand]],
        on_change: Callable[[], None],
    ) -> None:
        self._host = host
        self._machine = machine
        self._customs = customs
        self._status = status
        self._on_change = on_change
        self._closed_for: str | None = None
        self._shown_for: str | None = None

    @property
    def _box(self) -> TextBox:
        return self._host.query_one(TextBox)

    @property
    def _menu(self) -> OfferMenu:
        return self._host.query_one(OfferMenu)

    @property
    def is_open(self) -> bool:
        return bool(self._menu.offers)

    def update(self) -> None:
        """Call it after each change of the text or the cursor."""
        text = self._box.text
        if text == self._closed_for:
            self._show(())
            return
        self._closed_for = None
        line = self._box.line_before_cursor
        word = wanted_path(line, len(line))
        if word is None:
            self._shown_for = None
            self._show(offer_commands(text, self._status(), self._customs()))
            return
        if self._shown_for != line:
            self._shown_for = line
            list_files = partial(self._list_files, line, word)
            self._host.run_worker(list_files, group="files", exclusive=True)

    async def _list_files(self, line: str, word: PathWord) -> None:
        base, home = self._machine.working_directory, self._machine.home
        names = await asyncio.to_thread(complete_path, word.typed, base, home)
        if self._box.line_before_cursor != line:
            return
        is_mention = not line.startswith("/")
        offers = offer_files(word, names, is_mention=is_mention)
        done = len(offers) == 1 and offers[0].kind == "file" and names[0].path == word.typed
        self._show(() if done else offers)

    def step(self, by: int) -> bool:
        if self.is_open:
            self._menu.step(by)
        return self.is_open

    def close(self) -> bool:
        """Close the menu; false if it was closed already."""
        was_open = self.is_open
        self._closed_for = self._box.text if was_open else None
        self._show(())
        return was_open

    def take(self) -> Offer | None:
        """Put the chosen one into the text; None if there is none."""
        offer = self._menu.offer
        if offer is None or offer.refusal:
            return None
        self._show(())
        self._shown_for = None
        self._box.put(offer.insert, offer.start)
        return offer

    def _show(self, offers: tuple[Offer, ...]) -> None:
        if offers or self._menu.offers:
            self._menu.show_offers(offers, self._box.text.strip())
            self._on_change()
