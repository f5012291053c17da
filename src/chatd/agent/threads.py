"""Threads for blocking calls, and the clock of code that waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from chatd.agent.errors import AgentError

FILE_THREADS = 8
FILE_OPERATION_TIMEOUT_S = 25.0
_START_TIMEOUT_S = 30.0

T = TypeVar("T")


class AgentClock(Protocol):
    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float, tag: str) -> None: ...


class AgentSystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float, tag: str) -> None:
        del tag
        await asyncio.sleep(seconds)


class ThreadRunner(Protocol):
    """Runs blocking work; `WorkerThreads` outside of tests."""

    def run(self, work: Callable[[], T]) -> Awaitable[T]: ...


def start_pool(workers: int, name: str) -> ThreadPoolExecutor:
    """A pool with all its threads running. Raises RuntimeError if they cannot be started.

    A pool that starts threads on demand fails once a command has used up the workspace's
    processes, and the refused work stays in its queue and runs later.
    """
    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)
    # Each thread waits at the barrier, so that none runs the work item of another.
    started = threading.Barrier(workers + 1)
    for _ in range(workers):
        pool.submit(started.wait, _START_TIMEOUT_S)
    started.wait(_START_TIMEOUT_S)
    return pool


class WorkerThreads:
    """A few threads for blocking work, with a timeout. A thread that hangs is lost to the pool."""

    def __init__(
        self, count: int = FILE_THREADS, timeout_s: float = FILE_OPERATION_TIMEOUT_S
    ) -> None:
        self._executor = start_pool(count, "files")
        self._timeout_s = timeout_s

    async def run(self, work: Callable[[], T]) -> T:
        """Raises AgentError: 503 if the work was never started, 504 if it may still finish."""
        item = _WorkItem(work)
        submitted = self._executor.submit(item)
        future = asyncio.wrap_future(submitted)
        done, _ = await asyncio.wait({future}, timeout=self._timeout_s)
        if done:
            return future.result()
        if submitted.cancel():
            item.drop()
            raise AgentError(
                503,
                "The workspace's disk is busy. Nothing was done; try again later.",
                code="disk_busy",
            )
        future.cancel()
        raise AgentError(
            504,
            f"The workspace's disk did not answer within {self._timeout_s:g} seconds. The "
            "operation may still happen: check the files before you repeat it.",
            code="disk_timeout",
        )

    def close(self) -> None:
        self._executor.shutdown(wait=False)


class _WorkItem(Generic[T]):
    """Work that can be dropped. A pool keeps cancelled items until a thread is free, which may be
    never; a dropped item does not keep a file's content in memory."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work

    def __call__(self) -> T:
        work = self._work
        assert work is not None
        self.drop()
        return work()

    def drop(self) -> None:
        self._work = None
