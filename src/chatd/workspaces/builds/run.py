"""One build from its acquisition to its result: calls the backend within limits and describes
failures. The build worker renews the lease and writes the result.

The backend's log lines are kept in bounded memory and written in batches: a line never waits for
the database and never fails.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import AgentSpec, LogLevel, TemplateSpec
from chatd.store.conn import Conn
from chatd.store.workspace import build_leases
from chatd.store.workspace.build_leases import AcquiredBuild, BuildLease, BuildResult
from chatd.workspaces.builds.backend import Backend, BuildCancelled, BuildContext

MAX_LOG_LINES: Final = 5000
MAX_LOG_BYTES: Final = 1024 * 1024
MAX_LOG_LINE_CHARS: Final = 4000
LOG_FLUSH_LINES: Final = 200


class BuildLogBuffer:
    """Satisfies `backend.LogSink`. Clips long lines and drops lines beyond its limits."""

    def __init__(self, lease: build_leases.BuildLease) -> None:
        self._lease = lease
        self._waiting: deque[build_leases.BuildLogLine] = deque()
        self._writing = asyncio.Lock()
        self._lines = 0
        self._bytes = 0
        self._full = False

    def __call__(self, stage: str, level: LogLevel, text: str) -> None:
        for line in text.splitlines() or [""]:
            if self._full:
                return
            cut = line if len(line) <= MAX_LOG_LINE_CHARS else f"{line[:MAX_LOG_LINE_CHARS]} [cut]"
            self._lines += 1
            self._bytes += len(cut.encode(errors="replace"))
            self._full = self._lines > MAX_LOG_LINES or self._bytes > MAX_LOG_BYTES
            if self._full:
                level, cut = "warning", "The log is full; later lines are dropped."
            self._waiting.append(
                build_leases.BuildLogLine(stage=stage[:100], level=level, output=cut)
            )

    async def flush(self, conn: Conn) -> None:
        """Lines that cannot be written stay for the next flush."""
        async with self._writing:
            while self._waiting:
                batch = [
                    self._waiting[at] for at in range(min(LOG_FLUSH_LINES, len(self._waiting)))
                ]
                await build_leases.append_log(conn, self._lease, batch)
                for _ in batch:
                    self._waiting.popleft()


class BuildLimits(Struct, frozen=True, kw_only=True):
    timeout_s: float = 600
    """For the whole build, over all workers that ran it."""
    cancel_request_grace_s: float = 10
    """From a cancel request to the cancellation of the backend's task."""
    cancel_grace_s: float = 2
    """How long a cancelled task is awaited; after that it is left running."""
    max_attempts: int = 6
    """Ends a build that crashes its worker each time."""


