"""A whole replica in a test: real database, a model's API on loopback, signals to wait for.

Time is the real clock unless a test hands in its own; nothing here sleeps.
The fake API speaks Chat Completions and refuses what the real one refuses.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import msgspec
from msgspec import Raw

from chatd.clock import SystemClock
from chatd.domain import user_moves
from chatd.domain.change import Change
from chatd.domain.chat import Chat
from chatd.domain.commands import CreateChat, SendMessage, WhenBusy
from chatd.domain.ids import ChangeId, ChatId, ModelConfigId, ToolCallId, UserId
from chatd.domain.messages import Message, Prompt
from chatd.domain.model import ModelConfig, ToolSpec
from chatd.domain.parts import Part, Reasoning, Text, ToolCall, ToolResult
from chatd.domain.ports import Clock, Effect, Env, ModelChoice, Provider, Tool, ToolContext
from chatd.domain.tool_output import ToolOutput
from chatd.engine.worker import WorkerConfig
from chatd.providers.registry import build
from chatd.providers.settings import ProviderSettings
from chatd.replica import Replica, ReplicaConfig
from chatd.store import chats, messages
from chatd.store.conn import ConnectConfig
from chatd.store.transact import Operation
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate, Step

WITHIN_S = 10.0


class Events:
    """What the replica has emitted. Waiting looks back as well as forward."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []
        self._more = asyncio.Event()

    def __call__(self, event: str, **fields: object) -> None:
        self.seen.append((event, fields))
        self._more.set()

    async def wait(self, event: str, **fields: object) -> dict[str, object]:
        async with asyncio.timeout(WITHIN_S):
            while True:
                for name, said in self.seen:
                    if name == event and fields.items() <= said.items():
                        return said
                self._more.clear()
                await self._more.wait()


class OneModel:
    """Satisfies `ports.Models`."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.config = ModelConfig(
            id=ModelConfigId(UUID(int=7)), name="fake", provider="openai-compat", model="fake-1"
        )

    async def choose(self, wanted: ModelConfigId | None) -> ModelChoice:
        del wanted
        return ModelChoice(config=self.config, provider=self.provider, kind="openai-compat")


class GatedTool:
    """Satisfies `ports.Tool`. Runs up to its gate, if it has one, then says what it was asked."""

    def __init__(
        self, name: str = "echo", *, gate: Gate | None = None, effect: Effect = "read"
    ) -> None:
        self.spec = ToolSpec(
            name=name,
            description="Says it again.",
            input_schema=Raw(b'{"type":"object","properties":{"say":{"type":"string"}}}'),
        )
        self.effect: Effect = effect
        self.serial = False
        self.exclusive = False
        self.stops_turn = False
        self.timeout_s = 5.0
        self.gate = gate
        self.runs: list[ToolCallId] = []

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        self.runs.append(context.call_id)
        if self.gate is not None:
            await self.gate.pass_through()
        return ToolOutput(text=f"said {bytes(args).decode()}")

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


class Tools:
    """Satisfies `ports.ToolSource`."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        del chat
        return self._tools


