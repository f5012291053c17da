"""What the main screen tells the server about the open chat: interrupts and what was read."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from textual.widget import Widget

from chatd.client.connection import FollowedChat
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock
from chatd.terminal.messages import ShowNotice
from chatd.terminal.session import Session

# Whether a key was pressed again soon enough to mean more.

AGAIN_WITHIN_S: Final = 2.0
"""Of two presses of Esc or Ctrl-C."""


class DoublePress:
    """Two presses count together only at the same place, such as a chat."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: float | None = None
        self._place: object = None

    def is_waiting(self, place: object) -> bool:
        """Whether the next press there would be the second."""
        now = self._clock.monotonic()
        is_soon = self._at is not None and now - self._at <= AGAIN_WITHIN_S
        return is_soon and place == self._place

    def press(self, place: object) -> bool:
        """True for the second of two presses; a third is a first again."""
        is_second = self.is_waiting(place)
        self._at = None if is_second else self._clock.monotonic()
        self._place = place
        return is_second


# Interrupting the open chat: Esc once for its answer, twice for its subagents too.


class Interrupts:
    """`say` shows a line for some seconds; `leave` ends the terminal."""

    def __init__(
        self,
        host: Widget,
        session: Session,
        *,
        say: Callable[[str], None],
        leave: Callable[[], None],
    ) -> None:
        self._host = host
        self._api = session.api
        self._escape = DoublePress(session.clock)
        self._control_c = DoublePress(session.clock)
        self._say = say
        self._leave = leave

    def on_escape(self, chat: FollowedChat | None, *, has_subagents: bool) -> bool:
        """False if there was nothing to interrupt."""
        if chat is None or chat.gone:
            return False
        if not can_interrupt(chat):
            if has_subagents and self._is_second(chat):
                self._interrupt(chat.shown.chat_id, family=True)
                return True
            return False
        is_second = self._escape.press(chat.chat_id)
        self._interrupt(chat.shown.chat_id, family=is_second, hints_family=has_subagents)
        return True

    def _is_second(self, chat: FollowedChat) -> bool:
        """Only a second one counts here: it has interrupted the answer before."""
        return self._escape.is_waiting(chat.chat_id) and self._escape.press(chat.chat_id)

    def on_control_c(self, chat: FollowedChat | None) -> None:
        """The first interrupts what runs; a second one soon after leaves."""
        if self._control_c.press(None if chat is None else chat.chat_id):
            self._leave()
        elif chat is not None and not chat.gone and can_interrupt(chat):
            self._interrupt(chat.shown.chat_id, family=False, more="Ctrl-C again leaves.")
        else:
            self._say("Ctrl-C again leaves; the chat stays.")

    def _interrupt(
        self, chat_id: ChatId, *, family: bool, hints_family: bool = False, more: str = ""
    ) -> None:
        if family:
            self._say("Stopping the answer and the subagents")
        elif hints_family:
            self._say("Stopping the answer. Esc again stops its subagents too.")
        else:
            self._say(f"Stopping the answer. {more}".rstrip())
        self._host.run_worker(partial(self._send, chat_id, family=family), group="interrupt")

    async def _send(self, chat_id: ChatId, *, family: bool) -> None:
        try:
            await self._api.interrupt_chat(chat_id, subagents="stop" if family else None)
        except (ApiError, ServerUnreachable) as error:
            self._host.post_message(ShowNotice(f"Not interrupted: {error.message}", "error"))


def can_interrupt(chat: FollowedChat) -> bool:
    """While something runs. An ask is answered or declined in its own place."""
    return chat.shown.status in ("pending", "running")


# Tells the server how far the person has read the open chat, once it rests.

MAX_MARKED: Final = 500
log = logging.getLogger(__name__)


class ReadMarks:
    """`host` runs the requests. One that fails is not repeated: the next answer brings another."""

    def __init__(self, host: Widget, api: ServerApi) -> None:
        self._host = host
        self._api = api
        self._marked: dict[ChatId, int] = {}

    def show(self, chat: FollowedChat) -> None:
        """The person sees the chat in this state."""
        shown = chat.shown
        last = shown.messages[-1].id if shown.messages else 0
        is_working = shown.status in ("pending", "running", "interrupting")
        if is_working or chat.gone or last <= self._marked.get(shown.chat_id, 0):
            return
        self._marked[shown.chat_id] = last
        while len(self._marked) > MAX_MARKED:
            del self._marked[next(iter(self._marked))]
        self._host.run_worker(partial(self._mark, shown.chat_id, last), group="read")

    async def _mark(self, chat_id: ChatId, message_id: int) -> None:
        try:
            await self._api.mark_read(chat_id, message_id)
        except (ApiError, ServerUnreachable) as error:
            log.info("the chat %s was not marked as read: %s", chat_id, error.code)
