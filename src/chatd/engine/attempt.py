"""One task of a runner: what it works on, what it has heard so far, and its right to write.

A task that is told to stop may not listen. So the right to write is its own and ends with it:
whatever a task does after its end touches neither the row nor the runner that goes on.

A chat as its runner holds it between steps: the row, and the history it was read with.

History is read once; every commit of our own adds what it has written, and
only a row with another history makes it be read again.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from chatd.domain.chat import Chat
from chatd.domain.errors import StaleFence
from chatd.domain.ids import WorkerId
from chatd.domain.messages import Draft, Message, UsageEntry
from chatd.domain.ports import Clock
from chatd.domain.react import RunnerView
from chatd.parts.pause import Pause
from chatd.store import messages
from chatd.store.conn import Conn
from chatd.store.transact import Applied


class Work:
    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self._history: list[Message] = []
        self._history_version: int | None = None

    @property
    def history(self) -> Sequence[Message]:
        return self._history

    async def load(self, conn: Conn) -> None:
        if self._history_version == self.chat.history_version:
            return
        self._history = await messages.history(conn, self.chat.id)
        self._history_version = self.chat.history_version

    def begun_with(self, created: Sequence[Message]) -> None:
        """A new chat's history is what has just been written: nothing to read."""
        self._history = list(created)
        self._history_version = self.chat.history_version

    def moved(self, chat: Chat) -> None:
        """The row is newer; whether the history is, its version says."""
        self.chat = chat

    def committed(self, applied: Applied) -> None:
        """Our own write, on top of the history we hold."""
        known = self._history_version == self.chat.history_version and not applied.replayed
        self.chat = applied.chat
        if known and not applied.forgotten:
            self._history.extend(applied.messages)
            self._history_version = applied.chat.history_version


class Heard(Protocol):
    """What an action has so far: a stop keeps it."""

    def so_far(self, at: str) -> tuple[Draft, ...]: ...
    def paid(self) -> tuple[UsageEntry, ...]: ...


class Bill(Struct, frozen=True, kw_only=True):
    """Satisfies `Heard`: of a call that has failed nothing is kept but what it cost."""

    usage: tuple[UsageEntry, ...]

    def so_far(self, at: str) -> tuple[Draft, ...]:
        del at
        return ()

    def paid(self) -> tuple[UsageEntry, ...]:
        return self.usage


class Job:
    """`before` is what the task before it had heard of this same history. `first`: this runner
    had no task before, so whatever was said until now was said to another worker."""

    def __init__(
        self, work: Work, me: WorkerId, view: RunnerView, clock: Clock, news: asyncio.Event
    ) -> None:
        self.work = work
        self.me = me
        self.view = view
        self.before: Heard | None = None
        self.first = True
        self._heard: tuple[int, Heard] | None = None
        self.pause_s = 0.0
        self.stopping = False
        self._news = news
        self._pause = Pause(clock)
        self._over = False

    @property
    def chat(self) -> Chat:
        return self.work.chat

    def hears(self, heard: Heard) -> None:
        """From now on this is what a stop would keep."""
        self._heard = (self.chat.history_version, heard)

    def owes(self, usage: tuple[UsageEntry, ...]) -> None:
        """What was heard is for nobody; it is to be paid for all the same, if only by the stop
        that comes before our own commit."""
        self.hears(Bill(usage=usage))

    def owed(self) -> tuple[UsageEntry, ...]:
        """What no commit has paid for."""
        heard = self.before if self._heard is None else self._heard[1]
        return () if heard is None else heard.paid()

    def forget(self) -> None:
        """It is in history and in the books now."""
        self._heard = self.before = None

    def heard_of(self, history_version: int) -> Heard | None:
        """What was heard since that history, if anything; what was left to us included."""
        if self._heard is None:
            return self.before
        version, heard = self._heard
        return heard if version == history_version else None

    def stop_after_step(self) -> None:
        """The worker is leaving: finish the step under way, then let go. Nobody waits out a
        pause for that."""
        self.stopping = True
        self._pause.cut()

    async def rest(self) -> None:
        """The wait before the next attempt, if there is one."""
        pause_s, self.pause_s = self.pause_s, 0.0
        if pause_s and not self.stopping:
            await self._pause.sleep(pause_s, "retry_backoff")

    def goes_on(self) -> bool:
        """Whether the chat is still ours to run."""
        return self.chat.worker_id == self.me and self.chat.status == "running"

    # The right to write

    def end(self) -> None:
        self._over = True

    def check(self) -> None:
        if self._over:
            raise StaleFence(f"Chat {self.chat.id}: this task is over.")

    def writing(self) -> None:
        self.check()
        self.view = self.view.committing()

    def wrote(self, chat: Chat | None) -> None:
        """Our write landed and made this row; None if it did not, or nobody can say."""
        self.view = self.view.refused() if chat is None else self.view.after(chat)
        self._news.set()
