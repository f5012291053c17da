"""The chat that is open: follows it, and passes on its newest state at most 30 times a second."""

from collections.abc import Callable
from typing import Final

from textual.timer import Timer
from textual.widget import Widget

from chatd.client.connection import Connection, FollowedChat
from chatd.domain.ids import ChatId

FRAME_S: Final = 1 / 30
"""Between two states of a chat on the screen: an answer may come in a thousand pieces a second."""


class OpenedChat:
    """`show` gets the newest state, and None when no chat is open. `host` has the timer."""

    def __init__(
        self,
        host: Widget,
        connection: Connection,
        show: Callable[[FollowedChat | None], None],
    ) -> None:
        self.chat_id: ChatId | None = None
        self._host = host
        self._connection = connection
        self._show = show
        self._newest: FollowedChat | None = None
        self._timer: Timer | None = None
        self._is_asked = False
        self._stop: Callable[[], None] | None = None

    def open(self, chat_id: ChatId | None) -> None:
        self.close()
        self.chat_id = chat_id
        # At once, as far as it is known: until then keys would act on the chat before it.
        self._show(None if chat_id is None else self._connection.chat(chat_id))
        if chat_id is not None:
            self._stop = self._connection.follow_chat(chat_id, self._changed)

    def close(self) -> None:
        """It is not followed any more; `chat_id` still names it."""
        if self._stop is not None:
            self._stop()
        if self._timer is not None:
            self._timer.stop()
        self._newest = self._timer = self._stop = None
        self._is_asked = False

    def _changed(self, chat: FollowedChat) -> None:
        """In the connection's task: textual's timers need to be started in a task of the app."""
        self._newest = chat
        if not self._is_asked:
            self._is_asked = True
            self._host.call_later(self._start_timer)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._flush()
            self._timer = self._host.set_timer(FRAME_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_asked:
            self._start_timer()

    def _flush(self) -> None:
        self._is_asked = False
        if self._newest is not None:
            self._show(self._newest)
