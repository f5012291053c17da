"""`Outbox`: messages on their way to the server.

Each has one Idempotency-Key and is tried until the server has accepted or refused it: it is never
lost and never runs twice. A chat's messages go one after the other; one that was refused holds up
those behind it until the user has decided. Messages are kept in memory only: a process that ends
says so to its user before (`unsent`).
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from chatd.aio import Backoff, InterruptibleSleep
from chatd.client.connection import Connection
from chatd.client.drafts import (
    Draft,
    PendingSend,
    SendProblem,
    create_body,
    send_body,
)
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.followed_chat import call
from chatd.client.resources import Chat, Sent
from chatd.client.server import ServerApi, new_key
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId

__all__ = ["Draft", "Outbox", "OutboxFull", "PendingSend"]

MAX_UNSENT: Final = 50
MAX_SENT_KEPT: Final = 50
"""The events of their chats show them long before."""
MAX_AGE_S: Final = 23 * 3600.0
"""The server remembers a key for 24 hours; after that a repeat would be a second message."""
MAX_SERVER_FAULTS: Final = 6
_BACKOFF: Final = Backoff(first_delay_s=1.0, max_delay_s=30.0)
_TOO_OLD: Final = SendProblem(
    code="too_old",
    message="It is not known whether this message arrived a day ago. Look at the chat, then send"
    " or discard it.",
)


class OutboxFull(ChatdError):
    code = "outbox_full"

    def __init__(self) -> None:
        super().__init__(
            f"{MAX_UNSENT} messages are not sent yet. Wait until the server has taken one, or"
            " discard one."
        )


class Outbox:
    """Sends while `run` runs."""

    def __init__(self, api: ServerApi, connection: Connection) -> None:
        self._api = api.without_patience()
        self._connection = connection
        self._clock = api.clock
        self._items: dict[str, PendingSend] = {}
        self._since: dict[str, float] = {}
        self._lanes: dict[str, InterruptibleSleep] = {}
        self._created: dict[str, asyncio.Future[ChatId]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._group: asyncio.TaskGroup | None = None

    # What users do

    def send(self, chat_id: ChatId | None, draft: Draft) -> PendingSend:
        """None: to a new chat; `created` waits for it. Raises OutboxFull."""
        if len(self.unsent) >= MAX_UNSENT:
            raise OutboxFull
        return self._add(chat_id, draft)

    async def created(self, key: str) -> ChatId:
        """The id of the new chat, when the server has it. Raises ApiError if it was refused."""
        return await asyncio.shield(self._created[key])

    def dismiss(self, key: str) -> Draft | None:
        """A refused message, or one that waits, is not sent after all. Returns what it said."""
        item = self._items.get(key)
        if item is None or item.state in ("sending", "sent"):
            return None
        self._forget(item)
        self._wake(item)
        return item.draft

    def retry(self, key: str) -> PendingSend | None:
        """Tries a refused message again. It gets a new key: the server has answered the old one."""
        item = self._items.get(key)
        if item is None or item.state != "refused":
            return None
        again = replace(item, key=new_key(), state="waiting", failures=0, problem=None)
        self._items = {
            new.key: new
            for old in self._items.values()
            for new in (again if old.key == key else old,)
        }
        self._since.pop(key, None)
        if self._created.pop(key, None) is not None:
            self._created[again.key] = asyncio.get_running_loop().create_future()
        self._show(again)
        self._start(again)
        return again

    def retry_now(self) -> None:
        """The server is there: do not wait for the next try."""
        for lane in self._lanes.values():
            lane.wake()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Called when `new_chats` or `unsent` may have changed; returns how to stop it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def new_chats(self) -> tuple[PendingSend, ...]:
        """First messages of chats that do not exist yet."""
        return tuple(item for item in self._items.values() if item.chat_id is None)

    @property
    def unsent(self) -> tuple[PendingSend, ...]:
        """What would be lost if the process ended now."""
        return tuple(item for item in self._items.values() if item.state != "sent")

    # The owner task

    async def run(self) -> None:
        """Until it is cancelled."""
        stop = self._connection.on_state(self._on_connection)
        try:
            async with asyncio.TaskGroup() as self._group:
                for item in tuple(self._items.values()):
                    self._start(item)
                await asyncio.Event().wait()
        finally:
            self._group = None
            self._lanes.clear()
            stop()

    def _on_connection(self) -> None:
        if self._connection.state == "open":
            self.retry_now()

    def _add(self, chat_id: ChatId | None, draft: Draft) -> PendingSend:
        item = PendingSend(key=new_key(), chat_id=chat_id, draft=draft)
        self._items[item.key] = item
        if chat_id is None:
            self._created[item.key] = asyncio.get_running_loop().create_future()
        self._show(item)
        self._start(item)
        return item

    def _start(self, item: PendingSend) -> None:
        """One task per chat with messages to send."""
        lane = _lane_of(item)
        if self._group is None:
            return
        if lane in self._lanes:
            self._lanes[lane].wake()
            return
        self._lanes[lane] = InterruptibleSleep(self._clock)
        self._group.create_task(self._send_all(lane), name="outbox")

    async def _send_all(self, lane: str) -> None:
        try:
            while (item := self._next(lane)) is not None:
                await self._try(item, self._lanes[lane])
        finally:
            self._lanes.pop(lane, None)

    def _next(self, lane: str) -> PendingSend | None:
        """None if there is nothing to send, or a refused one is in front."""
        waiting = (one for one in self.unsent if _lane_of(one) == lane)
        first = next(waiting, None)
        return None if first is None or first.state == "refused" else first

    async def _try(self, item: PendingSend, pause: InterruptibleSleep) -> None:
        since = self._since.setdefault(item.key, self._clock.monotonic())
        if item.failures > 0 and self._clock.monotonic() - since > MAX_AGE_S:
            self._change(item, state="refused", problem=_TOO_OLD)
            return
        sending = self._change(item, state="sending")
        try:
            await self._post(sending)
        except ApiError as error:
            await self._on_refused(sending, error, pause)
        except ServerUnreachable as error:
            await self._on_failed(sending, error, pause)

    async def _post(self, item: PendingSend) -> None:
        if item.chat_id is None:
            made = await self._api.post("/chats", create_body(item.draft), Chat, key=item.key)
            self._on_accepted(item, made.id, made.version)
        else:
            path = f"/chats/{item.chat_id}/messages"
            sent = await self._api.post(path, send_body(item.draft), Sent, key=item.key)
            self._on_accepted(item, item.chat_id, sent.version)

    def _on_accepted(self, item: PendingSend, chat_id: ChatId, version: int) -> None:
        self._since.pop(item.key, None)
        self._change(item, state="sent", chat_id=chat_id, version=version, problem=None)
        if (created := self._created.pop(item.key, None)) is not None and not created.done():
            created.set_result(chat_id)
        sent = [one for one in self._items.values() if one.state == "sent"]
        for old in sent[: max(0, len(sent) - MAX_SENT_KEPT)]:
            self._forget(old)

    async def _on_refused(
        self, item: PendingSend, error: ApiError, pause: InterruptibleSleep
    ) -> None:
        is_fault = error.code == "internal" and item.failures + 1 >= MAX_SERVER_FAULTS
        if (error.is_temporary or error.is_signed_out) and not is_fault:
            await self._on_failed(item, error, pause)
            return
        problem = SendProblem(code=error.code, message=error.message)
        self._change(item, state="refused", failures=item.failures + 1, problem=problem)
        if (created := self._created.get(item.key)) is not None and not created.done():
            created.set_exception(error)
            created.exception()

    async def _on_failed(
        self, item: PendingSend, error: ApiError | ServerUnreachable, pause: InterruptibleSleep
    ) -> None:
        problem = SendProblem(code=error.code, message=error.message)
        waiting = self._change(item, state="waiting", failures=item.failures + 1, problem=problem)
        wait_s = (error.retry_after_s or 0.0) if isinstance(error, ApiError) else 0.0
        delay_s = max(_BACKOFF.delay(waiting.failures, random.random), wait_s)
        await pause.sleep(delay_s, "client_outbox")

    def _wake(self, item: PendingSend) -> None:
        if (pause := self._lanes.get(_lane_of(item))) is not None:
            pause.wake()
        else:
            self._start(item)

    def _change(self, item: PendingSend, **change: object) -> PendingSend:
        changed = replace(item, **change)
        if item.key in self._items:
            self._items[item.key] = changed
            self._show(changed)
        return changed

    def _forget(self, item: PendingSend) -> None:
        self._items.pop(item.key, None)
        self._since.pop(item.key, None)
        if (created := self._created.pop(item.key, None)) is not None:
            created.cancel()
        self._show(item)

    def _show(self, item: PendingSend) -> None:
        if item.chat_id is not None:
            of_chat = tuple(one for one in self._items.values() if one.chat_id == item.chat_id)
            self._connection.show_pending(item.chat_id, of_chat)
        for listener in tuple(self._listeners):
            call(listener)


def _lane_of(item: PendingSend) -> str:
    return f"new:{item.key}" if item.chat_id is None else str(item.chat_id)
