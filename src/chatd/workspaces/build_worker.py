"""The build worker of a replica: acquires queued builds, runs them and writes their results.

`BuildRun` runs one build within its limits and describes its failures; `BuildWorker` owns the
leases and how many builds run at once. If a worker dies, another one that reaches the same runner
acquires its builds. A build that no worker acquires is ended with a reason. A worker that has lost
a build writes nothing.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace

from chatd.aio import InterruptibleSleep, first_of
from chatd.domain.chat.lease import HeartbeatHistory, may_reap
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkerId, WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import (
    AgentId,
    AgentSpec,
    Build,
    BuildId,
    BuildTransition,
    EmptySeed,
    LogLevel,
    TemplateSpec,
)
from chatd.domain.workspace.host_credentials import HostCredential
from chatd.domain.workspace.runners import BuildPlace
from chatd.store.database.conn import Conn
from chatd.store.workspace import builds
from chatd.store.workspace.builds import AcquireBuilds, AcquiredBuild, BuildLease, BuildResult
from chatd.workspaces.build_backend import (
    Backend,
    BuildCancelled,
    BuildContext,
    BuildFailed,
    BuildInterrupted,
)

# One build. The backend's log lines are kept in bounded memory and written in batches: a line never
# waits for the database and never fails.

MAX_LOG_LINES: Final = 5000
MAX_LOG_BYTES: Final = 1024 * 1024
MAX_LOG_LINE_CHARS: Final = 4000
LOG_FLUSH_LINES: Final = 200


class BuildLogBuffer:
    """A `LogSink`. Clips long lines and drops lines beyond its limits."""

    def __init__(self, lease: builds.BuildLease) -> None:
        self._lease = lease
        self._waiting: deque[builds.BuildLogLine] = deque()
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
            self._waiting.append(builds.BuildLogLine(stage=stage[:100], level=level, output=cut))

    async def flush(self, conn: Conn) -> None:
        """Write the kept lines. Those that cannot be written stay for the next flush."""
        async with self._writing:
            while self._waiting:
                batch = [
                    self._waiting[at] for at in range(min(LOG_FLUSH_LINES, len(self._waiting)))
                ]
                await builds.append_log(conn, self._lease, batch)
                for _ in batch:
                    self._waiting.popleft()


class BuildLimits(Struct, frozen=True, kw_only=True):
    timeout_s: float = 600
    """Limit for the whole build, over all workers that ran it."""
    cancel_request_grace_s: float = 10
    """Time from a cancel request to the cancellation of the backend's task."""
    cancel_grace_s: float = 2
    """How long the worker waits for a cancelled task; after that it is left running."""
    max_attempts: int = 6
    """Limit that ends a build which crashes its worker each time."""
    max_remote_attempts: int = 30
    """The same on a runner, whose lost connections count as attempts and say nothing about the
    build. Its timeout ends it too."""


CopyFiles = Callable[[BuildContext, WorkspaceId, Sequence[AgentSpec]], Awaitable[None]]
"""Copies the files of a workspace into the one that the build has started."""


LoadCredentials = Callable[[AcquiredBuild], Awaitable[Sequence[HostCredential]]]
"""The credentials that a proxy adds to requests of the workspace, from its start on. Raises
ChatdError."""


