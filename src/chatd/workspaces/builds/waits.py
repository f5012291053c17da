"""Waiting for a build and for its agent, each for a bounded time.

A build is run by whoever holds it, not by whoever waits: going away here ends nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ports import Clock, ProvisionResult
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.entities import AgentHealth, AgentRow, Build, BuildId
from chatd.store.conn import Conn
from chatd.store.workspace import builds
from chatd.workspaces.agents.resolver import AGENT_ON_OTHER_HOST

Ping = Callable[[AgentRow], Awaitable[AgentHealth]]

FIRST_POLL_INTERVAL_S: Final = 0.05
MAX_POLL_INTERVAL_S: Final = 2.0
BUILD_TIMEOUT_S: Final = 600.0
AGENT_START_TIMEOUT_S: Final = 120.0
STARTUP_SCRIPT_TIMEOUT_S: Final = 600.0
AGENT_NOT_READY_TEXT: Final = (
    "The workspace has started, but cannot be used yet. Try a command in a moment; if that fails,"
    " call stop_workspace, then start_workspace."
)
SCRIPTS_UNFINISHED_TEXT: Final = (
    "The workspace can be used, but its start-up script did not come to a good end: something that"
    " it sets up may be missing."
)


class BuildTimeout(ChatdError):
    """It is still at it, and nobody waits any longer."""

    code = "build_late"


class WaitTimeouts(Struct, frozen=True, kw_only=True):
    build_s: float = BUILD_TIMEOUT_S
    agent_s: float = AGENT_START_TIMEOUT_S
    scripts_s: float = STARTUP_SCRIPT_TIMEOUT_S


class PollBackoff:
    """Looks often at first, because most of what is waited for is quick, and then less."""

    def __init__(self, clock: Clock, timeout_s: float, tag: str) -> None:
        self._clock = clock
        self._until = clock.monotonic() + timeout_s
        self._pause_s = FIRST_POLL_INTERVAL_S
        self._tag = tag

    async def more(self) -> bool:
        left = self._until - self._clock.monotonic()
        if left <= 0:
            return False
        await self._clock.sleep(min(self._pause_s, left), self._tag)
        self._pause_s = min(self._pause_s * 1.5, MAX_POLL_INTERVAL_S)
        return True


class BuildWaits:
    def __init__(self, conn: Conn, ping: Ping, clock: Clock, timeouts: WaitTimeouts) -> None:
        self._conn = conn
        self._ping = ping
        self._clock = clock
        self._timeouts = timeouts

    async def build(self, build_id: BuildId) -> Build:
        """This very build, ended. Raises BuildLate. That the database is away for a moment says
        nothing of the build."""
        patience = PollBackoff(self._clock, self._timeouts.build_s, "build")
        while True:
            try:
                found = await builds.get(self._conn, build_id)
            except Unavailable:
                found = None
            if found is not None and not found.active:
                return found
            if not await patience.more():
                raise BuildTimeout("The build has not ended in time; it goes on.")

    async def agent(self, agent: AgentRow, told: ProvisionResult) -> ProvisionResult:
        """What is told, with what there is to say of the agent. Its troubles are no failure."""
        pulse = await self._pulse(agent)
        if isinstance(pulse, AgentHealth):
            return await self._scripts(agent, pulse, told)
        told = replace(told, agent_status="not_ready", agent_error=pulse.message)
        return told if pulse.code == AGENT_ON_OTHER_HOST else _with(told, AGENT_NOT_READY_TEXT)

    async def is_healthy(self, agent: AgentRow) -> bool:
        """Asked once."""
        try:
            await self._ping(agent)
        except (AgentUnreachable, AgentRefused):
            return False
        return True

    async def _pulse(self, agent: AgentRow) -> AgentHealth | AgentUnreachable | AgentRefused:
        patience = PollBackoff(self._clock, self._timeouts.agent_s, "agent")
        while True:
            try:
                return await self._ping(agent)
            except (AgentUnreachable, AgentRefused) as error:
                trouble = error
            # Where the workspace is will not change by waiting.
            if trouble.code == AGENT_ON_OTHER_HOST or not await patience.more():
                return trouble

    async def _scripts(
        self, agent: AgentRow, pulse: AgentHealth, told: ProvisionResult
    ) -> ProvisionResult:
        patience = PollBackoff(self._clock, self._timeouts.scripts_s, "scripts")
        while pulse.lifecycle in ("created", "starting"):
            if not await patience.more():
                scripts = "startup_scripts_timeout"
                told = replace(told, startup_scripts=scripts, lifecycle_state=pulse.lifecycle)
                return _with(told, SCRIPTS_UNFINISHED_TEXT)
            try:
                pulse = await self._ping(agent)
            except (AgentUnreachable, AgentRefused):
                continue
        match pulse.lifecycle:
            case "ready":
                return replace(told, directory=pulse.directory)
            case "start_error":
                scripts = "startup_scripts_failed"
            case "start_timeout":
                scripts = "startup_scripts_timeout"
            case _:
                scripts = "startup_scripts_unknown"
        told = replace(
            told,
            startup_scripts=scripts,
            lifecycle_state=pulse.lifecycle,
            directory=pulse.directory,
        )
        return _with(told, SCRIPTS_UNFINISHED_TEXT)


def _with(told: ProvisionResult, advice: str) -> ProvisionResult:
    return replace(told, message=f"{told.message} {advice}".strip())
