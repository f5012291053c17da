"""The terminal UI of `chatd chat`."""

from chatd.domain.ids import ChatId
from chatd.terminal.main_screen import MainScreen
from chatd.terminal.session import Session, SessionApp
from chatd.terminal.themes import DARK, LIGHT, ThemeChoice


class ChatTerminal(SessionApp):
    CSS_PATH = "styles.tcss"
    TITLE = "chatd"
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, session: Session, chat_id: ChatId | None = None, *, theme: ThemeChoice = "dark"
    ) -> None:
        super().__init__(session)
        self._first = chat_id
        for known in (DARK, LIGHT):
            self.register_theme(known)
        self.theme = (LIGHT if theme == "light" else DARK).name

    def on_mount(self) -> None:
        self.push_screen(MainScreen(self._first))
