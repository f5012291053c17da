"""Which files each chat has touched, and who wants to know.

In memory only and bounded: it says where to look for changes, never what they are.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager

MAX_TOUCHING_CHATS = 500
MAX_PATHS_PER_CHAT = 1000


class TouchedPaths:
    """Lives in the loop's thread. The chats and paths longest untouched are forgotten first."""

    def __init__(self) -> None:
        self._paths: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._watchers: dict[str, set[asyncio.Event]] = {}

    def add(self, chats: Sequence[str], paths: Sequence[str]) -> None:
        """For a chat and those above it. A path that is not absolute names nothing."""
        named = [os.path.normpath(path) for path in paths if path.startswith("/")]
        for chat in dict.fromkeys(chats):
            if named:
                self._remember(chat, named)
            self.notify([chat])

    def notify(self, chats: Sequence[str]) -> None:
        """Something may have changed, nobody knows where."""
        for chat in chats:
            for watcher in self._watchers.get(chat, ()):
                watcher.set()

    def paths(self, chat: str) -> tuple[str, ...]:
        return tuple(self._paths.get(chat, ()))

    @contextmanager
    def subscribe(self, chat: str) -> Generator[asyncio.Event]:
        """An event that is set at each touch. Subscribe first, then read `paths`."""
        event = asyncio.Event()
        self._watchers.setdefault(chat, set()).add(event)
        try:
            yield event
        finally:
            watchers = self._watchers[chat]
            watchers.discard(event)
            if not watchers:
                del self._watchers[chat]

    def _remember(self, chat: str, named: Sequence[str]) -> None:
        paths = self._paths.setdefault(chat, OrderedDict())
        self._paths.move_to_end(chat)
        for path in named:
            paths[path] = None
            paths.move_to_end(path)
        while len(paths) > MAX_PATHS_PER_CHAT:
            paths.popitem(last=False)
        while len(self._paths) > MAX_TOUCHING_CHATS:
            self._paths.popitem(last=False)