class House:
    def __init__(self, replica: Replica, events: Events, api: FakeCompatible) -> None:
        self.replica = replica
        self.events = events
        self.api = api
        self.owner = UserId(uuid4())

    # The model

    def says(self, *steps: str | Gate) -> None:
        """The next answer, piece by piece."""
        self.api.script(*(_piece(step) for step in steps), chunk(finish="stop"), DONE)

    def calls(self, *calls: tuple[str, str, str]) -> None:
        """The next answer calls tools: (id, name, arguments)."""
        wanted = [
            {"index": i, "id": id_, "type": "function", "function": {"name": n, "arguments": a}}
            for i, (id_, n, a) in enumerate(calls)
        ]
        self.api.script(chunk(tool_calls=wanted), chunk(finish="tool_calls"), DONE)

    # People

    async def create(self, text: str) -> ChatId:
        chat_id = ChatId(uuid4())
        with self.replica.worker.offer(root=True) as free:
            command = CreateChat(
                id=chat_id, owner_id=self.owner, title="test", prompt=self.prompt(text)
            )
            await self.replica.transactor.create(user_moves.create(command, free), change_id())
        return chat_id

    async def create_unowned(self, text: str) -> ChatId:
        """As a replica without a free slot does it."""
        chat_id = ChatId(uuid4())
        command = CreateChat(
            id=chat_id, owner_id=self.owner, title="test", prompt=self.prompt(text)
        )
        await self.replica.transactor.create(user_moves.create(command, None), change_id())
        return chat_id

    async def send(self, chat_id: ChatId, text: str, when_busy: WhenBusy = "queue") -> Chat:
        command = SendMessage(prompt=self.prompt(text), when_busy=when_busy)
        with self.replica.worker.offer(root=True) as free:
            return await self.move(
                chat_id, lambda chat: user_moves.send_message(chat, command, free)
            )

    async def interrupt(self, chat_id: ChatId) -> Chat:
        return await self.move(chat_id, lambda chat: user_moves.interrupt(chat, None))

    async def move(self, chat_id: ChatId, decide: Callable[[Chat], Change | None]) -> Chat:
        outcome = await self.replica.transactor.run(
            Operation(
                chat_id=chat_id, change_id=change_id(), decide=lambda loaded: decide(loaded.chat)
            )
        )
        return outcome.chat

    def prompt(self, text: str) -> Prompt:
        return Prompt(content=(Text(text=text),), created_by=self.owner)

    # Fate

    def leaves(self) -> asyncio.Task[None]:
        """In good order."""
        return asyncio.get_running_loop().create_task(self.replica.worker.drain())

    # What there is to see

    async def chat(self, chat_id: ChatId) -> Chat:
        found = await chats.get(self.replica.database.pool, chat_id)
        assert found is not None
        return found

    async def rests(self, chat_id: ChatId, *, epoch: int | None = None) -> Chat:
        """Until no runner works on it any more."""
        fields = {"chat_id": chat_id} if epoch is None else {"chat_id": chat_id, "epoch": epoch}
        await self.events.wait("runner_left", **fields)
        return await self.chat(chat_id)

    async def transcript(self, chat_id: ChatId) -> list[str]:
        found = await messages.history(self.replica.database.pool, chat_id)
        return [_line(message) for message in found]


def change_id() -> ChangeId:
    return ChangeId(random.getrandbits(62) + 1)


def _piece(step: str | Gate) -> Step:
    return step if isinstance(step, Gate) else chunk(content=step)


def _line(message: Message) -> str:
    return f"{message.role}: {' '.join(_word(part) for part in message.content)}"


def _word(part: Part) -> str:
    match part:
        case Text() | Reasoning():
            return part.text
        case ToolCall():
            return f"{part.tool_name}({part.tool_call_id})"
        case ToolResult():
            result = msgspec.json.decode(bytes(part.result)) if part.result else None
            return f"{'error' if part.is_error else 'result'}({part.tool_call_id}) {result}"
        case _:
            return type(part).__name__


@asynccontextmanager
async def a_house(
    dsn: str,
    *,
    tools: Sequence[Tool] = (),
    clock: Clock | None = None,
    worker: WorkerConfig | None = None,
) -> AsyncGenerator[House]:
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, tools=tools, clock=clock, worker=worker) as house,
    ):
        yield house


@asynccontextmanager
async def a_house_with(
    dsn: str,
    api: FakeCompatible,
    *,
    tools: Sequence[Tool] = (),
    clock: Clock | None = None,
    worker: WorkerConfig | None = None,
) -> AsyncGenerator[House]:
    """Another replica on the same database and model."""
    events = Events()
    env = Env(clock=clock or SystemClock(), emit=events, new_id=uuid4, new_change_id=change_id)
    provider = build(ProviderSettings(kind="openai-compat", base_url=f"{api.url}/v1"))
    config = ReplicaConfig(
        connect=ConnectConfig(dsn=dsn), worker=worker or WorkerConfig(tick_s=0.2, drain_s=5)
    )
    replica = Replica(config, env, models=OneModel(provider), tools=Tools(tools))
    try:
        async with replica.running():
            async with asyncio.timeout(WITHIN_S):
                await replica.worker.registered.wait()
            yield House(replica, events, api)
    finally:
        await provider.close()
