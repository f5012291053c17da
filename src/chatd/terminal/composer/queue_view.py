"""The queue of a busy chat above the composer: edit, send now, move and remove its messages."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, Final

from rich.text import Text
from textual.app import RenderResult
from textual.binding import BindingType
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from chatd.client.connection import FollowedChat
from chatd.client.server import ServerApi
from chatd.domain.chat.messages import PublicQueuedMessage
from chatd.domain.ids import ChatId, QueueId
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.delivery import SentMeanwhile, while_queued
from chatd.terminal.composer.message_content import read_content
from chatd.terminal.keys import bindings_of
from chatd.terminal.messages import ShowNotice, telling_errors
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import session_of

Queue = tuple[PublicQueuedMessage, ...]


def move_target(queue: Queue, message: QueueId, step: int) -> tuple[bool, QueueId | None]:
    """Whether it can go one place up or down, and before which message it is then; None: last.
    Those that steer always come first: nothing moves past them."""
    at = next((at for at, one in enumerate(queue) if one.id == message), -1)
    other = at + step
    if at < 0 or not 0 <= other < len(queue) or queue[other].steer != queue[at].steer:
        return False, None
    following = other if step < 0 else other + 1
    return True, queue[following].id if following < len(queue) else None


MAX_QUEUE_ROWS: Final = 6


class QueueView(Widget, can_focus=True):
    """Hidden while the queue is empty. `chosen` is the id of a message, for the keys."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_of("queue")
    DEFAULT_CSS = """
    QueueView {
        height: auto;
        padding: 0 2;
        display: none;
        &.-shown { display: block; }
        &:focus { background: $panel; }
    }
    """

    queue: reactive[Queue] = reactive((), layout=True)
    chosen: reactive[QueueId | None] = reactive(None)

    def __init__(self) -> None:
        super().__init__()
        self._chat_id: ChatId | None = None

    def show(self, chat: FollowedChat | None) -> None:
        self._chat_id = None if chat is None else chat.shown.chat_id
        queue = () if chat is None else chat.shown.queue
        before = self._place
        self.queue = queue
        if queue and self._place is None:
            self.chosen = queue[min(before or 0, len(queue) - 1)].id
        self.set_class(bool(queue), "-shown")
        if not queue and self.has_focus:
            self.action_leave()

    @property
    def _place(self) -> int | None:
        places = (at for at, one in enumerate(self.queue) if one.id == self.chosen)
        return next(places, None)

    @property
    def _message(self) -> PublicQueuedMessage | None:
        return None if self._place is None else self.queue[self._place]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return 1 + min(len(self.queue), MAX_QUEUE_ROWS)

    def render(self) -> RenderResult:
        width = max(self.content_size.width, 20)
        place = self._place or 0
        first = max(0, min(place - MAX_QUEUE_ROWS // 2, len(self.queue) - MAX_QUEUE_ROWS))
        keys = (
            "Enter edits · s sends now · d removes · J K move"
            if self.has_focus
            else "Alt-Q changes them"
        )
        text = Text(f"Next up {len(self.queue)}", "bold")
        text.append(f"  {safe_line(keys, width - text.cell_len - 2)}", "dim")
        steering = sum(one.steer for one in self.queue)
        for at, one in enumerate(self.queue[first : first + MAX_QUEUE_ROWS], first):
            is_chosen = self.has_focus and one.id == self.chosen
            text.append("\n")
            text.append(_row(one, at + 1 - steering, width), "reverse" if is_chosen else "")
        return text

    def watch_has_focus(self, has_focus: bool) -> None:  # noqa: FBT001
        super().watch_has_focus(has_focus)
        self.refresh()

    def action_step(self, by: int) -> None:
        if self._place is not None:
            self.chosen = self.queue[(self._place + by) % len(self.queue)].id

    def action_edit(self) -> None:
        if self._message is not None:
            self.screen.query_one(Composer).opened.edit_queued(self._message)

    def action_leave(self) -> None:
        self.screen.query_one(Composer).focus()

    def action_send_now(self) -> None:
        if (message := self._message) is not None:
            self._do(lambda api, chat_id: api.promote_queued(chat_id, message.id))

    def action_remove(self) -> None:
        if (message := self._message) is not None:
            self._do(lambda api, chat_id: api.delete_queued(chat_id, message.id))

    def action_move(self, step: int) -> None:
        if (message := self._message) is None:
            return
        can_move, before = move_target(self.queue, message.id, step)
        if can_move:
            self._do(lambda api, chat_id: api.move_queued(chat_id, message.id, before))

    def _do(self, request: Callable[[ServerApi, ChatId], Awaitable[object]]) -> None:
        assert self._chat_id is not None
        self.run_worker(partial(self._send, request, self._chat_id), group="queue")

    async def _send(
        self, request: Callable[[ServerApi, ChatId], Awaitable[object]], chat_id: ChatId
    ) -> None:
        try:
            with telling_errors(self), while_queued():
                await request(session_of(self).api, chat_id)
        except SentMeanwhile:
            self.post_message(ShowNotice("This message was sent a moment ago.", "warning"))


def _row(message: PublicQueuedMessage, number: int, width: int) -> str:
    content = read_content(message.content)
    files = f" (+{len(content.kept)} files)" if content.kept else ""
    head = " ↳ " if message.steer else f"{number:>2} "
    return head + safe_line((content.text or "Files") + files, width - 3).ljust(width - 3)
