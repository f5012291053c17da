"""Interrupting the open chat: Esc once for its answer, twice for its subagents too."""

from collections.abc import Callable
from functools import partial

from textual.widget import Widget

from chatd.client.connection import FollowedChat
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.domain.ids import ChatId
from chatd.terminal.chats.actions import ChatActions
from chatd.terminal.chats.double_press import DoublePress
from chatd.terminal.messages import ShowNotice
from chatd.terminal.session import Session


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
        self._actions = ChatActions(session.api)
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
            await self._actions.interrupt(chat_id, family=family)
        except (ApiError, ServerUnreachable) as error:
            self._host.post_message(ShowNotice(f"Not interrupted: {error.message}", "error"))


def can_interrupt(chat: FollowedChat) -> bool:
    """While something runs. An ask is answered or declined in its own place."""
    return chat.shown.status in ("pending", "running")
