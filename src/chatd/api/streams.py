"""Open event streams: their number, their pings, whether each may stay open, and how it ends.

Every end has a code, and the client resumes by version. The transports `sse` and `websocket` decide
what is sent. A stream is checked after a change that may concern its credential or the chats that
it reads, and after this replica has heard nothing for a while: everything may have changed then.
The owner of a chat always reads it, so only reads of other users' chats are looked up.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from chatd.aio import Backoff
from chatd.api.deps import StreamLimits
from chatd.api.errors import INTERNAL_ERROR_TEXT, STOPPING_TEXT, Draining, TooManyStreams
from chatd.api.request import ApiCaller, Message, Send, send_all
from chatd.api.route import ApiMetrics
from chatd.api.server import find_direct_write
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError, NotFound, Unavailable
from chatd.domain.ids import ChatId, UserId
from chatd.domain.ports import Clock, Env
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.log_event import LogEvent
from chatd.store.account import credentials
from chatd.store.account.runtime_settings import DEPLOYMENT
from chatd.store.chat import chats
from chatd.store.database.conn import Conn
from chatd.store.database.notifications import ConfigChanges
from chatd.stream.fanout import Lagged

MAX_CHECKS_AT_ONCE: Final = 4
"""Of streams: the other connections of the pool stay free for requests."""
_BACKOFF: Final = Backoff(first_delay_s=0.1, max_delay_s=2.0)


class OpenRead:
    """A chat that a stream reads. `chat` is None until its row is known. `lost` is called once the
    caller may no longer read it."""

    def __init__(self, chat_id: ChatId) -> None:
        self.chat_id = chat_id
        self.chat: Chat | None = None
        self.lost: Callable[[], None] = lambda: None


class AccessChecks:
    """What the checks of all streams share."""

    def __init__(self, conn: Conn, env: Env) -> None:
        self.conn = conn
        self.env = env
        self.slots = asyncio.Semaphore(MAX_CHECKS_AT_ONCE)


class StreamAccess:
    """Of one stream. `start` begins a task that runs `check` when one is needed, and returns False
    if it cannot yet; `end` is called once the credential has ended."""

    def __init__(
        self,
        checks: AccessChecks,
        caller: ApiCaller,
        *,
        end: Callable[[], None],
        start: Callable[[], bool],
    ) -> None:
        self._checks = checks
        self._caller = caller
        self._end = end
        self._start = start
        self._reads: set[OpenRead] = set()
        self._needs_check = False
        self._is_checking = False
        self.actor = caller.actor

    @contextmanager
    def read(self, chat_id: ChatId) -> Generator[OpenRead]:
        """Begins before the chat is read, so that no change is missed."""
        read = OpenRead(chat_id)
        self._reads.add(read)
        try:
            yield read
        finally:
            self._reads.discard(read)

    def on_read(self, read: OpenRead, chat: Chat) -> None:
        """The chat was read for the caller. A change between the caller's request and this moment
        may have been heard by no part of this stream: another user's chat is checked once more."""
        read.chat = chat
        if self._is_foreign(read):
            self._request_check()

    def on_change(self, change: ConfigChange | None) -> None:
        if change is None or self._concerns(change):
            self._request_check()

    def _concerns(self, change: ConfigChange) -> bool:
        if change.kind == "settings":
            return change.id in ("", DEPLOYMENT)
        foreign = [read.chat for read in self._reads if self._is_foreign(read)]
        if change.kind == "share":
            return any(chat is None or str(chat.root_chat_id) == change.id for chat in foreign)
        if change.kind == "project_access":
            return change.id == str(self._caller.user_id) and bool(foreign)
        return change.kind == "group" and bool(foreign)

    def _is_foreign(self, read: OpenRead) -> bool:
        return read.chat is None or read.chat.owner_id != self._caller.user_id

    def _request_check(self) -> None:
        self._needs_check = True
        self.start_check()

    def start_check(self) -> None:
        """If one is needed."""
        if self._needs_check and not self._is_checking:
            self._is_checking = self._start()

    async def check(self) -> None:
        """Return when no check is needed."""
        failures = 0
        while self._needs_check:
            self._needs_check = False
            try:
                async with self._checks.slots:
                    await self._check()
                failures = 0
            except Unavailable:
                failures += 1
                self._needs_check = True
                env = self._checks.env
                await env.clock.sleep(_BACKOFF.delay(failures, env.jitter), "stream_check_retry")
        self._is_checking = False

    async def _check(self) -> None:
        caller = self._caller
        actor = await credentials.check(self._checks.conn, caller.actor, caller.credential_id)
        if actor is None or not _is_same(actor, caller.actor):
            self._end()
            return
        self.actor = actor
        foreign = [read for read in self._reads if self._is_foreign(read)]
        if not foreign:
            return
        ids = list({read.chat_id for read in foreign})
        found = await chats.list_versions(self._checks.conn, actor, ids)
        for read in foreign:
            if read.chat_id not in found:
                read.lost()


