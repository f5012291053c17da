"""What is said of file work that takes too long."""

import asyncio
import gc
import threading
import weakref
from contextlib import suppress

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.files.routes import WorkerThreads


async def test_work_that_has_begun_may_still_happen_and_that_is_said() -> None:
    threads = WorkerThreads(1, 0.05)
    go, done = threading.Event(), threading.Event()

    def slow() -> None:
        go.wait(30)
        done.set()

    try:
        with pytest.raises(AgentError, match="may still happen") as told:
            await threads.run(slow)
        assert (told.value.status, told.value.code) == (504, "disk_timeout")
        go.set()
        assert done.wait(30)
    finally:
        go.set()
        threads.close()


async def test_work_that_has_not_begun_never_happens_and_may_be_tried_again() -> None:
    """503: whoever keeps keys forgets this one, so that the same call can be made again."""
    threads = WorkerThreads(1, 0.05)
    go, last, happened = threading.Event(), threading.Event(), threading.Event()
    try:
        with pytest.raises(AgentError, match="may still happen"):
            await threads.run(lambda: go.wait(30))
        with pytest.raises(AgentError, match="Nothing was done") as told:
            await threads.run(happened.set)
        assert told.value.status == 503
        go.set()
        async with asyncio.timeout(30):
            while not last.is_set():
                with suppress(AgentError):
                    await threads.run(last.set)
        assert not happened.is_set()
    finally:
        go.set()
        threads.close()


async def test_what_was_called_off_is_not_kept_while_the_disk_does_not_answer() -> None:
    class Content:
        def write(self) -> None:
            raise AssertionError

    threads = WorkerThreads(1, 0.05)
    go = threading.Event()
    content = Content()
    kept = weakref.ref(content)
    try:
        with pytest.raises(AgentError, match="may still happen"):
            await threads.run(lambda: go.wait(30))
        with pytest.raises(AgentError, match="Nothing was done"):
            await threads.run(content.write)
        del content
        gc.collect()
        assert kept() is None
    finally:
        go.set()
        threads.close()