class BuildSources(NamedTuple):
    """What a start takes from the deployment."""

    copy: CopyFiles | None = None
    credentials: LoadCredentials | None = None


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
        agent_key: Callable[[AgentId], bytes],
        sources: BuildSources,
        is_remote: bool = False,
    ) -> None:
        self._copy, self._credentials = sources
        self._is_remote = is_remote
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
            agent_key=agent_key,
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
        """None if the lease was lost. Raises BuildInterrupted."""
        build = self._acquired.build
        if build.status == "canceling":
            return BuildResult(status="canceled")
        most = limits.max_remote_attempts if self._is_remote else limits.max_attempts
        if build.attempt > most:
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
                return await self._start()
            case "stop":
                await self._backend.stop(self.context)
            case "delete":
                await self._backend.delete(self.context)
        return ()

    async def _start(self) -> Sequence[AgentSpec]:
        context, source = self.context, self._acquired.build.copied_from
        if self._credentials is not None:
            try:
                context.credentials = await self._credentials(self._acquired)
            except ChatdError as error:
                text = f"The credentials of hosts cannot be read yet: {error.message}"
                context.log("network", text, "warning")
        if source is None:
            return await self._backend.start(context)
        if self._copy is None:
            raise BuildFailed("This server cannot copy workspaces.")
        if context.build.attempt > 1 or context.build.build_number > 1:
            # An earlier attempt may have left a part of the files.
            await self._backend.delete(context)
        wanted = context.spec
        context.spec = replace(wanted, seed=EmptySeed(), startup_script="")
        agents = await self._backend.start(context)
        try:
            await self._copy(context, source, agents)
        except ChatdError:
            with suppress(ChatdError):
                await self._backend.stop(context)
            raise
        if not wanted.startup_script:
            return agents
        # The script may need the files, and may set up what is not among them.
        context.spec = wanted
        await self._backend.stop(context)
        return await self._backend.start(context)

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
        if isinstance(error, BuildInterrupted):
            raise error
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
    """Retrieve the exception, which asyncio would log otherwise."""
    if not work.cancelled():
        work.exception()


# The worker

STORE_REPLY_TIMEOUT_S: Final = 5.0
_TRUSTED_LEASE_SHARE: Final = 2 / 3
_ABANDONED_TEXT: Final = (
    "No server acquired the build: no running server can build this workspace on its host."
)


class OfferedBackend(Struct, frozen=True):
    """A place where this replica can build, and the backend there. `is_remote`: it is called over
    a connection, which may break while the build goes on."""

    place: BuildPlace
    backend: Backend
    is_remote: bool = False


class BuildWorkerConfig(Struct, frozen=True, kw_only=True):
    slots: int = 4
    """How many builds of each transition run at once, so that a start that hangs delays no stop
    and no deletion."""
    limits: BuildLimits = BuildLimits()
    lease_s: float = 30
    worker_gone_after_s: float | None = None
    """A shorter lease for a build with a worker that is not registered as a worker of chats. Only
    where both use the same worker ids."""
    renew_interval_s: float = 4
    poll_interval_s: float = 2
    log_flush_interval_s: float = 0.3
    reap_interval_s: float = 60
    reap_after_s: float = 1800
    drain_s: float = 20

    @property
    def owner_slots(self) -> int:
        """One slot less than there are, so that one stays for other owners."""
        return max(self.slots - 1, 1)


