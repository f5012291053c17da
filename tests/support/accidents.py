"""A stage for accidents: one replica that lives, in the test's own process, and as many as wanted
that are processes and do not live long. One model, one workshop, one database for all."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

from chatd.domain.ids import ChatId
from tests.support.engine_rig import EngineRig, engine_rig_with
from tests.support.nursery import Nursery
from tests.support.planned import PlannedModel, Workshop, remote_tools
from tests.support.replica_process import DieAt, Setup
from tests.support.replicas import Gone, ReplicaProcess, replica_process, replicas
from tests.support.witness import Witness


class Stage:
    def __init__(
        self,
        dsn: str,
        model: PlannedModel,
        shop: Workshop,
        survivor: EngineRig,
        born_in: Nursery,
        victims: AsyncExitStack,
    ) -> None:
        self.dsn = dsn
        self.model = model
        self.shop = shop
        self.survivor = survivor
        self.witness = Witness()
        self._born_in = born_in
        self._victims = victims
        self._count = 0

    async def victim(
        self, *, die_at: DieAt | None = None, drain_s: float = 10.0, dsn: str | None = None
    ) -> ReplicaProcess:
        """With one slot, so that the survivor takes over all other chats."""
        self._count += 1
        setup = Setup(
            dsn=dsn or self.dsn,
            model_url=self.model.url,
            shop=str(self.shop.path),
            name=f"victim-{self._count}",
            roots=1,
            drain_s=drain_s,
            die_at=die_at,
        )
        return await self._victims.enter_async_context(replica_process(self._born_in, setup))

    async def create(self, at: ReplicaProcess, text: str) -> ChatId:
        """A message to a new chat. If the replica dies, the outcome is unknown."""
        chat_id = ChatId(uuid4())
        sent = self.witness.sends(chat_id, text)
        with suppress(Gone):
            sent.acked = (await at.create(chat_id, text)).error is None
        return chat_id

    async def transcript(self, chat_id: ChatId) -> list[str]:
        return await self.survivor.transcript(chat_id)

    async def cut_line(self, victim: ReplicaProcess) -> None:
        """End its database sessions, as a network does for a host that does not answer."""
        await self.survivor.pool.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name LIKE $1 || '%'""",
            victim.setup.name,
        )


@asynccontextmanager
async def a_stage(dsn: str) -> AsyncGenerator[Stage]:
    with tempfile.TemporaryDirectory(prefix="chatd-chaos-", dir="/tmp") as directory:
        path = Path(directory) / "workshop"
        async with (
            PlannedModel.running() as model,
            Workshop.running(path) as shop,
            engine_rig_with(dsn, model, tools=remote_tools(path)) as survivor,
            replicas() as born_in,
            AsyncExitStack() as victims,
        ):
            yield Stage(dsn, model, shop, survivor, born_in, victims)
