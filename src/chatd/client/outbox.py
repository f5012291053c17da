"""`Outbox`: messages on their way to the server.

Each has one Idempotency-Key and is tried until the server has accepted or refused it: it is never
lost and never runs twice. A chat's messages go one after the other; one that was refused holds up
those behind it until the user has decided. Messages are kept in memory only: a process that ends
tells its user before (`unsent`).
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from chatd.aio import Backoff, InterruptibleSleep
from chatd.client.connection import Connection
from chatd.client.drafts import Draft, PendingSend, SendProblem
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.followed_chat import call
from chatd.client.server import ServerApi, new_key
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId

MAX_UNSENT: Final = 50
MAX_SENT_KEPT: Final = 50
"""How many sent messages are kept. The events of their chats show them long before that."""


class OutboxFull(ChatdError):
    code = "outbox_full"

    def __init__(self) -> None:
        super().__init__(
            f"{MAX_UNSENT} messages are not sent yet. Wait until the server has taken one, or"
            " discard one."
        )


class SendDismissed(ChatdError):
    """The message was discarded before the server had it."""

    code = "send_dismissed"


class PendingSends:
    """The messages in the order in which they were sent. Every change is shown by the connection,
    at the chat of the message."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._items: dict[str, PendingSend] = {}
        self._created: dict[str, asyncio.Future[ChatId]] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def all(self) -> tuple[PendingSend, ...]:
        return tuple(self._items.values())

    @property
    def unsent(self) -> tuple[PendingSend, ...]:
        return tuple(item for item in self._items.values() if item.state != "sent")

    def find(self, key: str) -> PendingSend | None:
        return self._items.get(key)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def add(self, chat_id: ChatId | None, draft: Draft) -> PendingSend:
        """Raises OutboxFull."""
        if len(self.unsent) >= MAX_UNSENT:
            raise OutboxFull
        item = PendingSend(key=new_key(), chat_id=chat_id, draft=draft)
        self._items[item.key] = item
        self._expect(item)
        self._show(item)
        return item

    def change(self, item: PendingSend, **change: object) -> PendingSend:
        changed = replace(item, **change)
        if item.key in self._items:
            self._items[item.key] = changed
            self._show(changed)
        return changed

    def renew(self, item: PendingSend) -> PendingSend:
        """The same message in the same place, under another key."""
        again = replace(item, key=new_key(), state="waiting", failures=0, problem=None)
        renewed = (again if one.key == item.key else one for one in self._items.values())
        self._items = {one.key: one for one in renewed}
        self._created.pop(item.key, None)
        self._expect(again)
        self._show(again)
        return again

    def forget(self, item: PendingSend) -> None:
        self._items.pop(item.key, None)
        self.refuse(item, SendDismissed("The message was discarded."))
        self._created.pop(item.key, None)
        self._show(item)

    # New chats

    async def created(self, key: str) -> ChatId:
        """Wait for the new chat's id. Raises the error that `refuse` was given."""
        item, created = self._items.get(key), self._created.get(key)
        if item is not None and item.chat_id is not None:
            return item.chat_id
        if created is None:
            raise SendDismissed("The message was discarded.")
        return await asyncio.shield(created)

    def accept(self, item: PendingSend, chat_id: ChatId, version: int) -> None:
        self.change(item, state="sent", chat_id=chat_id, version=version, problem=None)
        if (created := self._created.pop(item.key, None)) is not None and not created.done():
            created.set_result(chat_id)
        sent = [one for one in self._items.values() if one.state == "sent"]
        for old in sent[: max(0, len(sent) - MAX_SENT_KEPT)]:
            self.forget(old)

    def refuse(self, item: PendingSend, error: ChatdError) -> None:
        """Fail the waits for the new chat."""
        created = self._created.get(item.key)
        if created is not None and not created.done():
            created.set_exception(error)
            # Nobody may be waiting; asyncio would log that.
            created.exception()

    def _expect(self, item: PendingSend) -> None:
        if item.chat_id is None:
            self._created[item.key] = asyncio.get_running_loop().create_future()

    def _show(self, item: PendingSend) -> None:
        if item.chat_id is not None:
            of_chat = tuple(one for one in self._items.values() if one.chat_id == item.chat_id)
            self._connection.show_pending(item.chat_id, of_chat)
        for listener in tuple(self._listeners):
            call(listener)


__all__ = ["Draft", "Outbox", "OutboxFull", "PendingSend", "SendDismissed"]

MAX_AGE_S: Final = 23 * 3600.0
"""The server remembers a key for 24 hours; after that a repeat would be a second message."""
MAX_SERVER_FAULTS: Final = 6
_UNREADABLE: Final = frozenset({"unexpected_reply", "reply_too_large"})
_BACKOFF: Final = Backoff(first_delay_s=1.0, max_delay_s=30.0)
_TOO_OLD: Final = SendProblem(
    code="too_old",
    message="It is not known whether this message arrived a day ago. Look at the chat, then send"
    " or discard it.",
)