class BuildWorker:
    """`run` works until `close` is called. If it is cancelled, it writes nothing more and its
    leases expire."""

    def __init__(
        self,
        worker_id: WorkerId,
        conn: Conn,
        offers: Callable[[], Sequence[OfferedBackend]],
        env: Env,
        config: BuildWorkerConfig,
        *,
        agent_key: Callable[[AgentId], bytes],
        copy: CopyFiles | None = None,
        credentials: LoadCredentials | None = None,
    ) -> None:
        """`offers` are the places of this host and of the runners that are connected to this
        replica now; the worker acquires no other builds."""
        self._worker_id = worker_id
        self._conn = conn
        self._offers = offers
        self._agent_key = agent_key
        self._sources = BuildSources(copy, credentials)
        self._env = env
        self._config = config
        self._pause = InterruptibleSleep(env.clock)
        self._history = HeartbeatHistory(interval_s=config.poll_interval_s)
        self._running: dict[BuildId, BuildRun] = {}
        self._tasks: dict[BuildId, asyncio.Task[bool]] = {}
        self._stuck: list[BuildRun] = []
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        return len(self._running)

    def starting(self, runner_id: str) -> int:
        """How many workspaces of this runner are being started."""
        return sum(
            running.context.build.transition == "start"
            and running.context.workspace.host_id == runner_id
            for running in self._running.values()
        )

    def wake(self) -> None:
        """Look for queued builds now."""
        self._pause.wake()

    async def close(self) -> None:
        """Acquire no more builds. Builds that do not end soon are released to other workers."""
        self._closing = True
        self._pause.wake()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(self._repeat(self._renew, self._config.renew_interval_s, "beat")),
                group.create_task(
                    self._repeat(self._flush_logs, self._config.log_flush_interval_s, "log")
                ),
                group.create_task(self._repeat(self._reap, self._config.reap_interval_s, "reap")),
            ]
            while not self._closing:
                await self._contained("take", lambda: self._acquire(group))
                if not self._closing:
                    await self._pause.sleep(self._config.poll_interval_s, "build_poll")
            await self._drain()
            for task in others:
                task.cancel()

    async def _acquire(self, group: asyncio.TaskGroup) -> None:
        now = self._env.clock.monotonic()
        scope = may_reap(self._history, now)
        offers = self._offers()
        wanted = AcquireBuilds(
            worker_id=self._worker_id,
            places=[offer.place for offer in offers],
            free_slots=self._free_slots(),
            owner_slots=self._config.owner_slots,
            lease_s=self._config.lease_s if scope == "leases" else None,
            worker_gone_after_s=self._config.worker_gone_after_s if scope != "none" else None,
            running=(*self._running, *(stuck.lease.id for stuck in self._stuck_builds())),
        )
        try:
            async with asyncio.timeout(STORE_REPLY_TIMEOUT_S):
                found = await builds.acquire_builds(self._conn, wanted)
        except (Unavailable, TimeoutError):
            self._history = self._history.failed()
            raise
        self._history = self._history.succeeded(self._env.clock.monotonic())
        offered = {(offer.place.runner_id, offer.place.backend): offer for offer in offers}
        for taken in found:
            self._start(group, taken, offered[taken.runner_id, taken.backend], now)

    def _free_slots(self) -> Mapping[BuildTransition, int]:
        used = Counter(running.context.build.transition for running in self._running.values())
        transitions: tuple[BuildTransition, ...] = get_args(BuildTransition)
        return {kind: max(self._config.slots - used[kind], 0) for kind in transitions}

    def _stuck_builds(self) -> Sequence[BuildRun]:
        """Cancelled builds that have not stopped. They are not acquired again until they do."""
        self._stuck = [building for building in self._stuck if building.is_running]
        return self._stuck

    def _start(
        self, group: asyncio.TaskGroup, taken: AcquiredBuild, at: OfferedBackend, asked_at: float
    ) -> None:
        build = taken.build
        hold = BuildLease(id=build.id, worker_id=self._worker_id, attempt=build.attempt)
        building = BuildRun(
            taken,
            hold,
            at.backend,
            self._env,
            acquired_at=asked_at,
            agent_key=self._agent_key,
            sources=self._sources,
            is_remote=at.is_remote,
        )
        self._running[build.id] = building
        self._idle.clear()
        self._env.emit("build_acquired", build_id=build.id, attempt=build.attempt)
        task = group.create_task(self._run_contained(building), name=f"building {build.id}")
        self._tasks[build.id] = task
        task.add_done_callback(lambda task: self._on_ended(building, task))

    def _on_ended(self, building: BuildRun, task: asyncio.Task[bool]) -> None:
        del self._running[building.lease.id], self._tasks[building.lease.id]
        if building.is_running:
            self._stuck.append(building)
        if not self._running:
            self._idle.set()
        # A build with an unwritten result is acquired again, but not at once.
        if not task.cancelled() and task.result():
            self._pause.wake()

    async def _run_contained(self, building: BuildRun) -> bool:
        build = building.context.build
        facts = {
            "chatd.build.id": str(building.lease.id),
            "chatd.workspace.id": str(build.workspace_id),
            "chatd.build.transition": build.transition,
        }
        with self._env.tracer.span(f"build {build.transition}", facts):
            return await self._contained("build", lambda: self._run_build(building))

    async def _run_build(self, building: BuildRun) -> None:
        try:
            ended = await building.run(self._config.limits)
        except BuildInterrupted:
            # The replica to which the runner connects next acquires it and joins what runs there.
            self._env.emit("build_interrupted", build_id=building.lease.id)
            await builds.release_build(self._conn, building.lease)
            return
        if ended is None:
            self._env.emit("build_lost", build_id=building.lease.id)
            return
        await self._contained("log", lambda: building.log.flush(self._conn))
        if (done := await self._finish(building, ended)) is not None:
            self._env.emit(
                "build_ended",
                workspace_id=done.workspace_id,
                build_id=done.id,
                transition=done.transition,
                status=done.status,
            )

    async def _finish(self, building: BuildRun, ended: BuildResult) -> Build | None:
        """Retry until the result is written or the lease is lost. A result that was written
        although the reply was lost ends the lease too."""
        while not building.lost.is_set():
            try:
                return await builds.finish_build(self._conn, building.lease, ended)
            except Unavailable as error:
                self._env.emit("build_write_failed", error_kind=error.code)
                await self._env.clock.sleep(1, "build_finish")
            except ChatdError as error:
                # The backend's result cannot be stored: the build has failed.
                if ended.error_code == "internal":
                    raise
                self._env.emit("build_result_rejected", build_id=building.lease.id, error=error)
                text = "The backend returned a result that cannot be stored."
                ended = BuildResult(status="failed", error=text, error_code="internal")
        return None

    async def _renew(self) -> None:
        asked = dict(self._running)
        if not asked:
            return
        asked_at = self._env.clock.monotonic()
        try:
            async with asyncio.timeout(STORE_REPLY_TIMEOUT_S):
                holds = [building.lease for building in asked.values()]
                mine = await builds.renew_builds(self._conn, self._worker_id, holds)
        except (Unavailable, TimeoutError):
            self._give_up_unrenewed(asked)
            raise
        for build_id, building in asked.items():
            if build_id not in mine:
                building.lost.set()
                continue
            building.renewed_at = asked_at
            if mine[build_id] == "canceling":
                building.context.cancelled.set()

    def _give_up_unrenewed(self, asked: Mapping[BuildId, BuildRun]) -> None:
        """Give up builds most of a lease after their last renewal: others soon acquire them."""
        now = self._env.clock.monotonic()
        silence_s = min(
            self._config.lease_s, self._config.worker_gone_after_s or self._config.lease_s
        )
        for building in asked.values():
            if now - building.renewed_at >= silence_s * _TRUSTED_LEASE_SHARE:
                building.lost.set()

    async def _flush_logs(self) -> None:
        for building in tuple(self._running.values()):
            await building.log.flush(self._conn)

    async def _reap(self) -> None:
        if may_reap(self._history, self._env.clock.monotonic()) != "leases":
            return
        ended = await builds.reap_builds(
            self._conn, after_s=self._config.reap_after_s, error=_ABANDONED_TEXT
        )
        for build in ended:
            self._env.emit("build_abandoned", build_id=build.id)

    async def _repeat(self, work: Callable[[], Awaitable[None]], every_s: float, name: str) -> None:
        while True:
            await self._contained(name, work)
            await self._env.clock.sleep(every_s, f"build_{name}")

    async def _contained(self, name: str, work: Callable[[], Awaitable[None]]) -> bool:
        """True if `work` ended without an error."""
        try:
            await work()
        except (Unavailable, TimeoutError) as error:
            kind = error.code if isinstance(error, Unavailable) else "timeout"
            self._env.emit("build_worker_waiting", task=name, error_kind=kind)
        except Exception as error:  # noqa: BLE001 - a bug in one build must not end the others
            self._env.emit("build_worker_failed", task=name, error=error)
        else:
            return True
        return False

    async def _drain(self) -> None:
        """Wait for running builds, then cancel and release them. If a backend does not stop, its
        build keeps its lease until the process ends, so that no other worker runs it too."""
        drain_s = self._config.drain_s
        await first_of(self._env.clock.sleep(drain_s, "build_drain"), self._idle.wait())
        left = dict(self._running)
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STORE_REPLY_TIMEOUT_S)
        for building in left.values():
            await building.wait_stopped(self._config.limits.cancel_grace_s)
            if not building.is_running:
                with suppress(ChatdError, TimeoutError):
                    async with asyncio.timeout(STORE_REPLY_TIMEOUT_S):
                        await builds.release_build(self._conn, building.lease)
