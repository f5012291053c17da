"""The files of one workspace, copied into another one while that is built.

The agents pack and unpack them, so the two may have any backend and be on any runner. The bytes
pass through the build worker in pieces. A copy is never continued: a build that is repeated begins
with an empty home, and only a build that has copied everything succeeds.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from msgspec.structs import asdict

from chatd.domain.errors import ChatdError
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.entities import AgentRow, AgentSpec
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent
from chatd.domain.workspace.templates import copied_text, size_problem
from chatd.services.workspaces.people_access import AgentFiles
from chatd.store.database.conn import Conn
from chatd.store.workspace import workspaces
from chatd.workspaces.agents.agent_resolver import AgentConnector, StoredBindings
from chatd.workspaces.build_backend import BuildCancelled, BuildContext, BuildFailed

AGENT_START_TIMEOUT_S: Final = 60.0
AGENT_POLL_INTERVAL_S: Final = 0.1
PROGRESS_BYTES: Final = 64 << 20
"""Between two lines of the build's log."""
STAGE: Final = "copy"


class WorkspaceCopier:
    def __init__(
        self, conn: Conn, connector: AgentConnector, env: Env, *, max_copy_bytes: int
    ) -> None:
        self._conn = conn
        self._connector = connector
        self._env = env
        self._max_copy_bytes = max_copy_bytes

    async def copy(
        self, context: BuildContext, source_id: WorkspaceId, agents: Sequence[AgentSpec]
    ) -> None:
        """Into the home of the agent that the build has just started. Raises BuildFailed,
        BuildCancelled."""
        try:
            await self._copy(context, source_id, agents)
        except (AgentRefused, AgentUnreachable) as error:
            raise _failed(error.message) from error

    async def _copy(
        self, context: BuildContext, source_id: WorkspaceId, agents: Sequence[AgentSpec]
    ) -> None:
        source = await self._open(await self._source_agent(source_id))
        target = await self._open(await self._started_agent(context, agents))
        await workspaces.record_activity(self._conn, [source_id])
        facts, pieces = await source.archive("", gzip=False)
        async with aclosing(pieces):
            if problem := size_problem(facts.bytes, self._max_copy_bytes):
                raise BuildFailed(problem)
            context.log(STAGE, f"Copying {copied_text(facts.bytes, facts.files)}")
            unpacked = await target.unpack("", _counted(context, pieces), keep_links=True)
        context.log(STAGE, f"Copied {copied_text(facts.bytes, unpacked.files)}")
        if facts.skipped or facts.unreadable_count:
            left_out = facts.skipped + facts.unreadable_count
            context.log(
                STAGE, f"Left out: {left_out} pipes, sockets and unreadable files", "warning"
            )

    async def _open(self, agent: AgentRow) -> AgentFiles:
        connected = await self._connector.connect_agent(agent)
        return AgentFiles(connected, self._env.clock, lambda: None)

    async def _source_agent(self, source_id: WorkspaceId) -> AgentRow:
        try:
            return (await StoredBindings(self._conn).latest_agent(source_id)).agent
        except (NoAgent, AmbiguousAgent):
            raise _failed("The workspace that is copied does not run.") from None

    async def _started_agent(self, context: BuildContext, agents: Sequence[AgentSpec]) -> AgentRow:
        """Once it answers."""
        agent = AgentRow(
            **{name: value for name, value in asdict(agents[0]).items() if name != "lifecycle"},
            build_id=context.build.id,
            workspace_id=context.workspace.id,
            created_at=self._env.clock.now(),
        )
        clock = self._env.clock
        until = clock.monotonic() + AGENT_START_TIMEOUT_S
        while True:
            try:
                await self._connector.ping(agent)
            except (AgentRefused, AgentUnreachable):
                _check_cancelled(context)
                if clock.monotonic() >= until:
                    raise
                await clock.sleep(AGENT_POLL_INTERVAL_S, "copy_agent")
            else:
                return agent


async def _counted(context: BuildContext, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The pieces, with progress in the build's log."""
    total, told = 0, 0
    async for piece in pieces:
        _check_cancelled(context)
        yield piece
        total += len(piece)
        if total - told >= PROGRESS_BYTES:
            told = total
            context.log(STAGE, f"{total >> 20} MiB copied")


def _check_cancelled(context: BuildContext) -> None:
    if context.cancelled.is_set():
        raise BuildCancelled("The copy was cancelled.")


def _failed(reason: str) -> ChatdError:
    return BuildFailed(
        f"The files could not be copied: {reason} Start the workspace that is copied, then this"
        " one: it begins again."
    )