def _is_same(now: UserActor, before: UserActor) -> bool:
    """With another role or other scopes the client connects again."""
    return (now.role, now.scopes) == (before.role, before.scopes)


log = logging.getLogger(__name__)

CONNECTION_LOST_ERRORS: Final = (OSError, RuntimeError)
"""Raised by a write after the client has gone; RuntimeError by a closed transport of the event
loop or of the server."""
END_WRITE_TIMEOUT_S: Final = 1.0
CLOSE_TIMEOUT_S: Final = 2.0


class StreamEnd(Struct, frozen=True):
    """Why a stream ended. `close_code` is for WebSockets."""

    code: str
    message: str
    close_code: int


CLIENT_GONE_END: Final = StreamEnd("client_gone", "The client disconnected.", 1000)
SERVER_STOPPING_END: Final = StreamEnd(
    "going_away", "The server is shutting down; connect again with the last version seen.", 1012
)
LAGGED_END: Final = StreamEnd(
    "lagged", "The client reads too slowly; connect again with the last version seen.", 1013
)
NOT_READING_END: Final = StreamEnd("not_reading", "The client does not read.", 1013)
SIGNED_OUT_END: Final = StreamEnd(
    "signed_out", "The credential or its user has changed or ended; connect again.", 1008
)
NOT_FOUND_END: Final = StreamEnd("not_found", "There is no such chat.", 1008)
_INTERNAL_END: Final = StreamEnd("internal", INTERNAL_ERROR_TEXT, 1011)


def end_for_error(error: ChatdError) -> StreamEnd:
    match error:
        case Lagged():
            return LAGGED_END
        case NotFound():
            return NOT_FOUND_END
        case AgentUnreachable() | AgentRefused():
            return StreamEnd(error.code, error.message, 1013)
        case Unavailable():
            text = "The database is not reachable; connect again in a moment."
            return StreamEnd(error.code, text, 1013)
        case _:
            return _INTERNAL_END


