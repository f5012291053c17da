"""Asynchronous work: waits that end early, retries, tasks that fail without harm, periodic work."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from msgspec import Struct

from chatd.domain.errors import Unavailable
from chatd.domain.ports import Clock, Env

T = TypeVar("T")


# Waits that end early


class InterruptibleSleep:
    """For loops that sleep between two rounds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = asyncio.Event()

    def wake(self) -> None:
        """End the current sleep; if there is none, the next one returns at once."""
        self._over.set()

    async def sleep(self, seconds: float, tag: str) -> None:
        if not self._over.is_set():
            await first_of(self._clock.sleep(seconds, tag), self._over.wait())
        self._over.clear()


async def first_of(*waits: Coroutine[object, None, object]) -> int:
    """Run all of them until one ends, cancel the others, and return the index of that one.

    Raises what that one raised. For plain waits only (a sleep, an event): the others are cancelled
    and not awaited.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    first = next(number for number, task in enumerate(tasks) if task.done())
    tasks[first].result()
    return first


# Retries while the database is unavailable: growing delays, spread out and bounded


class Backoff(Struct, frozen=True, kw_only=True):
    """Delays double, up to a bound. Randomness keeps replicas that lost the same database from
    reconnecting at the same moment."""

    first_delay_s: float = 0.05
    max_delay_s: float = 1.0

    def delay(self, failures: int, draw: Callable[[], float] = lambda: 1.0) -> float:
        """The delay after that many failures in a row; `draw` returns a number in [0, 1].
        Without it there is no randomness."""
        grown = self.first_delay_s * 2 ** min(failures - 1, 16)
        return min(grown, self.max_delay_s) * (0.5 + draw() / 2)


UNAVAILABLE_RETRY_BUDGET_S: Final = 2.0
_REQUEST_BACKOFF: Final = Backoff(max_delay_s=UNAVAILABLE_RETRY_BUDGET_S)


async def retry_unavailable(
    clock: Clock,
    attempt: Callable[[], Awaitable[T]],
    *,
    tag: str = "request_retry",
    delay: Callable[[int], float] = _REQUEST_BACKOFF.delay,
    budget_s: float | None = UNAVAILABLE_RETRY_BUDGET_S,
    on_failure: Callable[[Unavailable, int], None] | None = None,
    codes: Collection[str] | None = None,
) -> T:
    """Repeat `attempt` while it raises Unavailable, with `codes` only one of these; raise the last
    one when the budget is spent.

    Every attempt of a write must carry the same change id: a write that was applied although its
    reply was lost is then found and not repeated. `budget_s` bounds the start of an attempt (None:
    no bound); the database's own timeouts bound its length. `on_failure` receives the error and
    the number of failures so far.
    """
    started, failures = clock.monotonic(), 0
    while True:
        try:
            return await attempt()
        except Unavailable as error:
            if codes is not None and error.code not in codes:
                raise
            failures += 1
            wait_s = delay(failures)
            if budget_s is not None and clock.monotonic() + wait_s > started + budget_s:
                raise
            if on_failure is not None:
                on_failure(error, failures)
        await clock.sleep(wait_s, tag)


# Tasks that fail or ignore cancellation without harm to their owner

CANCEL_GRACE_S: Final = 2.0
SHUTDOWN_CANCEL_GRACE_S: Final = 0.5


async def run_contained(work: Awaitable[object], on_error: Callable[[Exception], None]) -> bool:
    """Whether the work succeeded; if not, `on_error` got the exception. Cancellation passes."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the one place that contains every failure
        on_error(error)
        return False
    return True


class TaskReaper:
    """Cancels tasks that may ignore cancellation. A tool may run third-party code that never
    returns: wait for a bounded grace period, then keep a reference to the task until it ends.
    The fence refuses any write it still makes."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._tasks: set[asyncio.Task[Any]] = set()
        self._grace_s = CANCEL_GRACE_S

    def __len__(self) -> int:
        """The number of cancelled tasks that have not ended."""
        return len(self._tasks)

    def shorten_grace(self) -> None:
        """The process is about to end."""
        self._grace_s = SHUTDOWN_CANCEL_GRACE_S

    async def stop(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task and wait for the grace period, unless the caller is cancelled too."""
        if task.done():
            _retrieve_exception(task)
            return
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        task.cancel()
        await asyncio.wait({task}, timeout=self._grace_s)
        if not task.done():
            self._env.emit("task_not_cancelled", task=task.get_name(), count=len(self._tasks))

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _retrieve_exception(task)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """asyncio logs an exception that is never retrieved."""
    if not task.cancelled():
        task.exception()


# Background work of a replica: periodic tasks, and tasks submitted once. None of it can end the
# replica. A shutdown cancels it; another replica, or a later run, does the rest.

MAX_SUBMITTED_TASKS: Final = 32


class PeriodicTask(Struct, frozen=True, kw_only=True):
    """Runs at start, and again `interval_s` after each end."""

    name: str
    interval_s: float
    work: Callable[[], Awaitable[None]]


class BackgroundTasks:
    """Accepts submitted tasks only while `run` runs."""

    def __init__(
        self,
        env: Env,
        periodic: Sequence[PeriodicTask] = (),
        *,
        max_submitted: int = MAX_SUBMITTED_TASKS,
    ) -> None:
        self._env = env
        self._periodic = periodic
        self._max_submitted = max_submitted
        self._submitted = 0
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            for task in self._periodic:
                group.create_task(self._repeat(task), name=f"periodic {task.name}")
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    def submit(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> bool:
        """Run it once in the background. False if too many are running."""
        if self._group is None or self._submitted >= self._max_submitted:
            self._env.emit("background_task_refused", task=name)
            return False
        self._submitted += 1
        self._group.create_task(self._run_once(name, work), name=f"background {name}")
        return True

    async def _run_once(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await run_contained(work(), lambda error: self._on_failed(name, error))
        finally:
            self._submitted -= 1
            self._env.emit("background_task_done", task=name)

    async def _repeat(self, task: PeriodicTask) -> None:
        while True:
            if await run_contained(task.work(), lambda error: self._on_failed(task.name, error)):
                self._env.emit("periodic_task_done", task=task.name)
            await self._env.clock.sleep(task.interval_s, f"periodic_{task.name}")

    def _on_failed(self, name: str, error: Exception) -> None:
        kind = getattr(error, "code", type(error).__name__)
        self._env.emit("periodic_task_failed", task=name, error_kind=kind, error=error)


async def run_other_tasks() -> None:
    """Let the other tasks of the loop run once. No time passes, so this needs no clock."""
    await asyncio.sleep(0)  # noqa: TID251


# The request of a model call


class RequestMark:
    """Whether the request of a model call has left this process. `is_sent` is None if the provider
    does not tell: then it may have. `before_send` runs once, when the request has its connection
    and nothing of it has been written."""

    def __init__(self, before_send: Callable[[], Awaitable[None]] | None = None) -> None:
        self.is_sent: bool | None = None
        self._before_send = before_send

    async def send(self) -> None:
        before, self._before_send = self._before_send, None
        if before is not None:
            await before()
        self.is_sent = True


REQUEST_MARK: Final[ContextVar[RequestMark | None]] = ContextVar("request_mark", default=None)
"""Of the call that the task makes. It passes through every adapter to the HTTP session below."""
