"""Keeps the menu of completions current, and puts the chosen one into the text."""

import asyncio
from collections.abc import Callable
from functools import partial

from textual.widget import Widget

from chatd.domain.chat.states import PublicStatus
from chatd.terminal.attachments.local_files import PathWord, complete_path
from chatd.terminal.composer.completions import Offer, offer_commands, offer_files, wanted_path
from chatd.terminal.composer.offer_menu import OfferMenu
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.machine import Machine


class Completion:
    """`status` is that of the open chat, None in a new one."""

    def __init__(
        self,
        host: Widget,
        machine: Machine,
        status: Callable[[], PublicStatus | None],
        on_change: Callable[[], None],
    ) -> None:
        self._host = host
        self._machine = machine
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
        """After each change of the text or the cursor."""
        text = self._box.text
        if text == self._closed_for:
            self._show(())
            return
        self._closed_for = None
        line = self._box.line_before_cursor
        word = wanted_path(line, len(line))
        if word is None:
            self._shown_for = None
            self._show(offer_commands(text, self._status()))
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
        """False if it was closed."""
        was_open = self.is_open
        self._closed_for = self._box.text if was_open else None
        self._show(())
        return was_open

    def take(self) -> Offer | None:
        """Puts the chosen one into the text; None if there is none."""
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
