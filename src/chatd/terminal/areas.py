"""The widgets of the open chat, by the names under which the main screen uses them. Each has
`show(chat)`: the newest state of the open chat, or None while none is open."""

from textual.widget import Widget

from chatd.client.connection import FollowedChat
from chatd.terminal.answers import AnswerPanel
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.queue_view import QueueView

__all__ = ["AnswerPanel", "Composer", "QueueView", "Timeline"]


class _Area(Widget):
    def show(self, chat: FollowedChat | None) -> None:
        del chat


class Timeline(_Area):
    pass