class Outbox:
    """Sends while `run` runs."""

    def __init__(self, api: ServerApi, connection: Connection) -> None:
        self._api = api.without_patience()
        self._connection = connection
        self._clock = api.clock
        self._items = PendingSends(connection)
        self._first_tries: dict[str, tuple[float, float]] = {}
        self._lanes: dict[str, InterruptibleSleep] = {}
        self._group: asyncio.TaskGroup | None = None

    # What users do

    def send(self, chat_id: ChatId | None, draft: Draft) -> PendingSend:
        """`chat_id` None: to a new chat, which `created` waits for. Raises OutboxFull."""
        item = self._items.add(chat_id, draft)
        self._start(item)
        return item

    async def created(self, key: str) -> ChatId:
        """The id of the new chat, when the server has it. Raises ApiError if it was refused, and
        SendDismissed."""
        return await self._items.created(key)

    def dismiss(self, key: str) -> Draft | None:
        """A refused message, or one that waits, is not sent after all. Returns what it said; None
        if it cannot be held back any more."""
        item = self._items.find(key)
        if item is None or item.state in ("sending", "sent"):
            return None
        self._items.forget(item)
        self._first_tries.pop(key, None)
        self._start(item)
        return item.draft

    def retry(self, key: str) -> PendingSend | None:
        """Tries a refused message again. It gets a new key if the server has refused the old one,
        and keeps it if the server has accepted it but its reply could not be read."""
        item = self._items.find(key)
        if item is None or item.state != "refused":
            return None
        if item.problem is not None and item.problem.code in _UNREADABLE:
            again = self._items.change(item, state="waiting", failures=0, problem=None)
        else:
            again = self._items.renew(item)
            self._first_tries.pop(key, None)
        self._start(again)
        return again

    def retry_now(self) -> None:
        """The server is reachable: do not wait for the next try."""
        for pause in self._lanes.values():
            pause.wake()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Called when `new_chats` or `unsent` may have changed; the returned function stops it."""
        return self._items.on_change(listener)

    @property
    def new_chats(self) -> tuple[PendingSend, ...]:
        """First messages of chats that do not exist yet."""
        return tuple(item for item in self._items.unsent if item.chat_id is None)

    @property
    def unsent(self) -> tuple[PendingSend, ...]:
        """What would be lost if the process ended now."""
        return self._items.unsent

    # The owner task

    async def run(self) -> None:
        """Run until cancelled."""
        stop = self._connection.on_state(self._on_connection)
        try:
            async with asyncio.TaskGroup() as self._group:
                for item in self._items.unsent:
                    self._start(item)
                await asyncio.Event().wait()
        finally:
            self._group = None
            self._lanes.clear()
            stop()

    def _on_connection(self) -> None:
        if self._connection.state == "open":
            self.retry_now()

    def _start(self, item: PendingSend) -> None:
        """One task per chat with messages to send."""
        lane = _lane_of(item)
        if (pause := self._lanes.get(lane)) is not None:
            pause.wake()
        elif self._group is not None:
            self._lanes[lane] = InterruptibleSleep(self._clock)
            self._group.create_task(self._send_all(lane), name="outbox")

    async def _send_all(self, lane: str) -> None:
        try:
            while (item := self._next(lane)) is not None:
                delay_s = await self._try(item)
                if delay_s > 0:
                    await self._lanes[lane].sleep(delay_s, "client_outbox")
        finally:
            self._lanes.pop(lane, None)

    def _next(self, lane: str) -> PendingSend | None:
        """None if there is nothing to send, or a refused one is in front."""
        first = next((one for one in self._items.unsent if _lane_of(one) == lane), None)
        return None if first is None or first.state == "refused" else first

    async def _try(self, item: PendingSend) -> float:
        """Returns how long to wait before the next try."""
        if self._age_s(item) > MAX_AGE_S:
            self._refuse(item, _TOO_OLD)
            return 0.0
        sending = self._items.change(item, state="sending")
        try:
            await self._post(sending)
        except ServerUnreachable as error:
            return self._wait(sending, error, 0.0)
        except ApiError as error:
            is_fault = error.code == "internal" and item.failures + 1 >= MAX_SERVER_FAULTS
            if (error.is_temporary or error.is_signed_out) and not is_fault:
                return self._wait(sending, error, error.retry_after_s or 0.0)
            self._refuse(sending, SendProblem(code=error.code, message=error.message))
            self._items.refuse(sending, error)
            if error.code in _UNREADABLE:
                return 0.0
        self._first_tries.pop(item.key, None)
        return 0.0

    def _age_s(self, item: PendingSend) -> float:
        """Time since the first try. Monotonic time stands still while a laptop sleeps."""
        elapsed, now = self._clock.monotonic(), self._clock.now().timestamp()
        first = self._first_tries.setdefault(item.key, (elapsed, now))
        return max(elapsed - first[0], now - first[1])

    async def _post(self, item: PendingSend) -> None:
        if item.chat_id is None:
            made = await self._api.create_chat(item.draft, key=item.key)
            self._items.accept(item, made.id, made.version)
        else:
            sent = await self._api.send_message(item.chat_id, item.draft, key=item.key)
            self._items.accept(item, item.chat_id, sent.version)

    def _refuse(self, item: PendingSend, problem: SendProblem) -> None:
        self._items.change(item, state="refused", failures=item.failures + 1, problem=problem)

    def _wait(
        self, item: PendingSend, error: ApiError | ServerUnreachable, at_least_s: float
    ) -> float:
        failures = item.failures + 1
        problem = SendProblem(code=error.code, message=error.message)
        self._items.change(item, state="waiting", failures=failures, problem=problem)
        return max(_BACKOFF.delay(failures, random.random), at_least_s)


def _lane_of(item: PendingSend) -> str:
    return f"new:{item.key}" if item.chat_id is None else str(item.chat_id)
