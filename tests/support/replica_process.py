"""A replica as a process of its own, for tests that kill it.

Says every event on its output, one JSON object a line; does what its input says, one a line, as
the front door of a server would. Can be told beforehand to die at an event: then it is dead at
exactly that point of its code, without a word more.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Literal
from uuid import UUID, uuid4

import msgspec
from msgspec import Struct

from chatd.clock import SystemClock
from chatd.domain import user_moves
from chatd.domain.change import Request
from chatd.domain.commands import CreateChat, SendMessage, WhenBusy
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChangeId, ChatId, ModelConfigId, RequestId, UserId
from chatd.domain.messages import Prompt
from chatd.domain.model import ModelConfig
from chatd.domain.parts import Text
from chatd.domain.ports import Env, ModelChoice, Provider
from chatd.engine.slots import SlotsConfig
from chatd.engine.worker import WorkerConfig
from chatd.providers.registry import build
from chatd.providers.settings import ProviderSettings
from chatd.replica import Replica, ReplicaConfig
from chatd.store.conn import ConnectConfig
from chatd.store.transact import Operation
from tests.support.planned import remote_tools
from tests.support.tools import Tools

OWNER = UserId(UUID(int=4711))


class DieAt(Struct, frozen=True, kw_only=True):
    """The nth time that this event is said, with these words in it."""

    event: str
    nth: int = 1
    fields: dict[str, str | int] = {}


class Setup(Struct, frozen=True, kw_only=True):
    dsn: str
    model_url: str
    shop: str
    name: str = "chatd"
    tick_s: float = 0.2
    drain_s: float = 5.0
    roots: int = 100
    die_at: DieAt | None = None


class Order(Struct, frozen=True, kw_only=True):
    id: int
    do: Literal["create", "send", "interrupt"]
    chat: UUID
    text: str = ""
    key: UUID | None = None
    when_busy: WhenBusy = "queue"


class Done(Struct, frozen=True, kw_only=True):
    reply: int
    state: str | None = None
    error: str | None = None


class OneModel:
    """Satisfies `ports.Models`."""

    def __init__(self, provider: Provider) -> None:
        self._choice = ModelChoice(
            config=ModelConfig(
                id=ModelConfigId(UUID(int=7)), name="fake", provider="fake", model="fake-1"
            ),
            provider=provider,
            kind="openai-compat",
        )

    async def choose(self, wanted: ModelConfigId | None) -> ModelChoice:
        del wanted
        return self._choice


class Mouth:
    """Satisfies `ports.Emit`."""

    def __init__(self, die_at: DieAt | None) -> None:
        self._die_at = die_at
        self._count = 0

    def __call__(self, event: str, **fields: object) -> None:
        said = {name: str(value) for name, value in fields.items()}
        if self._is_due(event, said):
            os.kill(os.getpid(), signal.SIGKILL)
        say({"event": event, **said})

    def _is_due(self, event: str, said: dict[str, str]) -> bool:
        due = self._die_at
        if due is None or event != due.event:
            return False
        if any(said.get(name) != str(value) for name, value in due.fields.items()):
            return False
        self._count += 1
        return self._count == due.nth


def say(line: object) -> None:
    os.write(1, msgspec.json.encode(line) + b"\n")


def change_id() -> ChangeId:
    return ChangeId(random.getrandbits(62) + 1)


class FrontDoor:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def carry_out(self, order: Order) -> Done:
        try:
            state = await self._do(order)
        except ChatdError as error:
            return Done(reply=order.id, error=error.code)
        return Done(reply=order.id, state=state)

    async def _do(self, order: Order) -> str:
        with self._replica.worker.offer(root=True) as free:
            if order.do == "create":
                command = CreateChat(
                    id=ChatId(order.chat), owner_id=OWNER, title="chaos", prompt=prompt(order)
                )
                made = await self._replica.transactor.create(
                    user_moves.create(command, free), change_id(), key_of(order, OWNER)
                )
                return made.chat.state
            send = SendMessage(prompt=prompt(order), when_busy=order.when_busy)
            outcome = await self._replica.transactor.run(
                Operation(
                    chat_id=ChatId(order.chat),
                    change_id=change_id(),
                    decide=lambda loaded: (
                        user_moves.interrupt(loaded.chat, free)
                        if order.do == "interrupt"
                        else user_moves.send_message(loaded.chat, send, free)
                    ),
                    request=key_of(order, order.chat),
                )
            )
            return outcome.chat.state


def prompt(order: Order) -> Prompt:
    return Prompt(content=(Text(text=order.text),), created_by=OWNER)


def key_of(order: Order, scope: UUID) -> Request | None:
    if order.key is None:
        return None
    return Request(
        scope=scope, id=RequestId(order.key), op=order.do, fingerprint=f"{order.do} {order.text}"
    )


async def obey(replica: Replica) -> None:
    door, decoder = FrontDoor(replica), msgspec.json.Decoder(Order)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def one(line: bytes) -> None:
        say(await door.carry_out(decoder.decode(line)))

    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(one(line))
    os.kill(os.getpid(), signal.SIGKILL)  # whoever started us is gone


async def main(setup: Setup) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    env = Env(
        clock=SystemClock(),
        emit=Mouth(setup.die_at),
        new_id=uuid4,
        new_change_id=change_id,
    )
    provider = build(ProviderSettings(kind="openai-compat", base_url=f"{setup.model_url}/v1"))
    config = ReplicaConfig(
        connect=ConnectConfig(dsn=setup.dsn, application_name=setup.name),
        worker=WorkerConfig(
            tick_s=setup.tick_s, drain_s=setup.drain_s, slots=SlotsConfig(roots=setup.roots)
        ),
        pool_size=4,
    )
    tools = Tools(remote_tools(Path(setup.shop)))
    replica = Replica(config, env, models=OneModel(provider), tools=tools)
    async with replica.running():
        await replica.worker.registered.wait()
        say({"event": "ready", "worker_id": str(replica.me)})
        obeying = asyncio.get_running_loop().create_task(obey(replica))
        await stop.wait()
        obeying.cancel()
    say({"event": "left"})
    # A tool that does not listen would keep the loop from ending.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Setup)))
