"""The widgets of the open chat, by the names under which the main screen uses them. Each has
`show(chat)`: the newest state of the open chat, or None while none is open."""

from chatd.terminal.answers.panel import AnswerPanel
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.queue_view import QueueView
from chatd.terminal.timeline.timeline import Timeline

__all__ = ["AnswerPanel", "Composer", "QueueView", "Timeline"]
