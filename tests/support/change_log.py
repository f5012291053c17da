"""Every acknowledged write, by chat and version, to compare with the database.

If each version has one writer, and the changes applied in the order of their versions give the
stored rows, then no concurrent write was lost, doubled or torn.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import ReleaseChat
from chatd.domain.chat.messages import Draft, UserInput
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat
from chatd.domain.chat.worker_transitions import acquire, release
from chatd.domain.ids import ChangeId, ChatId, WorkerId
from chatd.store.database.conn import Conn
from tests.model.reference_store import ChatRows, ReferenceStore, apply_change
from tests.support.factories import CHAT
from tests.support.stored import Stored, stored, timeless


class OwnerChange(Struct, frozen=True, kw_only=True):
    """An acquire or release by the store's own statement, which makes no `Change` value."""

    kind: Literal["acquire", "release"]
    worker_id: WorkerId

    def change(self, chat: Chat) -> Change:
        if self.kind == "acquire":
            return acquire(chat, self.worker_id)
        assert chat.worker_id == self.worker_id, "released by another worker"
        return release(chat, ReleaseChat(worker_id=self.worker_id, epoch=chat.epoch))


class ChangeLog:
    def __init__(self) -> None:
        self.marked: dict[ChatId, int] = {}
        self._entries: dict[ChatId, dict[int, Change | OwnerChange]] = {}
        self._authors: dict[tuple[ChatId, int], ChangeId | None] = {}

    def add(self, change: Change, change_id: ChangeId) -> None:
        """Record an acknowledged change. Retries of one operation may record it more than once."""
        chat = change.after
        self._enter(chat, change, change_id)
        asked_before = change.before is not None and change.before.compaction_requested
        if chat.compaction_requested and not asked_before:
            self.marked[chat.id] = max(chat.snapshot_version, self.marked.get(chat.id, 0))

    def add_acquired(self, rows: Iterable[Chat]) -> None:
        for row in rows:
            assert row.worker_id is not None
            self._enter(row, OwnerChange(kind="acquire", worker_id=row.worker_id), None)

    def add_released(self, rows: Iterable[Chat], worker_id: WorkerId) -> None:
        for row in rows:
            self._enter(row, OwnerChange(kind="release", worker_id=worker_id), None)

    def _enter(self, chat: Chat, entry: Change | OwnerChange, author: ChangeId | None) -> None:
        key = (chat.id, chat.snapshot_version)
        if key in self._authors:
            same = author is not None and self._authors[key] == author
            assert same, f"two changes wrote version {chat.snapshot_version} of {chat.id}"
        self._authors[key] = author
        self._entries.setdefault(chat.id, {})[chat.snapshot_version] = entry

    def replay(self) -> "ChangeReplay":
        replay = ChangeReplay()
        for chat_id, of_chat in self._entries.items():
            versions = sorted(of_chat)
            assert versions == list(range(1, len(versions) + 1)), (
                f"missing versions of {chat_id}: {versions}"
            )
            for version in versions:
                replay.write(chat_id, of_chat[version])
        return replay

    def check(self, everything: Mapping[ChatId, Stored]) -> "ChangeReplay":
        """Assert that the stored rows are exactly what the acknowledged changes make."""
        replay = self.replay()
        chats = replay.store.chats
        assert chats.keys() == everything.keys(), "unexpected or lost chats"
        for chat_id, rows in chats.items():
            meant = timeless(rows.chat, rows.messages, rows.queue)
            assert everything[chat_id].timeless() == meant, f"chat {chat_id} is not as written"
        return replay


class ChangeReplay:
    """Applies changes in order to the reference store. `dropped` are the texts that left a queue
    without joining history: deleted, cleared or edited."""

    def __init__(self) -> None:
        self.store = ReferenceStore()
        self.dropped: set[str] = set()

    def write(self, chat_id: ChatId, entry: Change | OwnerChange) -> None:
        rows = self.store.chats.get(chat_id)
        if rows is None:
            assert isinstance(entry, Change), "acquired before it was created"
            apply_change(self.store, entry)
            return
        if isinstance(entry, OwnerChange):
            apply_change(self.store, entry.change(rows.chat))
            return
        assert entry.before is not None
        decided_on, was = timeless(entry.before, (), ()), timeless(rows.chat, (), ())
        assert decided_on == was, f"decided on a row of {chat_id} that was never stored"
        waited, length = [first_text(item) for item in rows.queue], len(rows.messages)
        apply_change(self.store, entry)
        accounted = {first_text(item) for item in (*rows.queue, *rows.messages[length:])}
        self.dropped.update(word for word in waited if word not in accounted)


def first_text(of: Draft | UserInput) -> str:
    """The text of the first part; each prompt of a test has a unique text."""
    first = of.content[0]
    return first.text if isinstance(first, TextPart) else ""


def prompt_texts(rows: ChatRows | Stored) -> list[str]:
    """The texts of all prompts in history, deleted ones included, and in the queue."""
    history = [first_text(row) for row in rows.messages if row.starts_turn]
    return [*history, *(first_text(item) for item in rows.queue)]


async def stored_prompts(conn: Conn, chat_id: ChatId = CHAT) -> list[str]:
    return prompt_texts((await stored(conn))[chat_id])
