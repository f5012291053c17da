"""`ChatTerminal`: the app of `chatd chat`. Owns what concerns the whole terminal: theme, window
title, bell, and what remains when it ends."""

import logging
import logging.handlers
import os
import traceback
from collections.abc import Callable
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import ClassVar, Final, cast

from textual import events, on
from textual.binding import Binding, BindingType
from textual.signal import Signal

from chatd.domain.ids import ChatId
from chatd.terminal.chat_frame import follow_state
from chatd.terminal.key_order import KeyOrder, KeyPassed
from chatd.terminal.keys import short_key_name
from chatd.terminal.main_screen import MainScreen
from chatd.terminal.safe_text import safe_line
from chatd.terminal.screens.info_screens import SignedOutScreen
from chatd.terminal.session import Session, SessionApp
from chatd.terminal.themes import THEMES

# The log of the terminal: the screen is taken, so warnings and crashes go to a file.
#
# Local variables are never written: they would have the token and what people say.

MAX_LOG_BYTES: Final = 1024 * 1024
LOG_FILE: Final = "terminal.log"
log = logging.getLogger(__name__)


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """A log that only this account can read, even after a rotation: errors quote what people
    said."""

    def _open(self) -> TextIOWrapper:
        file = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(file, 0o600)
        return TextIOWrapper(FileIO(file, "a"), encoding="utf-8", write_through=True)


def open_log(directory: Path) -> Path | None:
    """Send everything that is logged to the file; None if it cannot be written."""
    path = directory / LOG_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = _PrivateLog(path, maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8")
    except OSError:
        logging.basicConfig(handlers=[logging.NullHandler()], force=True)
        return None
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(form))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    return path


def record_crash(error: BaseException) -> None:
    """The stack without local variables. The text of an error may quote what people said, so only
    its type is shown on the terminal."""
    log.error("the terminal ended\n%s", "".join(traceback.format_exception(error)))


def crash_text(error: BaseException, path: Path | None) -> str:
    where = "" if path is None else f" Where it happened is in {path}."
    return (
        f"The terminal ended because of an error of its own: {type(error).__name__}. Your chats go"
        f" on.{where}"
    )


TITLE_CELLS: Final = 80
REPAINT_AFTER_S: Final = 0.3
_SAVE_TITLE: Final = "\x1b[22;0t"
_RESTORE_TITLE: Final = "\x1b[23;0t"


class ChatTerminal(SessionApp, inherit_bindings=False):
    """`rings`: the bell rings for chats that need the person or end while they look elsewhere."""

    CSS_PATH = "styles.tcss"
    TITLE = "chatd"
    ENABLE_COMMAND_PALETTE = False
    # On top of the main screen, which has these keys itself. Textual's own Ctrl-Q would leave
    # without a question about unsent messages.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "close_top", show=False, priority=True),
        Binding("ctrl+d", "leave", show=False, priority=True),
    ]

    def __init__(
        self,
        session: Session,
        chat_id: ChatId | None = None,
        *,
        theme: str = "dark",
        rings: bool = True,
        log_path: Path | None = None,
    ) -> None:
        super().__init__(session)
        self.main = MainScreen(chat_id)
        self.crash = ""
        self._rings = rings
        self._log_path = log_path
        self._window_title = ""
        self._stop: Callable[[], None] | None = None
        self._key_order = KeyOrder(self, super().on_event)
        for known in THEMES.values():
            self.register_theme(known)
        self.theme = THEMES[theme].name

    async def on_event(self, event: events.Event) -> None:
        is_key = isinstance(event, events.Key | events.Paste)
        if is_key and not self.screen_stack:
            return  # the terminal ends
        if is_key and not event.is_forwarded:
            await self._key_order.take(event)
        else:
            await super().on_event(event)

    @on(KeyPassed)
    async def pass_next_key(self, message: KeyPassed) -> None:
        await self._key_order.passed(message)

    def on_mount(self) -> None:
        self._write(_SAVE_TITLE)
        self.push_screen(self.main)
        self._stop = follow_state(self, self._show_sign_in)
        # What was drawn while the terminal changed hands may be lost: all of it is drawn again.
        resumed = cast("Signal[object]", self.app_resume_signal)  # pyright: ignore[reportUnknownMemberType]
        resumed.subscribe(self, lambda _: self._repaint())

    def _repaint(self) -> None:
        self.refresh(layout=True)
        self.set_timer(REPAINT_AFTER_S, lambda: self.refresh(layout=True))

    def on_unmount(self) -> None:
        if self._stop is not None:
            self._stop()
        self._write(_RESTORE_TITLE)

    @on(MainScreen.TitleChanged)
    def show_title(self, event: MainScreen.TitleChanged) -> None:
        """Show in the window's title how many chats need a person, and the open chat."""
        count = f"({event.needing}) " if event.needing else ""
        name = f"{event.title} · chatd" if event.title else "chatd"
        text = count + safe_line(name, TITLE_CELLS)
        if text != self._window_title:
            self._window_title = text
            self._write(f"\x1b]2;{text}\x07")

    @on(MainScreen.Alerted)
    def alert(self, event: MainScreen.Alerted) -> None:
        """Show a line on the screen; while the person looks elsewhere, also ring the bell and, in
        terminals that have it, show a notification of the desktop."""
        alert = event.alert
        self.notify(alert.text, severity=alert.severity, markup=False)
        if self._rings:
            self.bell()
            if not self.app_focus:
                self._write(f"\x1b]9;{alert.text}\x07")

    def _show_sign_in(self) -> None:
        """Shown on top of everything while the server does not accept the token."""
        is_shown = isinstance(self.screen, SignedOutScreen)
        is_signed_out = self.session.connection.state == "signed_out"
        if is_signed_out and not is_shown:
            self.push_screen(SignedOutScreen())
        elif is_shown and self.session.connection.state == "open":
            self.pop_screen()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("close_top", "leave"):
            return self.screen is not self.main
        return super().check_action(action, parameters)

    def action_close_top(self) -> None:
        if isinstance(self.screen, SignedOutScreen):
            self.exit()
        else:
            self.screen.dismiss()

    def action_leave(self) -> None:
        self.main.action_detach()

    def get_key_display(self, binding: Binding) -> str:
        return binding.key_display or short_key_name(binding.key)

    def _write(self, sequence: str) -> None:
        if self._driver is not None and not self.is_headless:
            self._driver.write(sequence)
            self._driver.flush()

    def _fatal_error(self) -> None:
        """Textual would print the stack with all local variables, including the token."""
        error = self._exception or RuntimeError()
        record_crash(error)
        self.crash = crash_text(error, self._log_path)
        self._close_messages_no_wait()
