"""One replica in the test's process that survives, and replica processes that are killed. All
share one model, one tool server and one database."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

from chatd.domain.ids import ChatId
from tests.support.chaos.fork_server import ForkServer
from tests.support.chaos.planned_model import PlannedModel, ToolServer, remote_tools
from tests.support.chaos.replica_process import DieAt, ReplicaSetup
from tests.support.chaos.replicas import (
    ReplicaGone,
    ReplicaProcess,
    replica_fork_server,
    replica_process,
)
from tests.support.chaos.transcript_judge import TranscriptJudge
from tests.support.engine_rig import EngineRig
from tests.support.subagents import subagent_rig


class TakeoverRig:
    def __init__(
        self,
        dsn: str,
        model: PlannedModel,
        tool_server: ToolServer,
        survivor: EngineRig,
        fork_server: ForkServer,
        victims: AsyncExitStack,
    ) -> None:
        self.dsn = dsn
        self.model = model
        self.tool_server = tool_server
        self.survivor = survivor
        self.judge = TranscriptJudge()
        self._fork_server = fork_server
        self._victims = victims
        self._count = 0

    async def start_victim(
        self,
        *,
        die_at: DieAt | None = None,
        drain_s: float = 10.0,
        dsn: str | None = None,
        slots: int = 1,
    ) -> ReplicaProcess:
        """By default it has one slot, so that the survivor acquires all other chats."""
        self._count += 1
        setup = ReplicaSetup(
            dsn=dsn or self.dsn,
            model_url=self.model.url,
            tool_socket=str(self.tool_server.path),
            name=f"victim-{self._count}",
            roots=slots,
            drain_s=drain_s,
            die_at=die_at,
        )
        return await self._victims.enter_async_context(replica_process(self._fork_server, setup))

    async def create(self, at: ReplicaProcess, text: str) -> ChatId:
        """Create a chat. If the replica dies, the outcome is unknown."""
        chat_id = ChatId(uuid4())
        sent = self.judge.record_send(chat_id, text)
        sent.asked()
        with suppress(ReplicaGone):
            done = await at.create(chat_id, text)
            if done.error is None:
                sent.answered(done.state)
        return chat_id

    async def transcript(self, chat_id: ChatId) -> list[str]:
        return await self.survivor.transcript(chat_id)

    async def end_sessions(self, victim: ReplicaProcess) -> None:
        """End its database sessions, as the network does for an unresponsive host."""
        await self.survivor.pool.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name LIKE $1 || '%'""",
            victim.setup.name,
        )


@asynccontextmanager
async def takeover_rig(dsn: str) -> AsyncGenerator[TakeoverRig]:
    with tempfile.TemporaryDirectory(prefix="chatd-chaos-", dir="/tmp") as directory:
        path = Path(directory) / "workshop"
        async with (
            PlannedModel.running() as model,
            ToolServer.running(path) as tool_server,
            subagent_rig(dsn, model, others=remote_tools(path)) as survivor,
            replica_fork_server() as fork_server,
            AsyncExitStack() as victims,
        ):
            yield TakeoverRig(dsn, model, tool_server, survivor, fork_server, victims)
