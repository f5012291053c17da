"""The live parts of a chat: from memory if it runs on this replica, else from the journal.

Both sources number an episode's parts alike, so a viewer keeps one number and the source may
change.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from chatd.domain.answer.partial import missing_parts
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat, Episode
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId, WorkerId
from chatd.stream.episode_buffer import PREVIEW_TRUNCATED_PART, encode_live_part
from chatd.stream.episodes import EpisodeRegistry
from chatd.stream.journal_tail import JournalTail, decode_live_parts

LIVE_STATUSES: Final[frozenset[PublicStatus]] = frozenset({"pending", "running", "interrupting"})


def is_live(chat: Chat) -> bool:
    """Whether the chat's episode may be shown. A chat at rest has no step in progress, even if its
    last attempt left nothing in history."""
    return chat.public_status in LIVE_STATUSES


class LivePartSource:
    """`worker_id` names this replica's worker, if it has one."""

    def __init__(
        self, episodes: EpisodeRegistry, tail: JournalTail, worker_id: WorkerId | None
    ) -> None:
        self._episodes = episodes
        self._tail = tail
        self._worker_id = worker_id

    def watch(self, chat_id: ChatId, wake: Callable[[], None]) -> None:
        self._episodes.watch(chat_id, wake)

    def unwatch(self, chat_id: ChatId) -> None:
        self._episodes.unwatch(chat_id)
        self._tail.drop(chat_id)

    def on_row(self, chat: Chat, wake: Callable[[], None]) -> None:
        """Choose the source for the new row: memory, or the journal."""
        if not is_live(chat) or self._runs_here(chat):
            self._tail.drop(chat.id)
        else:
            self._tail.follow(chat, wake)

    def hurry(self, chat_id: ChatId) -> None:
        self._tail.hurry(chat_id)

    def parts_after(self, episode: Episode, seq: int, limit: int) -> Sequence[bytes]:
        """At limit `limit` parts after number `seq`."""
        events, shown = self._events(episode)
        return events[seq : min(seq + limit, shown)] if shown > seq else ()

    def has_after(self, episode: Episode, seq: int) -> bool:
        return self._events(episode)[1] > seq

    def _events(self, episode: Episode) -> tuple[Sequence[bytes], int]:
        """The parts, and how many of them are for viewers."""
        buffer = self._episodes.find(episode.chat_id)
        if buffer is not None and buffer.episode == episode:
            return buffer.events, buffer.shown
        tailed = self._tail.find(episode.chat_id)
        if tailed is not None and tailed.episode == episode:
            return tailed.events, len(tailed.events)
        return (), 0

    def ended_parts(self, chat: Chat, messages: Iterable[Message]) -> Sequence[bytes]:
        """All parts of the chat's episode, which a step has ended with these messages. A tail is
        often behind the commit: what it lacks of the answer is taken from the message."""
        episode = Episode.of(chat)
        events, _ = self._events(episode)
        tailed = self._tail.find(episode.chat_id)
        if chat.pending_calls or tailed is None or events is not tailed.events or tailed.closed:
            return events
        answer = next((each for each in messages if each.role == "assistant"), None)
        if answer is None:
            return events
        live_parts = decode_live_parts(events, with_mark=True)
        if any(live.part == PREVIEW_TRUNCATED_PART for live in live_parts):
            return events
        whole = list(events)
        for part in missing_parts(live_parts, answer.content):
            encoded = encode_live_part(episode, len(whole) + 1, "assistant", part)
            if encoded is not None:
                whole.append(encoded)
        return whole

    def _runs_here(self, chat: Chat) -> bool:
        """A worker that takes over an interrupt publishes nothing: the live parts stay those of
        the worker before it."""
        is_owned_here = self._worker_id is not None and chat.worker_id == self._worker_id
        if is_owned_here and chat.status == "running":
            return True
        buffer = self._episodes.find(chat.id)
        return buffer is not None and buffer.episode == Episode.of(chat)
