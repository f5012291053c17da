"""A replica as a process of its own, for tests that kill it.

It writes every event to its output and executes orders from its input, one JSON object per line.
With `die_at` it kills itself at an event, at exactly that point of its code.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from chatd.app.replica import Replica, ReplicaConfig
from chatd.clock import SystemClock
from chatd.domain.ports import Env
from chatd.engine.acquirer import SlotsConfig
from chatd.engine.model.budget import SpendLimit
from chatd.engine.worker import WorkerConfig
from chatd.providers.provider_config import ProviderConfig
from chatd.providers.registry import build_provider
from chatd.store.database.conn import ConnectConfig
from tests.support.chaos.fork_server import serve
from tests.support.chaos.planned_model import remote_tools
from tests.support.chaos.replica_orders import Order, OrderedViewers, OrderExecutor, write_line
from tests.support.engine_rig import OneModel, change_id
from tests.support.subagents import SubagentSource


class DieAt(Struct, frozen=True, kw_only=True):
    """The nth occurrence of this event with these fields."""

    event: str
    nth: int = 1
    fields: dict[str, str | int] = {}


class ReplicaSetup(Struct, frozen=True, kw_only=True):
    dsn: str
    model_url: str
    tool_socket: str
    name: str = "chatd"
    heartbeat_s: float = 0.2
    drain_s: float = 5.0
    roots: int = 100
    spend_limit_micros: int | None = None
    prefill: bool = False
    die_at: DieAt | None = None


class EventWriter:
    """Satisfies `ports.Emit`."""

    def __init__(self, die_at: DieAt | None) -> None:
        self._die_at = die_at
        self._count = 0

    def __call__(self, event: str, **fields: object) -> None:
        texts = {name: str(value) for name, value in fields.items()}
        if self._is_due(event, texts):
            os.kill(os.getpid(), signal.SIGKILL)
        write_line({"event": event, **texts})

    def _is_due(self, event: str, fields: dict[str, str]) -> bool:
        due = self._die_at
        if due is None or event != due.event:
            return False
        if any(fields.get(name) != str(value) for name, value in due.fields.items()):
            return False
        self._count += 1
        return self._count == due.nth


async def serve_orders(replica: Replica) -> None:
    executor, viewers = OrderExecutor(replica), OrderedViewers(replica.feeds)
    decoder = msgspec.json.Decoder(Order)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def one(order: Order) -> None:
        write_line(await executor.execute(order))

    try:
        async with asyncio.TaskGroup() as group:
            while line := await reader.readline():
                order = decoder.decode(line)
                match order.do:
                    case "watch":
                        viewers.start(order)
                    case "unwatch":
                        viewers.stop(order)
                    case _:
                        group.create_task(one(order))
    finally:
        viewers.close()
    os.kill(os.getpid(), signal.SIGKILL)  # the test process is gone


async def main(setup: ReplicaSetup) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    env = Env(
        clock=SystemClock(),
        emit=EventWriter(setup.die_at),
        new_id=uuid4,
        new_change_id=change_id,
        jitter=random.random,
    )
    provider = build_provider(
        ProviderConfig(kind="openai-compat", base_url=f"{setup.model_url}/v1")
    )
    config = ReplicaConfig(
        connect=ConnectConfig(dsn=setup.dsn, application_name=setup.name),
        worker=WorkerConfig(
            heartbeat_interval_s=setup.heartbeat_s,
            drain_timeout_s=setup.drain_s,
            slots=SlotsConfig(roots=setup.roots),
        ),
        pool_size=4,
        spend_limit=SpendLimit(micros=setup.spend_limit_micros),
    )
    others = remote_tools(Path(setup.tool_socket))
    model = OneModel(provider, "openai-compat")
    if setup.prefill:
        model.config = replace(model.config, options=Raw(b'{"prefill":"trailing"}'))
    replica = Replica(
        config, env, models=model, build_tools=lambda replica: SubagentSource(replica, others)
    )
    async with replica.running():
        await replica.worker.registered.wait()
        write_line({"event": "ready", "worker_id": str(replica.worker_id)})
        orders = asyncio.get_running_loop().create_task(serve_orders(replica))
        await stop.wait()
        orders.cancel()
    write_line({"event": "left"})
    # A tool that ignores cancellation would keep the loop from ending.
    os._exit(0)


def run_replica(asked: bytes) -> None:
    asyncio.run(main(msgspec.json.decode(asked, type=ReplicaSetup)))


if __name__ == "__main__":
    serve(run_replica)
