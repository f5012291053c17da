"""One chat kills the process of its worker whenever it runs, beside chats that do no harm.

`make chaos` does this first. Three replicas start again after each death. The killer ends in error
`crashed`; every other chat ends without an error, with its answer: those that progress, and those
that wait for one long answer through all the deaths.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.chat.lease import DEATHS_TO_ISOLATE, MAX_LONE_DEATHS
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId
from chatd.store.chat import chats
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.chaos.fork_server import ForkServer
from tests.support.chaos.killable_server import killable_server
from tests.support.chaos.planned_model import PlannedModel, ToolServer
from tests.support.chaos.replica_process import DieAt, ReplicaSetup
from tests.support.chaos.replicas import ReplicaProcess, replica_fork_server, replica_process
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.providers.server import Gate, RecordedRequest, Reply

REPLICAS: Final = 3
INNOCENTS: Final = 20
PATIENT: Final = 10
"""So many of the innocent chats wait for one long answer."""
KILLER: Final = ChatId(UUID(int=666))
DEATHS_TIMEOUT_S: Final = 300.0
SETTLE_TIMEOUT_S: Final = 180.0


class PatientModel(PlannedModel):
    """Holds the answers to names that begin with «patient» until the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.patience = Gate()

    def answer(self, request: RecordedRequest) -> Reply:
        reply = super().answer(request)
        if not self.last_step.startswith("patient"):
            return reply
        name = self.last_step.partition("/")[0]
        words = (chunk(content="answer "), self.patience, chunk(content=f"to {name}"))
        return Reply(steps=(*words, chunk(finish="stop"), DONE))


class KilledReplicas:
    """Replicas that die when they run the killer, and start again."""

    def __init__(self, fork_server: ForkServer, setup: ReplicaSetup) -> None:
        self.deaths = 0
        self._fork_server = fork_server
        self._setup = replace(setup, die_at=DieAt(event="action", fields={"chat_id": str(KILLER)}))
        self._count = 0

    async def keep_one_running(self, first: asyncio.Future[ReplicaProcess]) -> None:
        while True:
            self._count += 1
            setup = replace(self._setup, name=f"replica-{self._count}")
            async with replica_process(self._fork_server, setup) as replica:
                if not first.done():
                    first.set_result(replica)
                await replica.exited()
                self.deaths += 1


async def run_killer(dsn: str) -> str:
    """Raises AssertionError if an innocent chat was blamed, or the killer was not."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="chatd-killer-", dir="/tmp")
        )
        model = await stack.enter_async_context(PatientModel.running())
        path = Path(directory) / "workshop"
        await stack.enter_async_context(ToolServer.running(path))
        pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)))
        stack.push_async_callback(pool.close)
        setup = ReplicaSetup(dsn=dsn, model_url=model.url, tool_socket=str(path))
        fork_server = await stack.enter_async_context(replica_fork_server())
        replicas = KilledReplicas(fork_server, setup)
        async with asyncio.TaskGroup() as group:
            loop = asyncio.get_running_loop()
            firsts = [loop.create_future() for _ in range(REPLICAS)]
            running = [group.create_task(replicas.keep_one_running(it)) for it in firsts]
            innocents = await _send_all(await asyncio.gather(*firsts))
            await eventually(lambda: _blamed(pool), within_s=DEATHS_TIMEOUT_S)
            model.patience.open()
            rows = await eventually(lambda: _settled(pool, innocents), within_s=SETTLE_TIMEOUT_S)
            for task in running:
                task.cancel()
        _check(rows, model, replicas.deaths)
        return f"{replicas.deaths} deaths, {sum(model.asked.values())} model calls"


async def _send_all(replicas: Sequence[ReplicaProcess]) -> list[ChatId]:
    """The killer last. The replies of those that it kills are not waited for."""
    innocents = [ChatId(UUID(int=number)) for number in range(1, 1 + INNOCENTS)]
    for number, chat_id in enumerate(innocents):
        text = f"patient{number} 0" if number < PATIENT else f"busy{number} 200"
        done = await replicas[number % len(replicas)].create(chat_id, text)
        assert done.error is None, done.error
    await asyncio.gather(replicas[0].create(KILLER, "killer 0"), return_exceptions=True)
    return innocents


async def _blamed(pool: Pool) -> bool:
    killer = await chats.get(pool, HARNESS, KILLER)
    return killer is not None and killer.status == "error"


async def _settled(pool: Pool, chat_ids: list[ChatId]) -> list[Chat] | None:
    rows = await chats.get_many(pool, HARNESS, [*chat_ids, KILLER])
    return rows if all(row.status in ("waiting", "error") for row in rows) else None


def _check(rows: list[Chat], model: PlannedModel, deaths: int) -> None:
    errors = {row.id: row.last_error.kind for row in rows if row.last_error is not None}
    assert errors == {KILLER: "crashed"}, errors
    assert len(rows) == INNOCENTS + 1
    assert model.asked["killer/0"] == 0
    assert deaths >= DEATHS_TO_ISOLATE + MAX_LONE_DEATHS


async def _main() -> str:
    async with killable_server() as server:
        return await run_killer(server.dsn)


if __name__ == "__main__":
    sys.stdout.write(f"killer chat: blamed alone; {asyncio.run(_main())}\n")
