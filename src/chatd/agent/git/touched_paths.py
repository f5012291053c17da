"""The files that each chat has touched: where to look for changes. In memory and bounded."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager

MAX_TOUCHING_CHATS = 500
MAX_PATHS_PER_CHAT = 1000


class TouchedPaths:
    """Used in the event loop's thread only. The chats and paths touched longest ago are dropped
    first."""

    def __init__(self) -> None:
        self._paths: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._watchers: dict[str, set[asyncio.Event]] = {}

    def add(self, chats: Sequence[str], paths: Sequence[str]) -> None:
        """Add the absolute ones of the paths to each of the chats and notify their watchers."""
        normal = [os.path.normpath(path) for path in paths if path.startswith("/")]
        for chat in dict.fromkeys(chats):
            if normal:
                self._add(chat, normal)
            self.notify([chat])

    def notify(self, chats: Sequence[str]) -> None:
        """Make the watchers of these chats scan again."""
        for chat in chats:
            for watcher in self._watchers.get(chat, ()):
                watcher.set()

    def paths(self, chat: str) -> tuple[str, ...]:
        return tuple(self._paths.get(chat, ()))

    @contextmanager
    def subscribe(self, chat: str) -> Generator[asyncio.Event]:
        """An event that is set at each touch. Subscribe before reading `paths`."""
        event = asyncio.Event()
        self._watchers.setdefault(chat, set()).add(event)
        try:
            yield event
        finally:
            watchers = self._watchers[chat]
            watchers.discard(event)
            if not watchers:
                del self._watchers[chat]

    def _add(self, chat: str, normal: Sequence[str]) -> None:
        paths = self._paths.setdefault(chat, OrderedDict())
        self._paths.move_to_end(chat)
        for path in normal:
            paths[path] = None
            paths.move_to_end(path)
        while len(paths) > MAX_PATHS_PER_CHAT:
            paths.popitem(last=False)
        while len(self._paths) > MAX_TOUCHING_CHATS:
            self._paths.popitem(last=False)
