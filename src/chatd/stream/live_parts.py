"""Live parts of a chat, wherever it runs: from memory if here, else from the journal.

Both number an episode's parts alike, so a viewer only keeps a number and does not notice when
the source changes.
"""

from collections.abc import Callable, Sequence
from typing import Final

from chatd.domain.chat.row import Chat, Episode
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId, WorkerId
from chatd.parts.episodes import EpisodeRegistry
from chatd.parts.journal_tail import JournalTail

LIVE_STATUSES: Final[frozenset[PublicStatus]] = frozenset({"pending", "running", "interrupting"})


def is_live(chat: Chat) -> bool:
    """Whether its episode may still be shown: at rest nothing is under way, even if the last
    attempt has left nothing in history."""
    return chat.public_status in LIVE_STATUSES


class LivePartSource:
    """`me` is the worker of this replica, if it has one."""

    def __init__(self, episodes: EpisodeRegistry, tail: JournalTail, me: WorkerId | None) -> None:
        self._episodes = episodes
        self._tail = tail
        self._me = me

    def watch(self, chat_id: ChatId, wake: Callable[[], None]) -> None:
        self._episodes.watch(chat_id, wake)

    def unwatch(self, chat_id: ChatId) -> None:
        self._episodes.unwatch(chat_id)
        self._tail.drop(chat_id)

    def on_row(self, chat: Chat, wake: Callable[[], None]) -> None:
        """The row has changed: what is shown of it, and where does that come from?"""
        if not is_live(chat) or self._is_here(chat):
            self._tail.drop(chat.id)
        else:
            self._tail.follow(chat, wake)

    def hurry(self, chat_id: ChatId) -> None:
        self._tail.hurry(chat_id)

    def parts_after(self, episode: Episode, seq: int, most: int) -> Sequence[bytes]:
        """Parts that follow on number `seq`."""
        events = self._events(episode)
        return events[seq : seq + most] if len(events) > seq else ()

    def has_after(self, episode: Episode, seq: int) -> bool:
        return len(self._events(episode)) > seq

    def _events(self, episode: Episode) -> Sequence[bytes]:
        tape = self._episodes.find(episode.chat_id)
        if tape is not None and tape.episode == episode:
            return tape.events
        followed = self._tail.find(episode.chat_id)
        if followed is not None and followed.episode == episode:
            return followed.events
        return ()

    def _is_here(self, chat: Chat) -> bool:
        if self._me is not None and chat.worker_id == self._me:
            return True
        tape = self._episodes.find(chat.id)
        return tape is not None and tape.episode == Episode.of(chat)