class ClientStream:
    """One connection to write to. The first call of `end` decides how it ends."""

    def __init__(
        self,
        send: Send,
        clock: Clock,
        limits: StreamLimits,
        caller: ApiCaller,
        checks: AccessChecks,
    ) -> None:
        self.access = StreamAccess(
            checks, caller, end=lambda: self.end(SIGNED_OUT_END), start=self._start_check
        )
        self._send = send
        self._direct = find_direct_write(getattr(send, "wrapped", send))
        self._expires_at = caller.expires_at
        self._clock = clock
        self._limits = limits
        self._writers = 0
        self._waiting_since = 0.0
        self._cut: asyncio.Timeout | None = None
        self._group: asyncio.TaskGroup | None = None
        self.ended: StreamEnd | None = None

    async def write(self, *messages: Message) -> None:
        """Waits while the client does not read. `watch` bounds the wait. Several messages begin
        the response."""
        if self._writers == 0:
            self._waiting_since = self._clock.monotonic()
        self._writers += 1
        try:
            if len(messages) == 1:
                await self._send(messages[0])
            else:
                await send_all(self._send, *messages)
        except CONNECTION_LOST_ERRORS:
            self.end(CLIENT_GONE_END)
        finally:
            self._writers -= 1
            self._waiting_since = self._clock.monotonic()

    def write_now(self, content: bytes) -> bool:
        """Write a piece without waiting. False if the connection cannot take it now: then `write`
        it."""
        if self._direct is None or self.ended is not None or self._writers > 0:
            return False
        return self._direct(content)

    def end(self, why: StreamEnd) -> None:
        if self.ended is None:
            self.ended = why
            if self._cut is not None:
                self._cut.reschedule(asyncio.get_running_loop().time())

    async def run(
        self, part: Callable[[], Awaitable[None]], *others: Callable[[], Awaitable[None]]
    ) -> StreamEnd:
        """Run all parts concurrently until one returns or raises, or `end` is called: the first in
        this task, the others in tasks of their own. The access of the stream is checked
        meanwhile."""
        try:
            async with asyncio.timeout(None) as self._cut:
                if self.ended is None:
                    async with asyncio.TaskGroup() as self._group:
                        for other in others:
                            self._group.create_task(self._run_part(other))
                        self.access.start_check()
                        await self._run_part(part)
        except TimeoutError:
            if self.ended is None:
                raise
        finally:
            self._cut = self._group = None
        return self.ended or CLIENT_GONE_END

    def _start_check(self) -> bool:
        if self._group is None or self.ended is not None:
            return False
        self._group.create_task(self._run_part(self.access.check, is_whole=False))
        return True

    async def _run_part(
        self, part: Callable[[], Awaitable[None]], *, is_whole: bool = True
    ) -> None:
        """`is_whole`: the stream ends with it."""
        try:
            await part()
        except ChatdError as error:
            self.end(end_for_error(error))
        except Exception:
            log.exception(
                LogEvent(event="stream_failed", explanation="a bug; the client reconnects")
            )
            self.end(_INTERNAL_END)
        else:
            if is_whole:
                self.end(CLIENT_GONE_END)

    async def watch(self, ping: Message | None = None) -> None:
        """Send pings, and end the stream if the client reads nothing for too long or its credential
        expires. Never returns."""
        interval_s = self._limits.write_timeout_s / 2
        idle_s = 0.0
        while True:
            await self._clock.sleep(interval_s, "stream_watch")
            idle_s += interval_s
            if self._is_stuck:
                self.end(NOT_READING_END)
            elif self._expires_at is not None and self._clock.now() >= self._expires_at:
                self.end(SIGNED_OUT_END)
            elif ping is not None and idle_s >= self._limits.ping_interval_s:
                idle_s = 0.0
                await self._write_ping(ping)

    @property
    def _is_stuck(self) -> bool:
        waited = self._clock.monotonic() - self._waiting_since
        return self._writers > 0 and waited > self._limits.write_timeout_s

    async def _write_ping(self, ping: Message) -> None:
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await self.write(ping)
        except TimeoutError:
            self.end(NOT_READING_END)

    async def send_end(self, message: Message) -> None:
        """The last message, unless the client no longer reads."""
        if self.ended in (CLIENT_GONE_END, NOT_READING_END):
            return
        with suppress(*CONNECTION_LOST_ERRORS, TimeoutError):
            async with asyncio.timeout(END_WRITE_TIMEOUT_S):
                await self._send(message)


class StreamRegistry:
    """All open streams of this replica, limited per user. A stream ends when this replica hears
    that its credential or user has changed: the client connects again if it still may. After other
    changes, and after a time in which this replica heard nothing, its access is checked."""

    def __init__(
        self,
        checks: AccessChecks,
        limits: StreamLimits,
        metrics: ApiMetrics,
        changes: ConfigChanges,
    ) -> None:
        self._checks = checks
        self._limits = limits
        self._metrics = metrics
        self._open: dict[ClientStream, ApiCaller] = {}
        self._by_user: Counter[UserId] = Counter()
        self._closed = False
        self._none_open = asyncio.Event()
        changes.subscribe(self._on_change)

    def require_room(self, caller: ApiCaller) -> None:
        """For a request that acts before it opens its stream. Raises Draining, TooManyStreams."""
        if self._closed:
            raise Draining(STOPPING_TEXT)
        limit = self._limits.streams_per_user
        if self._by_user[caller.user_id] >= limit:
            raise TooManyStreams(f"A user can have {limit} open streams. Close one first.")

    @contextmanager
    def open(self, caller: ApiCaller, transport: str, send: Send) -> Generator[ClientStream]:
        self.require_room(caller)
        user = caller.user_id
        clock = self._checks.env.clock
        stream = ClientStream(send, clock, self._limits, caller, self._checks)
        self._by_user[user] += 1
        self._open[stream] = caller
        self._metrics.on_stream_open(transport)
        try:
            yield stream
        finally:
            self._metrics.on_stream_end(transport, (stream.ended or CLIENT_GONE_END).code)
            del self._open[stream]
            self._by_user[user] -= 1
            if self._by_user[user] == 0:
                del self._by_user[user]
            if not self._open:
                self._none_open.set()

    async def close(self) -> None:
        """End all streams as the server stops, and wait briefly until the clients know."""
        self._closed = True
        for stream in tuple(self._open):
            stream.end(SERVER_STOPPING_END)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._open:
                    self._none_open.clear()
                    await self._none_open.wait()

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind not in ("user", "credential"):
            for stream in self._open:
                stream.access.on_change(change)
            return
        for stream, caller in self._open.items():
            changed = caller.user_id if change.kind == "user" else caller.credential_id
            if change.id in ("", str(changed)):
                stream.end(SIGNED_OUT_END)
