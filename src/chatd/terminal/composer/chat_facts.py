"""What the composer reads of its chat besides the messages: mode, model, cost."""

from collections.abc import Awaitable, Callable
from typing import Final

from textual.widget import Widget

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.frames import ChatChanged, ListEvent, ListReady
from chatd.client.resources import Chat, ChatCost, ModelChoice
from chatd.domain.ids import ChatId
from chatd.terminal.session import Session

# What the composer knows of its chat beside the messages: mode, model, cost; and the models.

MAX_LISTED_MODELS: Final = 200


class ChatFacts:
    """Reads again when the chat has changed; `host` runs the requests and is told."""

    def __init__(self, host: Widget, session: Session, on_change: Callable[[], None]) -> None:
        self._host = host
        self._session = session
        self._on_change = on_change
        self._chat_id: ChatId | None = None
        self._answer: int | None = None
        self.chat: Chat | None = None
        self.cost: ChatCost | None = None
        self.models: tuple[ModelChoice, ...] = ()
        self._stop = session.connection.follow_list(self._on_list)

    def close(self) -> None:
        self._stop()

    def open(self, chat_id: ChatId | None) -> None:
        self._chat_id, self.chat, self.cost, self._answer = chat_id, None, None, None
        self.read_chat()

    def show_answer(self, message_id: int | None) -> None:
        """The cost changes with each answer, the mode may with each message."""
        if message_id != self._answer and self._chat_id is not None:
            self._answer = message_id
            self._read("cost", self._read_cost)
            self.read_chat()

    def read_chat(self) -> None:
        if self._chat_id is not None:
            self._read("chat", self._read_chat)

    def read_models(self) -> None:
        self._read("models", self.load_models)

    async def load_models(self) -> tuple[ModelChoice, ...]:
        """Raises ApiError and ServerUnreachable."""
        page = await self._session.api.list_models(include_disabled=True, limit=MAX_LISTED_MODELS)
        self.models = page.items
        self._on_change()
        return page.items

    def _read(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """What cannot be read stays as it was: the status line says that the server is away."""

        async def read() -> None:
            try:
                await work()
            except (ApiError, ServerUnreachable):
                return

        self._host.run_worker(read, group=f"facts-{name}", exclusive=True)

    async def _read_chat(self) -> None:
        if self._chat_id is not None:
            self._show_chat(await self._session.api.get_chat(self._chat_id))

    async def _read_cost(self) -> None:
        if (chat_id := self._chat_id) is None:
            return
        found = await self._session.api.get_chat_cost(chat_id)
        if chat_id == self._chat_id:
            self.cost = found
            self._on_change()

    def _on_list(self, event: ListEvent) -> None:
        """In the connection's task: textual starts work in a task of the app only."""
        self._host.call_later(self._show_event, event)

    def _show_event(self, event: ListEvent) -> None:
        match event:
            case ListReady():
                self.read_chat()
                self.read_models()
            case ChatChanged(chat=chat):
                self._show_chat(chat)
            case _:
                return

    def _show_chat(self, chat: Chat) -> None:
        is_newer = self.chat is None or chat.updated_at >= self.chat.updated_at
        if chat.id == self._chat_id and is_newer:
            self.chat = chat
            self._on_change()
