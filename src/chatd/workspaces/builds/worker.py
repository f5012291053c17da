"""The build worker of a replica: acquires queued builds, runs them and writes their results.

Owns the leases of its builds and how many run at once; `BuildRun` runs one build. If a worker
dies, another acquires its builds, on the same host where a build belongs to one. A build that no
worker acquires is ended with a reason. A worker that has lost a build writes nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, get_args

from msgspec import Struct

from chatd.aio import InterruptibleSleep, first_of
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkerId
from chatd.domain.lease import HeartbeatHistory, may_reap
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import Build, BuildId, BuildTransition
from chatd.store.conn import Conn
from chatd.store.workspace import build_leases
from chatd.store.workspace.build_leases import AcquireBuilds, AcquiredBuild, BuildLease, BuildResult
from chatd.workspaces.builds.backend import Backend
from chatd.workspaces.builds.run import BuildLimits, BuildRun

STORE_REPLY_TIMEOUT_S: Final = 5.0
_TRUSTED_LEASE_SHARE: Final = 2 / 3
_ABANDONED_TEXT: Final = (
    "No server acquired the build: no running server can build this workspace on its host."
)


class BuildWorkerConfig(Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...]
    """The hosts this replica runs on. It does not acquire builds that belong to others."""
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
        """One slot stays for the others, if there is more than one."""
        return max(self.slots - 1, 1)


class BuildWorker:
    """`run` works until `close` is called. If it is cancelled, it writes nothing more and its
    leases expire."""

    def __init__(
        self,
        worker_id: WorkerId,
        conn: Conn,
        backends: Sequence[Backend],
        env: Env,
        config: BuildWorkerConfig,
    ) -> None:
        self._worker_id = worker_id
        self._conn = conn
        self._backends: Mapping[str, Backend] = {backend.kind: backend for backend in backends}
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
        wanted = AcquireBuilds(
            worker_id=self._worker_id,
            hosts=self._config.hosts,
            backends=tuple(self._backends),
            free_slots=self._free_slots(),
            owner_slots=self._config.owner_slots,
            lease_s=self._config.lease_s if scope == "leases" else None,
            worker_gone_after_s=self._config.worker_gone_after_s if scope != "none" else None,
            running=(*self._running, *(stuck.lease.id for stuck in self._stuck_builds())),
        )
        try:
            async with asyncio.timeout(STORE_REPLY_TIMEOUT_S):
                found = await build_leases.acquire_builds(self._conn, wanted)
        except (Unavailable, TimeoutError):
            self._history = self._history.failed()
            raise
        self._history = self._history.succeeded(self._env.clock.monotonic())
        for taken in found:
            self._start(group, taken, now)

    def _free_slots(self) -> Mapping[BuildTransition, int]:
        used = Counter(running.context.build.transition for running in self._running.values())
        transitions: tuple[BuildTransition, ...] = get_args(BuildTransition)
        return {kind: max(self._config.slots - used[kind], 0) for kind in transitions}

    def _stuck_builds(self) -> Sequence[BuildRun]:
        """Cancelled builds that have not stopped. They are not acquired again meanwhile."""
        self._stuck = [building for building in self._stuck if building.is_running]
        return self._stuck

    def _start(self, group: asyncio.TaskGroup, taken: AcquiredBuild, asked_at: float) -> None:
        build = taken.build
        hold = BuildLease(id=build.id, worker_id=self._worker_id, attempt=build.attempt)
        backend = self._backends[taken.backend]
        building = BuildRun(taken, hold, backend, self._env, acquired_at=asked_at)
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
        return await self._contained("build", lambda: self._run_build(building))

    async def _run_build(self, building: BuildRun) -> None:
        ended = await building.run(self._config.limits)
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
        although the reply was lost ends the lease, too."""
        while not building.lost.is_set():
            try:
                return await build_leases.finish_build(self._conn, building.lease, ended)
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
                mine = await build_leases.renew_builds(self._conn, self._worker_id, holds)
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
        """After most of a lease without a renewal another worker will soon acquire the build."""
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
        ended = await build_leases.reap_builds(
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
        build keeps its lease until the process ends, so that no other worker runs it beside."""
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
                        await build_leases.release_build(self._conn, building.lease)
