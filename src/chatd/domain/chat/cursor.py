"""The cursor of a viewer: a version of a chat and the change that wrote it.

Clients get it as text and send it back to resume. A version alone is accepted too, but it cannot
show that the database has lost the change that the client has seen under that number.
"""

from typing import Final

from msgspec import Struct

from chatd.domain.chat.row import UNKNOWN_CHANGE, Chat
from chatd.domain.ids import ChangeId

CURSOR_PATTERN: Final = r"^[0-9]{1,19}(-[0-9a-f]{1,16})?$"
"""The version, and the change in hexadecimal digits."""


class Cursor(Struct, frozen=True):
    version: int
    change_id: ChangeId = UNKNOWN_CHANGE

    @staticmethod
    def of(chat: Chat) -> "Cursor":
        return Cursor(chat.snapshot_version, chat.change_id)

    @staticmethod
    def parse(text: str) -> "Cursor":
        """The text must match `CURSOR_PATTERN`."""
        version, _, change = text.partition("-")
        return Cursor(int(version), ChangeId(int(change or "0", 16)))

    def is_past_of(self, chat: Chat) -> bool:
        """Whether the chat is at this cursor or follows it, and its last change ids show it."""
        return chat.contains(self.version, self.change_id)

    def __str__(self) -> str:
        if self.change_id == UNKNOWN_CHANGE:
            return str(self.version)
        return f"{self.version}-{self.change_id:x}"


START: Final = Cursor(0)
"""The cursor of a viewer that has nothing."""
