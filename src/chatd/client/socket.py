"""One connection of the WebSocket, from its opening to its loss, and the topics that it follows.

`Topics` outlives connections: after each one all wanted topics are subscribed again, from their
cursors.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct

from chatd.aio import Backoff, InterruptibleSleep, run_other_tasks
from chatd.client.exchange import API_PATH, CONNECT_TIMEOUT_S, ServerAddress, explain_failure
from chatd.client.frames import (
    Ping,
    Received,
    Refused,
    Subscribe,
    Subscribed,
    TopicEvent,
    Unsubscribe,
    read_received,
)
from chatd.domain.ports import Clock

GONE_CODES: Final = frozenset({"not_found", "forbidden", "missing_scope", "invalid_input"})
_ANSWERED_CODES: Final = frozenset({None, "already_subscribed", "not_subscribed"})
_BACKOFF: Final = Backoff(first_delay_s=1.0, max_delay_s=30.0)


class TopicHandler(Struct, frozen=True, kw_only=True):
    """`cursor` says where to continue. `restart`: events from there on follow, and what was half
    received is void. `gone`: the topic does not exist or may not be read."""

    cursor: Callable[[], str | None]
    restart: Callable[[], None]
    gone: Callable[[], None]


class _Wish(Struct, kw_only=True):
    handler: TopicHandler
    failures: int = 0
    not_before: float = 0.0


class Topics:
    """Which topics a socket should follow, and which it does: `due` says what to send next."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._wanted: dict[str, _Wish] = {}
        self._asked: set[str] = set()

    def follow(self, topic: str, handler: TopicHandler) -> None:
        self._wanted[topic] = _Wish(handler=handler)

    def leave(self, topic: str) -> None:
        self._wanted.pop(topic, None)

    def on_lost(self) -> None:
        """Nothing is subscribed any more."""
        self._asked.clear()
        for wish in self._wanted.values():
            wish.not_before = 0.0
            wish.handler.restart()

    def due(self) -> Iterator[Subscribe | Unsubscribe]:
        """What must be sent now. Each counts as sent once it is yielded."""
        for topic in [one for one in self._asked if one not in self._wanted]:
            self._asked.discard(topic)
            yield Unsubscribe(topic=topic)
        now = self._now()
        for topic, wish in list(self._wanted.items()):
            if topic not in self._asked and wish.not_before <= now:
                self._asked.add(topic)
                yield Subscribe(topic=topic, after=wish.handler.cursor() or None)

    def next_retry_s(self) -> float | None:
        """How long until a refused topic is requested again; None if there is none."""
        waits = [
            wish.not_before for topic, wish in self._wanted.items() if topic not in self._asked
        ]
        return max(0.0, min(waits) - self._now()) if waits else None

    def on_event(self, event: TopicEvent) -> None:
        wish = None if event.topic is None else self._wanted.get(event.topic)
        if wish is None or event.topic is None:
            return
        match event:
            case Subscribed():
                wish.failures = 0
                wish.handler.restart()
            case Refused(code=code) if code in GONE_CODES:
                self._end(event.topic, wish)
            case _ if event.code in _ANSWERED_CODES:
                return
            case _ if event.code in GONE_CODES:
                self._end(event.topic, wish)
            case _:
                self._asked.discard(event.topic)
                wish.failures += 1
                wish.not_before = self._now() + _BACKOFF.delay(wish.failures, random.random)

    def _end(self, topic: str, wish: _Wish) -> None:
        self._asked.discard(topic)
        del self._wanted[topic]
        wish.handler.gone()


SOCKET_PATH: Final = f"{API_PATH}/ws"
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
PING_AFTER_S: Final = 20.0
LOST_AFTER_S: Final = 60.0
"""A connection without a frame for this long is lost: an idle server answers pings."""
WATCH_INTERVAL_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 1.0
RATE_LIMITED_WAIT_S: Final = 5.0
_IDLE_S: Final = 3600.0
_CLOSE_REASONS: Final = {
    1008: "the token or its user has changed",
    1012: "the server restarts",
    1013: "the server asks to connect again",
}
_TIMEOUT: Final = aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S)  # pyright: ignore[reportCallIssue]
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError)


