"""A chat that a command follows over the connection, and what is said while there is none."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from chatd.cli.output import print_notice
from chatd.client.connection import Connection, FollowedChat
from chatd.client.errors import ApiError
from chatd.client.frames import ChatChanged, ListEvent
from chatd.client.resources import Chat
from chatd.client.server import ServerApi
from chatd.client.socket import SOCKET_PATH
from chatd.client.state import ShownChat
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId

LOAD_TIMEOUT_S: Final = 20.0
"""A command that needs the state of a chat waits this long for it, over a restart of the server."""


class ChatGone(ChatdError):
    code = "not_found"

    def __init__(self) -> None:
        super().__init__("The chat was deleted, or you may not read it any more.")


class NotFollowed(ChatdError):
    code = "not_followed"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The chat cannot be followed: {reason}. If the server answers other commands, a proxy"
            f" before it does not pass WebSockets on ({SOCKET_PATH})."
        )


class ChatWatch:
    """A followed chat: `changed` is set whenever it or the connection has changed. `waiting` are
    its subagents that wait for a person, as far as they changed since."""

    def __init__(self, connection: Connection, chat_id: ChatId) -> None:
        self.connection = connection
        self.changed = asyncio.Event()
        self.waiting: dict[ChatId, Chat] = {}
        self._chat_id = chat_id
        self._latest: FollowedChat | None = None
        self._running = asyncio.create_task(connection.run())
        self._running.add_done_callback(lambda _: self.changed.set())
        self._stop = [
            connection.follow_chat(chat_id, self._on_chat),
            connection.follow_list(self._on_list),
            connection.on_state(self.changed.set),
        ]

    @property
    def shown(self) -> ShownChat | None:
        """Raises ApiError after a sign-out, and ChatGone."""
        if self._running.done():
            self._running.result()  # a bug: it runs until it is cancelled
        if self.connection.state == "signed_out":
            raise ApiError(401, "signed_out", self.connection.problem or "You are signed out.")
        if self._latest is not None and self._latest.gone:
            raise ChatGone
        return None if self._latest is None else self._latest.shown

    async def close(self) -> None:
        for stop in self._stop:
            stop()
        self._running.cancel()
        await asyncio.wait([self._running])

    def _on_chat(self, chat: FollowedChat) -> None:
        self._latest = chat
        self.changed.set()

    def _on_list(self, event: ListEvent) -> None:
        if not isinstance(event, ChatChanged) or event.chat.root_chat_id != self._chat_id:
            return
        chat = event.chat
        if chat.status == "requires_action" and chat.id != self._chat_id:
            self.waiting[chat.id] = chat
            self.changed.set()
        else:
            self.waiting.pop(chat.id, None)


@asynccontextmanager
async def watch_chat(api: ServerApi, chat_id: ChatId) -> AsyncGenerator[ChatWatch]:
    watch = ChatWatch(Connection(api), chat_id)
    try:
        yield watch
    finally:
        await watch.close()


async def load_chat(
    api: ServerApi, chat_id: ChatId, timeout_s: float = LOAD_TIMEOUT_S
) -> ShownChat:
    """The newest messages of a chat and what it waits for, once. Raises as `wait_until_loaded`."""
    async with watch_chat(api, chat_id) as watch:
        return await wait_until_loaded(watch, ConnectionNotices(print_notice), timeout_s)


async def wait_until_loaded(
    watch: ChatWatch, notices: "ConnectionNotices", timeout_s: float = LOAD_TIMEOUT_S
) -> ShownChat:
    """Raises as `ChatWatch.shown`, and NotFollowed."""
    try:
        async with asyncio.timeout(timeout_s):
            while (shown := watch.shown) is None or not shown.is_loaded:
                watch.changed.clear()
                notices.tell(watch.connection)
                await watch.changed.wait()
            return shown
    except TimeoutError:
        raise NotFollowed(watch.connection.problem or "the server sends nothing") from None


class ConnectionNotices:
    """Says once that the connection is lost, and once that it is there again."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._was_lost = False

    def tell(self, connection: Connection) -> None:
        if connection.state == "waiting" and not self._was_lost:
            self._was_lost = True
            self._notice(
                f"The connection was lost ({connection.problem}); the chat goes on. Reconnecting."
            )
        if connection.state == "open" and self._was_lost:
            self._was_lost = False
            self._notice("Connected again.")
