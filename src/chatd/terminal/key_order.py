"""Keys that arrive in one read act one after the other: each goes where the one before has led.

Textual hands all of them to the widget that has the focus when they come. What a key does is known
only later: it travels up from that widget, its action posts messages, and then the focus moves.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeGuard, cast

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.app import App
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, TextArea

ROUNDS: Final = 4
"""Ways from the focus up to the app that follow a key: for the key itself, for the message of its
action, for the message of the one that took it, and for the focus."""
MAX_WAIT_S: Final = 0.25
"""How long to wait for a key to travel up: a widget that was removed sends nothing."""
BURST_S: Final = 0.005
"""No person types two keys so close together: a terminal without bracketed paste sends pasted text
as keys."""
LAST_S: Final = 0.001
"""The Enter that ends a paste of several lines comes with its text. After one line it is sent: so
type programs such as `tmux send-keys "text" Enter`, and people over a link that stalls."""
_PASTED: Final = {"enter": "\n", "tab": "\t"}


class KeyPassed(Message):
    """Travels behind a key from the widget that had the focus to the app."""

    def __init__(self, number: int, rounds: int) -> None:
        super().__init__()
        self.number = number
        self.rounds = rounds


class KeyOrder:
    """Holds keys and pastes back while an earlier key is on its way."""

    def __init__(self, app: App[None], dispatch: Callable[[events.Event], Awaitable[None]]) -> None:
        self._app = app
        self._dispatch = dispatch
        self._held: deque[events.Key | events.Paste] = deque()
        self._number = 0
        self._is_waiting = False
        self._timer: Timer | None = None
        self._text_at = float("-inf")
        self._has_pasted_break = False
        self._waited_for: events.Key | events.Paste | None = None

    async def take(self, event: events.Key | events.Paste) -> None:
        self._held.append(event)
        if not self._is_waiting:
            await self._release()

    async def passed(self, message: KeyPassed) -> None:
        if message.number != self._number or not self._is_waiting:
            return
        if message.rounds == 0 or not self._follow(message.rounds - 1):
            await self._release()

    async def _send(self, event: events.Key | events.Paste) -> None:
        is_text = isinstance(event, events.Paste) or (
            event.is_printable and isinstance(self._app.focused, Input | TextArea)
        )
        if event.time - self._text_at > BURST_S:
            self._has_pasted_break = False
        self._has_pasted_break |= isinstance(event, events.Paste)
        self._text_at = event.time if is_text else float("-inf")
        self._number += 1
        self._is_waiting = not is_text
        await self._dispatch(event)
        if not is_text:
            self._timer = self._app.set_timer(MAX_WAIT_S, self._release)
            if not self._follow(ROUNDS - 1):
                await self._release()

    def _follow(self, rounds: int) -> bool:
        """False if no widget can send it up. An app that ends has no screen any more."""
        if not self._app.screen_stack:
            self._held.clear()
            return False
        target = self._app.focused or self._app.screen
        return target.post_message(KeyPassed(self._number, rounds))

    async def _release(self) -> None:
        self._is_waiting = False
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        while self._held and not self._is_waiting and self._app.screen_stack:
            if self._waits_for_more(first := self._held[0]):
                self._is_waiting = True
                release = partial(self._app.call_later, self._release_after_wait, first)
                self._timer = self._app.set_timer(BURST_S, release)
            else:
                await self._send(self._read_pasted(self._held.popleft()))

    async def _release_after_wait(self, event: events.Key | events.Paste) -> None:
        """Called behind the keys that were in the app's queue when the time was over."""
        if self._held and self._held[0] is event:
            self._waited_for = event
            await self._release()

    def _waits_for_more(self, event: events.Key | events.Paste) -> bool:
        """An Enter may be the first key of a paste: the next keys tell. How old it is says nothing:
        the app of a busy machine takes keys later, and those that came with it follow in its
        queue."""
        is_alone = self._can_be_pasted(event) and len(self._held) == 1
        return is_alone and event is not self._waited_for

    def _read_pasted(self, event: events.Key | events.Paste) -> events.Key | events.Paste:
        """Enter and Tab among characters that came with them are text: they neither send nor move
        anything."""
        if not self._can_be_pasted(event):
            return event
        is_before = False
        if self._held and isinstance(following := self._held[0], events.Key):
            is_text = following.is_printable or following.key in _PASTED
            is_before = is_text and following.time - event.time <= BURST_S
        is_last = self._has_pasted_break and event.time - self._text_at <= LAST_S
        if not is_before and not is_last:
            return event
        pasted = events.Paste(_PASTED[event.key])
        pasted.time = event.time
        return pasted

    def _can_be_pasted(self, event: events.Key | events.Paste) -> TypeGuard[events.Key]:
        is_key = isinstance(event, events.Key) and event.key in _PASTED
        return is_key and isinstance(self._app.focused, TextArea)


# Keys that textual reads as others.
#
# Alt-Enter comes from most terminals, and from tmux, as escape and carriage return. Textual makes a
# plain Enter of it, which would send a message that is not finished.

ALT_ENTER_SEQUENCES: Final = ("\x1b\r", "\x1b\n", "\x1b[27;3;13~", "\x1b[27;2;13~", "\x1b[27;5;13~")
"""The last three are xterm's modifyOtherKeys for Alt, Shift and Ctrl."""


class ComposerKey(StrEnum):
    ALT_ENTER = "alt+enter"


def read_alt_enter() -> None:
    """Register the sequences in this process. Idempotent."""
    table = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    for sequence in ALT_ENTER_SEQUENCES:
        table[sequence] = (ComposerKey.ALT_ENTER,)