class Lost(Exception):
    """There is no connection. The message says why, for people."""

    def __init__(self, reason: str, *, was_open: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.was_open = was_open
        self.wait_s = wait_s


class SignedOut(Exception):
    """The server does not accept the token."""


class Socket:
    def __init__(self, server: ServerAddress, http: aiohttp.ClientSession, clock: Clock) -> None:
        self._server = server
        self._http = http
        self._clock = clock
        self._pause = InterruptibleSleep(clock)
        self._heard = clock.monotonic()
        self._is_ping_due = False
        self._reason = "the server closed the connection"

    def wake(self) -> None:
        """The topics have changed."""
        self._pause.wake()

    async def run(
        self,
        topics: Topics,
        on_open: Callable[[], None],
        on_frame: Callable[[list[Received]], None],
    ) -> None:
        """Run until the connection is lost. Raises Lost and SignedOut, and never returns."""
        ws = await self._open()
        try:
            self._heard = self._clock.monotonic()
            on_open()
            async with asyncio.TaskGroup() as group:
                tasks = (
                    group.create_task(self._write(ws, topics)),
                    group.create_task(self._watch(ws)),
                )
                await self._read(ws, on_frame)
                for task in tasks:
                    task.cancel()
        finally:
            with suppress(*_FAILURES):
                await ws.close()
        raise Lost(self._reason, was_open=True)

    async def _open(self) -> aiohttp.ClientWebSocketResponse:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._http.ws_connect(
                    f"{self._server.url.rstrip('/')}{SOCKET_PATH}",
                    headers=self._server.headers,
                    max_msg_size=MAX_FRAME_BYTES,
                    timeout=_TIMEOUT,
                )
        except aiohttp.WSServerHandshakeError as error:
            raise _explain_refusal(error.status) from None
        except _FAILURES as error:
            raise Lost(str(explain_failure(error))) from error

    async def _read(
        self, ws: aiohttp.ClientWebSocketResponse, on_frame: Callable[[list[Received]], None]
    ) -> None:
        async for message in ws:
            self._heard = self._clock.monotonic()
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            try:
                received = read_received(message.data)
            except (msgspec.MsgspecError, RecursionError):
                self._reason = "the server sends what this client does not understand"
                return
            on_frame(received)
            # Frames that have arrived already must not keep the screen from being drawn.
            await run_other_tasks()
        self._reason = _CLOSE_REASONS.get(ws.close_code or 0, self._reason)

    async def _write(self, ws: aiohttp.ClientWebSocketResponse, topics: Topics) -> None:
        """The only task that sends."""
        try:
            while True:
                if self._is_ping_due:
                    self._is_ping_due = False
                    await ws.send_str(msgspec.json.encode(Ping()).decode())
                for frame in topics.due():
                    await ws.send_str(msgspec.json.encode(frame).decode())
                if (wait_s := topics.next_retry_s()) is None:
                    await self._pause.sleep(_IDLE_S, "client_idle")
                else:
                    await self._pause.sleep(wait_s, "client_topics")
        except _FAILURES:
            await ws.close()

    async def _watch(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        """End a connection that is dead although neither side closed it."""
        while True:
            await self._clock.sleep(WATCH_INTERVAL_S, "client_watch")
            silent_s = self._clock.monotonic() - self._heard
            if silent_s >= LOST_AFTER_S:
                self._reason = f"the server was silent for {LOST_AFTER_S:.0f} seconds"
                await ws.close()
                return
            if silent_s >= PING_AFTER_S:
                self._is_ping_due = True
                self._pause.wake()


def _explain_refusal(status: int) -> Exception:
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return SignedOut("The server does not accept the token. Sign in with chatd login.")
        case HTTPStatus.FORBIDDEN:
            return SignedOut("The token may not follow chats: it needs the scope chat:read.")
        case HTTPStatus.TOO_MANY_REQUESTS:
            text = "the server refuses more connections of this user for now"
            return Lost(text, wait_s=RATE_LIMITED_WAIT_S)
        case HTTPStatus.NOT_FOUND | HTTPStatus.OK:
            return Lost("the address is not that of a chatd server")
        case _:
            return Lost(f"the server replied {status}")
