"""The histories of chats that this replica ran lately, so that a turn reads only what is new.

A history is kept with the row at which it was complete. The next attempt takes it, reads the
messages that have changed since then, and leaves it here again when it ends. It is read anew if the
row is not known to follow the kept one, if a message that is kept was changed or deleted, and after
a compaction. With it stays the beginning of the chat's last prompt and its bytes.
"""

from collections.abc import Sequence
from typing import Final

from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import UNKNOWN_CHANGE, Chat
from chatd.domain.ids import ChatId
from chatd.domain.prompt.builder import KeptPrompt, row_chars

MAX_KEPT_BYTES: Final = 128 * 1024 * 1024
"""Of all kept histories together; the one that was used least recently goes first."""
MAX_KEPT_HISTORY_BYTES: Final = 32 * 1024 * 1024
_COPIES: Final = 3
"""Of a text: in the message, in the prompt (mostly the same object) and in its bytes."""
_ROW_BYTES: Final = 1024


class KeptHistory:
    """`messages` as of `chat`; the first `read` of them were read at once. `prompt` is the
    beginning of its last prompt. `size` is an estimate of its bytes in memory."""

    __slots__ = ("_measured", "chat", "messages", "prompt", "read", "size")

    def __init__(self, chat: Chat, messages: list[Message]) -> None:
        self.chat = chat
        self.messages = messages
        self.prompt = KeptPrompt()
        self.read = len(messages)
        self.size = 0
        self._measured = 0

    def is_past_of(self, chat: Chat) -> bool:
        """Whether the row is known to follow the kept one. An attempt that was cut off may have
        added messages of later rows."""
        known = self.chat
        if known.change_id == UNKNOWN_CHANGE or not self.messages:
            return False
        is_whole = self.messages[-1].revision <= known.snapshot_version
        return is_whole and chat.contains(known.snapshot_version, known.change_id)

    def add(self, changed: Sequence[Message]) -> bool:
        """Add the messages that have changed since. False if not all of them are new."""
        last = self.messages[-1].id
        if any(row.deleted or row.compressed or row.id <= last for row in changed):
            return False
        self.messages.extend(changed)
        return True

    @property
    def has_new_summary(self) -> bool:
        """Most of the messages before a summary are no longer needed."""
        return any(row.compressed for row in self.messages[self.read :])

    def measure(self) -> int:
        new = self.messages[self._measured :]
        self._measured = len(self.messages)
        self.size += sum(row_chars(row) * _COPIES + _ROW_BYTES for row in new)
        return self.size


class KeptHistories:
    """`size` is that of all. A history that an attempt uses is not among them."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[ChatId, KeptHistory] = {}  # the least recently used first
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, chat: Chat) -> KeptHistory | None:
        found = self._kept.get(chat.id)
        return found if found is not None and found.is_past_of(chat) else None

    def forget(self, chat_id: ChatId) -> None:
        if (found := self._kept.pop(chat_id, None)) is not None:
            self.size -= found.size

    def keep(self, history: KeptHistory) -> None:
        self.forget(history.chat.id)
        if history.has_new_summary or history.measure() > MAX_KEPT_HISTORY_BYTES:
            return
        self._kept[history.chat.id] = history
        self.size += history.size
        while self.size > self._max_bytes:
            self.forget(next(iter(self._kept)))
