"""Blocking work that exceeds its timeout."""

import asyncio
import gc
import threading
import weakref
from contextlib import suppress

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.files.file_routes import WorkerThreads


async def test_started_work_over_the_timeout_may_still_happen() -> None:
    threads = WorkerThreads(1, 0.05)
    released, done = threading.Event(), threading.Event()

    def slow() -> None:
        released.wait(30)
        done.set()

    try:
        with pytest.raises(AgentError, match="may still happen") as raised:
            await threads.run(slow)
        assert (raised.value.status, raised.value.code) == (504, "disk_timeout")
        released.set()
        assert done.wait(30)
    finally:
        released.set()
        threads.close()


async def test_queued_work_over_the_timeout_never_happens() -> None:
    """The status 503 lets the journal drop the key, so that the request can be repeated."""
    threads = WorkerThreads(1, 0.05)
    released, last, has_run = threading.Event(), threading.Event(), threading.Event()
    try:
        with pytest.raises(AgentError, match="may still happen"):
            await threads.run(lambda: released.wait(30))
        with pytest.raises(AgentError, match="Nothing was done") as raised:
            await threads.run(has_run.set)
        assert raised.value.status == 503
        released.set()
        async with asyncio.timeout(30):
            while not last.is_set():
                with suppress(AgentError):
                    await threads.run(last.set)
        assert not has_run.is_set()
    finally:
        released.set()
        threads.close()


async def test_cancelled_work_is_not_kept_in_memory() -> None:
    class Content:
        def write(self) -> None:
            raise AssertionError

    threads = WorkerThreads(1, 0.05)
    released = threading.Event()
    content = Content()
    kept = weakref.ref(content)
    try:
        with pytest.raises(AgentError, match="may still happen"):
            await threads.run(lambda: released.wait(30))
        with pytest.raises(AgentError, match="Nothing was done"):
            await threads.run(content.write)
        del content
        gc.collect()
        assert kept() is None
    finally:
        released.set()
        threads.close()