class BuildRun:
    """The worker sets `lost` when another worker owns the build."""

    def __init__(
        self,
        acquired: AcquiredBuild,
        lease: BuildLease,
        backend: Backend,
        env: Env,
        *,
        acquired_at: float,
    ) -> None:
        self.lease = lease
        self.renewed_at = acquired_at
        self.lost = asyncio.Event()
        self.log = BuildLogBuffer(lease)
        self.context = BuildContext(
            workspace=acquired.workspace,
            build=acquired.build,
            spec=acquired.spec or TemplateSpec(),
            params=acquired.build.params,
            log=self.log,
        )
        self._acquired = acquired
        self._backend = backend
        self._env = env
        self._work: asyncio.Task[Sequence[AgentSpec]] | None = None

    @property
    def is_running(self) -> bool:
        """True while the backend's task has not ended, even if it was cancelled."""
        return self._work is not None and not self._work.done()

    async def wait_stopped(self, timeout_s: float) -> None:
        """Wait for a cancelled backend."""
        if self._work is not None and not self._work.done():
            await asyncio.wait({self._work}, timeout=timeout_s)

    async def run(self, limits: BuildLimits) -> BuildResult | None:
        """None if the lease was lost."""
        build = self._acquired.build
        if build.status == "canceling":
            return BuildResult(status="canceled")
        if build.attempt > limits.max_attempts:
            text = f"The build was started {build.attempt - 1} times and never ended."
            return BuildResult(status="failed", error=text, error_code="build_abandoned")
        if self._acquired.spec is None and build.transition == "start":
            text = "This server cannot read the template's version: a newer server wrote it."
            return BuildResult(status="failed", error=text, error_code="template_unreadable")
        left_s = limits.timeout_s - self._acquired.age_s
        if left_s <= 0:
            return _timeout_result(limits)
        return await self._run_limited(limits, left_s)

    async def _run_limited(self, bounds: BuildLimits, left_s: float) -> BuildResult | None:
        loop = asyncio.get_running_loop()
        work = self._work = loop.create_task(self._call_backend(), name=f"build {self.lease.id}")
        late = loop.create_task(self._env.clock.sleep(left_s, "build_limit"))
        stop = loop.create_task(self._cancel_requested(bounds.cancel_request_grace_s))
        lost = loop.create_task(self.lost.wait())
        try:
            await asyncio.wait({work, late, stop, lost}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return self._result(work)
            await self._stop(work, bounds)
            if lost.done():
                return None
            # The backend may have finished just before it was cancelled.
            if work.done() and not work.cancelled() and work.exception() is None:
                return self._result(work)
            return _timeout_result(bounds) if late.done() else BuildResult(status="canceled")
        finally:
            for guard in (late, stop, lost):
                guard.cancel()
            if not work.done():
                self._cancel(work)
            work.add_done_callback(_retrieve_exception)

    async def _call_backend(self) -> Sequence[AgentSpec]:
        match self._acquired.build.transition:
            case "start":
                return await self._backend.start(self.context)
            case "stop":
                await self._backend.stop(self.context)
            case "delete":
                await self._backend.delete(self.context)
        return ()

    async def _cancel_requested(self, grace_s: float) -> None:
        await self.context.cancelled.wait()
        await self._env.clock.sleep(grace_s, "build_grace")

    async def _stop(self, work: asyncio.Task[Sequence[AgentSpec]], bounds: BuildLimits) -> None:
        self._cancel(work)
        await asyncio.wait({work}, timeout=bounds.cancel_grace_s)
        if not work.done():
            self._env.emit("task_not_cancelled", task=work.get_name())

    def _cancel(self, work: asyncio.Task[Sequence[AgentSpec]]) -> None:
        """The event also stops threads of the backend, which a task's cancellation does not."""
        self.context.cancelled.set()
        work.cancel()

    def _result(self, work: asyncio.Task[Sequence[AgentSpec]]) -> BuildResult:
        if work.cancelled():
            return BuildResult(status="failed", error=_STOPPED_TEXT, error_code="build_failed")
        error = work.exception()
        if error is None:
            return BuildResult(status="succeeded", agents=tuple(work.result()))
        if isinstance(error, BuildCancelled) and self.context.cancelled.is_set():
            return BuildResult(status="canceled")
        if isinstance(error, ChatdError):
            text = error.message.strip() or _STOPPED_TEXT
            return BuildResult(status="failed", error=text[:4000], error_code=error.code)
        # An unexpected error's message may contain internal data: it is logged, not stored.
        self._env.emit("build_crashed", build_id=self.lease.id, error=error)
        text = f"The backend failed with an unexpected error ({type(error).__name__})."
        return BuildResult(status="failed", error=text, error_code="internal")


_STOPPED_TEXT: Final = "The backend stopped the build without a reason."


def _timeout_result(bounds: BuildLimits) -> BuildResult:
    text = f"The build did not end within {bounds.timeout_s:g} s and was cancelled."
    return BuildResult(status="failed", error=text, error_code="build_timeout")


def _retrieve_exception(work: asyncio.Task[Sequence[AgentSpec]]) -> None:
    """asyncio logs an exception that is never retrieved."""
    if not work.cancelled():
        work.exception()
