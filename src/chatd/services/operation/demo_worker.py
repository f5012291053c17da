"""A worker process for the demo, which may be killed to see that another worker goes on.

While it runs, the worker of this process takes no new chats, so the other process has them. Its
death is a real one, by SIGKILL. This replica notices it and takes the chats over as it would those
of any worker.
"""

import asyncio
import ctypes
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from chatd.aio import first_of
from chatd.domain.errors import Conflict, Unavailable
from chatd.domain.ports import Clock
from chatd.log_event import LogEvent
from chatd.settings.schema import Settings

log = logging.getLogger(__name__)

READY_LINE: Final = "Ctrl-C stops."
"""The last line that `chatd serve` and `chatd worker` print once they run."""
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
LIFETIME_S: Final = 900.0
"""After so long without a new start the process is stopped: the demo is no longer in use."""
_COMMAND: Final = (sys.executable, "-c", "from chatd.cli.main import main; main()", "worker")
_PR_SET_PDEATHSIG: Final = 1


class PausableWorker(Protocol):
    def pause(self) -> None:
        """Take no new chats."""
        ...

    def unpause(self) -> None: ...


class DemoWorker:
    """`own` is the worker of this process. `is_wanted` tells whether the demo may be shown here.
    Works only while `run` runs."""

    def __init__(
        self,
        env: Mapping[str, str],
        clock: Clock,
        *,
        own: PausableWorker,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        self._env = env
        self._clock = clock
        self._own = own
        self._is_wanted = is_wanted
        self._asked = asyncio.Event()
        self._settled = asyncio.Event()
        self._process: Process | None = None

    async def is_available(self) -> bool:
        return await self._is_wanted()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    async def start(self) -> None:
        """Returns when it runs. Raises Conflict, Unavailable."""
        await self._require_wanted()
        if self._process is not None:
            return
        self._settled.clear()
        self._asked.set()
        await self._settled.wait()
        if self._process is None:
            raise Unavailable("The worker process did not start: see the log of the server.")

    async def kill(self) -> None:
        """Returns when it is dead. Raises Conflict."""
        await self._require_wanted()
        process = self._process
        if process is None:
            raise Conflict("There is no worker process to kill.", code="no_demo_worker")
        process.kill()
        await process.wait()

    async def run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self._run_process()
            except (OSError, ValueError) as error:  # no such program, or a line without an end
                log.error(LogEvent(event="demo_worker_failed", explanation=str(error)))
            finally:
                self._process = None
                self._own.unpause()
                self._settled.set()

    async def _run_process(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            env=self._env,
            stdout=PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        try:
            if not await self._is_ready(process):
                return
            self._own.pause()
            self._process = process
            self._settled.set()
            await first_of(process.wait(), self._clock.sleep(LIFETIME_S, "demo_worker"))
        finally:
            self._process = None
            await _stop(process)

    async def _is_ready(self, process: Process) -> bool:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                async for line in process.stdout:
                    if line.decode(errors="replace").strip() == READY_LINE:
                        return True
        except TimeoutError:
            return False
        return False

    async def _require_wanted(self) -> None:
        if not await self._is_wanted():
            raise Conflict(
                "The worker can be killed only in the demo: on this machine, while the demo model"
                " is the default.",
                code="not_in_demo",
            )


async def _stop(process: Process) -> None:
    """It gives its chats back, unless it was killed."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()


def _die_with_parent() -> None:
    """Called in the child: without its server the demo is over."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def worker_environment(settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """So that it works on the same data, whatever flags this process was given."""
    found = {**env, "CHATD_DATA_DIR": str(settings.data_dir), "CHATD_SERVER_OPEN_BROWSER": "false"}
    if settings.database.url is not None:
        found["CHATD_DATABASE_URL"] = settings.database.url
    return found
