"""The widgets of the open chat, by the names under which the main screen uses them. Each has
`show(chat)`: the newest state of the open chat, or None while none is open."""

from textual.widget import Widget

from chatd.client.connection import FollowedChat
from chatd.terminal.answers import AnswerPanel

__all__ = ["AnswerPanel", "Composer", "QueueView", "Timeline"]


class _Area(Widget):
    def show(self, chat: FollowedChat | None) -> None:
        del chat


class Timeline(_Area):
    pass


class QueueView(_Area):
    pass


class Composer(_Area):
    def run_line(self, line: str) -> None:
        del line
