"""`Connection`: the one WebSocket of a process, which stays connected.

It resumes every followed chat from its cursor, so nothing is lost and nothing comes twice. Only
the task of `run` reads and writes the socket; everything else says what it wants and wakes it.
"""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Literal

from chatd.aio import Backoff, InterruptibleSleep
from chatd.client.drafts import PendingSend
from chatd.client.followed_chat import ChatStore, FollowedChat, KeptChats, Listener, call
from chatd.client.frames import (
    LIST_TOPIC,
    ChatChanged,
    ChatRemoved,
    ListEvent,
    ListReady,
    Received,
    Refused,
    SpendWarning,
    Subscribed,
    TopicEvent,
    Unsubscribed,
    chat_of,
    chat_topic,
)
from chatd.client.server import ServerApi
from chatd.client.socket import Lost, SignedOut, Socket, TopicHandler, Topics
from chatd.domain.ids import ChatId

__all__ = ["Connection", "ConnectionState", "FollowedChat"]

ConnectionState = Literal["connecting", "open", "waiting", "signed_out"]
ListListener = Callable[[ListEvent], None]

STABLE_AFTER_S: Final = 10.0
"""After a connection that lasted this long, the next failure counts as the first again."""
SIGNED_OUT_RETRY_S: Final = 300.0
"""A suspended user may be active again."""
_BACKOFF: Final = Backoff(first_delay_s=0.5, max_delay_s=30.0)


class Connection:
    """`state` and `retry_at` are for badges; `problem` says why it is not open."""

    def __init__(self, api: ServerApi) -> None:
        self.state: ConnectionState = "connecting"
        self.retry_at: datetime | None = None
        self.problem = ""
        self._api = api
        self._clock = api.clock
        self._topics = Topics(self._clock.monotonic)
        self._chats = KeptChats()
        self._pause = InterruptibleSleep(self._clock)
        self._socket: Socket | None = None
        self._failures = 0
        self._is_list_ready = False
        self._on_state: list[Callable[[], None]] = []
        self._on_list: list[ListListener] = []

    # What others ask for

    def on_state(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Called after every change of `state`, `retry_at` or `problem`; the returned function
        stops it."""
        self._on_state.append(listener)
        return _once(lambda: self._on_state.remove(listener))

    def chat(self, chat_id: ChatId) -> FollowedChat:
        """The chat as it is known now, without following it."""
        return self._chats.get(chat_id).view

    def follow_chat(self, chat_id: ChatId, listener: Listener) -> Callable[[], None]:
        """Keeps the chat current until the returned function is called. The listener gets it at
        once as far as it is known, and then once per frame that changes it."""
        store, topic = self._chats.get(chat_id), chat_topic(chat_id)
        if not store.is_followed or store.view.gone:
            self._topics.follow(topic, store.handler)
        store.add(listener)
        self._wake()
        call(lambda: listener(store.view))

        def stop() -> None:
            store.remove(listener)
            if not store.is_followed:
                self._topics.leave(topic)
                self._chats.on_left(chat_id)
                self._wake()

        return _once(stop)

    def follow_list(self, listener: ListListener) -> Callable[[], None]:
        """`ready` says to read the list; it comes first, and after every reconnect."""
        if not self._on_list:
            self._topics.follow(LIST_TOPIC, self._list_handler())
        self._on_list.append(listener)
        self._wake()
        if self._is_list_ready:
            call(lambda: listener(ListReady()))

        def stop() -> None:
            self._on_list.remove(listener)
            if not self._on_list:
                self._is_list_ready = False
                self._topics.leave(LIST_TOPIC)
                self._wake()

        return _once(stop)

    def retry_now(self) -> None:
        """Connect now, if it is not connected: also after `signed_out`."""
        if self.state in ("waiting", "signed_out"):
            self._failures = 0
            self._pause.wake()

    async def load_older(self, chat_id: ChatId) -> None:
        """A page of older messages appears in `shown.messages`. Nothing happens while one is being
        read. Raises ApiError and ServerUnreachable."""
        await self._chats.get(chat_id).load_older(self._api)

    def show_pending(self, chat_id: ChatId, items: tuple[PendingSend, ...]) -> None:
        """Called by the outbox when a chat's pending messages have changed."""
        self._chats.get(chat_id).show_pending(items)

    # The owner task

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                self._show("connecting", problem=self.problem)
                started = self._clock.monotonic()
                try:
                    await self._connect()
                except SignedOut as error:
                    await self._wait_for_sign_in(str(error))
                except Lost as lost:
                    if lost.was_open and self._clock.monotonic() - started >= STABLE_AFTER_S:
                        self._failures = 0
                    await self._wait(lost)
        finally:
            self._on_lost()

    async def _connect(self) -> None:
        """Raises Lost and SignedOut, and never returns."""
        socket = Socket(self._api.server, self._api.http, self._clock)
        try:
            await socket.run(self._topics, lambda: self._on_open(socket), self._on_frame)
        finally:
            self._on_lost()

    def _on_open(self, socket: Socket) -> None:
        self._socket = socket
        self._show("open")

    def _on_lost(self) -> None:
        self._socket = None
        self._is_list_ready = False
        self._topics.on_lost()

    async def _wait(self, lost: Lost) -> None:
        self._failures += 1
        delay_s = max(_BACKOFF.delay(self._failures, random.random), lost.wait_s)
        at = self._clock.now() + timedelta(seconds=delay_s)
        self._show("waiting", retry_at=at, problem=str(lost))
        await self._pause.sleep(delay_s, "client_reconnect")

    async def _wait_for_sign_in(self, problem: str) -> None:
        self._show("signed_out", problem=problem)
        await self._pause.sleep(SIGNED_OUT_RETRY_S, "client_signed_out")

    def _show(
        self, state: ConnectionState, *, retry_at: datetime | None = None, problem: str = ""
    ) -> None:
        self.state, self.retry_at, self.problem = state, retry_at, problem
        for listener in tuple(self._on_state):
            call(listener)

    def _wake(self) -> None:
        if self._socket is not None:
            self._socket.wake()

    # What arrives

    def _on_frame(self, received: list[Received]) -> None:
        """Call listeners once per frame."""
        changed: dict[ChatId, ChatStore] = {}
        for event in received:
            match event:
                case Subscribed() | Unsubscribed() | Refused():
                    store = self._on_topic_event(event)
                case ListReady() | ChatChanged() | ChatRemoved() | SpendWarning():
                    self._on_list_event(event)
                    store = None
                case _:
                    store = self._chats.find(event.chat_id)
                    if store is not None:
                        store.receive((event,))
            if store is not None:
                changed[store.chat_id] = store
        for store in changed.values():
            store.tell()

    def _on_topic_event(self, event: TopicEvent) -> ChatStore | None:
        self._topics.on_event(event)
        self._wake()
        chat_id = None if event.topic is None else chat_of(event.topic)
        return None if chat_id is None else self._chats.find(chat_id)

    def _on_list_event(self, event: ListEvent) -> None:
        if isinstance(event, ListReady):
            self._is_list_ready = True
        for listener in tuple(self._on_list):
            call(lambda listener=listener: listener(event))

    def _list_handler(self) -> TopicHandler:
        """It has no cursor: `ready` follows every subscription."""
        return TopicHandler(cursor=lambda: None, restart=lambda: None, gone=lambda: None)


def _once(stop: Callable[[], None]) -> Callable[[], None]:
    """A function that calls `stop` once, however often it is called."""
    is_stopped = False

    def stop_once() -> None:
        nonlocal is_stopped
        if not is_stopped:
            is_stopped = True
            stop()

    return stop_once
