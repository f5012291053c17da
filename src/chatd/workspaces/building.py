"""One build, from being taken up to its end: asks the backend, bounds it, words the outcome.

Owns how long a backend may take, what happens when somebody wants the build ended, and what is
said of a failure. Writing the outcome and keeping the lease are the builder's.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import AgentSpec, TemplateSpec
from chatd.store.workspace.build_leases import AcquiredBuild, BuildLease, BuildResult
from chatd.workspaces.backend import Backend, BuildCancelled, BuildContext
from chatd.workspaces.build_log import LogBuffer


class Bounds(Struct, frozen=True, kw_only=True):
    limit_s: float = 600
    """In all, however many workers have had a part in it."""
    grace_s: float = 10
    """Asked to leave off, a backend has this long before it is cut off."""
    end_within_s: float = 2
    """Cut off, it is waited for no longer than this; one that goes on is left alone."""
    most_attempts: int = 6
    """A build that takes its worker down each time must not go round for ever."""


class Building:
    """`lost` is set by whoever learns that the build is no longer ours."""

    def __init__(
        self, taken: AcquiredBuild, hold: BuildLease, backend: Backend, env: Env, *, asked_at: float
    ) -> None:
        self.hold = hold
        self.renewed_at = asked_at
        self.lost = asyncio.Event()
        self.log = LogBuffer(hold)
        self.context = BuildContext(
            workspace=taken.workspace,
            build=taken.build,
            spec=taken.spec or TemplateSpec(),
            params=taken.build.params,
            log=self.log,
        )
        self._taken = taken
        self._backend = backend
        self._env = env
        self._work: asyncio.Task[Sequence[AgentSpec]] | None = None

    @property
    def at_work(self) -> bool:
        """Whether the backend may still be doing something."""
        return self._work is not None and not self._work.done()

    async def settled(self, within_s: float) -> None:
        """Wait a moment for a backend that was cut off."""
        if self._work is not None and not self._work.done():
            await asyncio.wait({self._work}, timeout=within_s)

    async def run(self, bounds: Bounds) -> BuildResult | None:
        """How it ended; None if it is not ours to say."""
        build = self._taken.build
        if build.status == "canceling":
            return BuildResult(status="canceled")
        if build.attempt > bounds.most_attempts:
            text = f"The build was begun {build.attempt - 1} times and came to no end."
            return BuildResult(status="failed", error=text, error_code="build_abandoned")
        if self._taken.spec is None and build.transition == "start":
            text = "This server cannot read the template's version; a newer one has written it."
            return BuildResult(status="failed", error=text, error_code="template_unreadable")
        left_s = bounds.limit_s - self._taken.age_s
        if left_s <= 0:
            return _late(bounds)
        return await self._bounded(bounds, left_s)

    async def _bounded(self, bounds: Bounds, left_s: float) -> BuildResult | None:
        loop = asyncio.get_running_loop()
        work = self._work = loop.create_task(self._ask(), name=f"build {self.hold.id}")
        late = loop.create_task(self._env.clock.sleep(left_s, "build_limit"))
        stop = loop.create_task(self._asked_to_stop(bounds.grace_s))
        lost = loop.create_task(self.lost.wait())
        try:
            await asyncio.wait({work, late, stop, lost}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return self._judged(work)
            await self._end(work, bounds)
            if lost.done():
                return None
            # It may have come to its end in the last moment.
            if work.done() and not work.cancelled() and work.exception() is None:
                return self._judged(work)
            return _late(bounds) if late.done() else BuildResult(status="canceled")
        finally:
            for guard in (late, stop, lost):
                guard.cancel()
            if not work.done():
                self._cut_off(work)
            work.add_done_callback(_heard_out)

    async def _ask(self) -> Sequence[AgentSpec]:
        match self._taken.build.transition:
            case "start":
                return await self._backend.start(self.context)
            case "stop":
                await self._backend.stop(self.context)
            case "delete":
                await self._backend.delete(self.context)
        return ()

    async def _asked_to_stop(self, grace_s: float) -> None:
        await self.context.cancelled.wait()
        await self._env.clock.sleep(grace_s, "build_grace")

    async def _end(self, work: asyncio.Task[Sequence[AgentSpec]], bounds: Bounds) -> None:
        self._cut_off(work)
        await asyncio.wait({work}, timeout=bounds.end_within_s)
        if not work.done():
            self._env.emit("task_not_cancelled", task=work.get_name())

    def _cut_off(self, work: asyncio.Task[Sequence[AgentSpec]]) -> None:
        """A cancelled task leaves its threads behind: those are told by the event."""
        self.context.cancelled.set()
        work.cancel()

    def _judged(self, work: asyncio.Task[Sequence[AgentSpec]]) -> BuildResult:
        if work.cancelled():
            return BuildResult(status="failed", error=_BROKEN_OFF, error_code="build_failed")
        error = work.exception()
        if error is None:
            return BuildResult(status="succeeded", agents=tuple(work.result()))
        if isinstance(error, BuildCancelled) and self.context.cancelled.is_set():
            return BuildResult(status="canceled")
        if isinstance(error, ChatdError):
            text = error.message.strip() or _BROKEN_OFF
            return BuildResult(status="failed", error=text[:4000], error_code=error.code)
        # Its words were not meant for people, and may hold what they should not see.
        self._env.emit("build_crashed", build_id=self.hold.id, error=error)
        text = f"The backend failed in a way it should not ({type(error).__name__})."
        return BuildResult(status="failed", error=text, error_code="internal")


_BROKEN_OFF: Final = "The backend broke off the build and did not say why."


def _late(bounds: Bounds) -> BuildResult:
    text = f"The build did not end within {bounds.limit_s:g} s and was broken off."
    return BuildResult(status="failed", error=text, error_code="build_timeout")


def _heard_out(work: asyncio.Task[Sequence[AgentSpec]]) -> None:
    """An exception that nobody asks for is complained of."""
    if not work.cancelled():
        work.exception()
