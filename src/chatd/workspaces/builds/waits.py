"""Waits for a build and for its agent, each with a timeout. A cancelled wait does not affect the
build: its worker goes on."""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.access import WORKER
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
    "The workspace can be used, but its start-up script did not succeed: something that it sets up"
    " may be missing."
)


class BuildTimeout(ChatdError):
    """The build still runs after the timeout of the wait."""

    code = "build_late"


class WaitTimeouts(Struct, frozen=True, kw_only=True):
    build_s: float = BUILD_TIMEOUT_S
    agent_s: float = AGENT_START_TIMEOUT_S
    scripts_s: float = STARTUP_SCRIPT_TIMEOUT_S


class PollBackoff:
    """Polls often at first, because most waits are short, then less often."""

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
        """The ended build. Raises BuildTimeout. Goes on while the database is unavailable."""
        poll = PollBackoff(self._clock, self._timeouts.build_s, "build")
        while True:
            try:
                found = await builds.get(self._conn, WORKER, build_id)
            except Unavailable:
                found = None
            if found is not None and not found.active:
                return found
            if not await poll.more():
                raise BuildTimeout("The build has not ended in time; it is still running.")

    async def agent(self, agent: AgentRow, result: ProvisionResult) -> ProvisionResult:
        """`result` with the agent's status added. A problem of the agent is no failure of the
        build."""
        health = await self._wait_until_healthy(agent)
        if isinstance(health, AgentHealth):
            return await self._wait_for_scripts(agent, health, result)
        result = replace(result, agent_status="not_ready", agent_error=health.message)
        return (
            result
            if health.code == AGENT_ON_OTHER_HOST
            else _with_message(result, AGENT_NOT_READY_TEXT)
        )

    async def is_healthy(self, agent: AgentRow) -> bool:
        """One ping."""
        try:
            await self._ping(agent)
        except (AgentUnreachable, AgentRefused):
            return False
        return True

    async def _wait_until_healthy(
        self, agent: AgentRow
    ) -> AgentHealth | AgentUnreachable | AgentRefused:
        poll = PollBackoff(self._clock, self._timeouts.agent_s, "agent")
        while True:
            try:
                return await self._ping(agent)
            except (AgentUnreachable, AgentRefused) as error:
                failure = error
            # A workspace does not move to this host by waiting.
            if failure.code == AGENT_ON_OTHER_HOST or not await poll.more():
                return failure

    async def _wait_for_scripts(
        self, agent: AgentRow, health: AgentHealth, result: ProvisionResult
    ) -> ProvisionResult:
        poll = PollBackoff(self._clock, self._timeouts.scripts_s, "scripts")
        while health.lifecycle in ("created", "starting"):
            if not await poll.more():
                scripts = "startup_scripts_timeout"
                result = replace(result, startup_scripts=scripts, lifecycle_state=health.lifecycle)
                return _with_message(result, SCRIPTS_UNFINISHED_TEXT)
            try:
                health = await self._ping(agent)
            except (AgentUnreachable, AgentRefused):
                continue
        match health.lifecycle:
            case "ready":
                return replace(result, directory=health.directory)
            case "start_error":
                scripts = "startup_scripts_failed"
            case "start_timeout":
                scripts = "startup_scripts_timeout"
            case _:
                scripts = "startup_scripts_unknown"
        result = replace(
            result,
            startup_scripts=scripts,
            lifecycle_state=health.lifecycle,
            directory=health.directory,
        )
        return _with_message(result, SCRIPTS_UNFINISHED_TEXT)


def _with_message(result: ProvisionResult, advice: str) -> ProvisionResult:
    return replace(result, message=f"{result.message} {advice}".strip())
