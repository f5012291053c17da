"""A whole replica in a test: real database, a fake model API on loopback, and events to wait for.

It uses the real clock unless a test passes its own. The fake API speaks Chat Completions and
rejects what the real one rejects.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal
from uuid import UUID, uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chatd.app.replica import Replica, ReplicaConfig, ReplicaOptions, open_database_pools
from chatd.clock import SystemClock
from chatd.domain.access.permissions import UserActor
from chatd.domain.answer.tool_calls import DEFAULT_STEP_LIMITS, StepLimits
from chatd.domain.chat.commands import (
    AnswerCalls,
    CallAnswer,
    ClientResult,
    Command,
    CreateChat,
    EditMessage,
    InterruptChat,
    PromoteQueued,
    ReapChat,
    RequestCompaction,
    SendMessage,
    SubmitToolResults,
    UpdateChat,
    WhenBusy,
)
from chatd.domain.chat.messages import Message, UserInput
from chatd.domain.chat.parts import (
    NoticePart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.row import Chat, ChatError, Episode
from chatd.domain.ids import ChangeId, ChatId, ModelConfigId, QueueId, ToolCallId, UserId, WorkerId
from chatd.domain.model.config import LearnedLimit
from chatd.domain.model.failures import (
    ClassifiedFailure,
    FailureKind,
    ModelError,
    ModelRemoved,
    RemovedModel,
    known_failure,
)
from chatd.domain.model.protocol import Effort, ModelConfig, Prices
from chatd.domain.model.retry import CallLimits
from chatd.domain.ports import Clock, Env, ModelChoice, Provider, Tool, ToolSource
from chatd.domain.tool_policy.rules import ToolPolicy, ToolRule
from chatd.engine.acquirer import SlotsConfig
from chatd.engine.hooks import TurnHooks
from chatd.engine.model.budget import Budget, SpendLimit
from chatd.engine.model.model_call import AnswerTimes
from chatd.engine.worker import WorkerConfig
from chatd.providers.provider_config import ProviderConfig, Secret
from chatd.providers.registry import build_provider
from chatd.store.chat import chats, messages
from chatd.store.database.conn import ConnectConfig, StatementHook
from chatd.store.database.nats import NatsConfig
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool
from chatd.store.deployment import tool_policies
from chatd.stream.journal_tail import read_episode
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.operations import create_chat, operation
from tests.support.outcomes import present
from tests.support.providers.anthropic import KEY as ANTHROPIC_KEY
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Cut, FakeServer, Gate, Step
from tests.support.tools import Tools

WAIT_TIMEOUT_S = 30.0
"""Only a machine that is very busy takes this long."""
NO_SLOTS = WorkerConfig(heartbeat_interval_s=0.2, slots=SlotsConfig(roots=0))
SHORT_DRAIN = WorkerConfig(heartbeat_interval_s=0.2, drain_timeout_s=0.1)


class Events:
    """The events that the replica has emitted. `wait` also finds earlier ones."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []
        self._more = asyncio.Event()

    def __call__(self, event: str, **fields: object) -> None:
        self.seen.append((event, fields))
        self._more.set()

    async def wait(self, event: str, **fields: object) -> dict[str, object]:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                for name, emitted in self.seen:
                    if name == event and fields.items() <= emitted.items():
                        return emitted
                self._more.clear()
                await self._more.wait()


class OneModel:
    """Satisfies `ports.ModelSource`: the default, perhaps `others`, models that were `removed`, and
    models that cannot be used, by name."""

    def __init__(self, provider: Provider, kind: str) -> None:
        self.provider = provider
        self.kind = kind
        self.limits = CallLimits()
        self.config = ModelConfig(
            id=ModelConfigId(UUID(int=7)),
            name="fake",
            provider=kind,
            model="fake-1",
            prices=Prices(input="1", output="2"),
        )
        self.summary_config: ModelConfig | None = None
        self.removed: dict[ModelConfigId, str] = {}
        self.others: dict[ModelConfigId, ModelChoice] = {}
        self.unusable: dict[str, FailureKind] = {}
        self.efforts: tuple[Effort, ...] | None = None
        self.learned: LearnedLimit | None = None

    async def choose(
        self, model_config_id: ModelConfigId | None, owner_id: UserId | None = None
    ) -> ModelChoice:
        del owner_id
        if model_config_id is not None and model_config_id in self.removed:
            name = self.removed[model_config_id]
            removed = RemovedModel(id=model_config_id, name=name)
            raise ModelRemoved(removed, f"The model {name} was deleted.")
        if model_config_id is not None and model_config_id in self.others:
            return self._usable(self.others[model_config_id])
        own = ModelChoice(
            config=self._config_with_limit(),
            provider=self.provider,
            kind=self.kind,
            limits=self.limits,
            learned=None if self.config.context_limit else self.learned,
            efforts=self.efforts,
        )
        if self.summary_config is not None:
            own = replace(own, summary_model=replace(own, config=self.summary_config))
        return self._usable(own)

    def _usable(self, choice: ModelChoice) -> ModelChoice:
        if (kind := self.unusable.get(choice.config.name)) is not None:
            error = ChatError(message=f"{choice.config.name} cannot be used.", kind=kind)
            raise ModelError(ClassifiedFailure(kind=kind, error=error))
        return choice

    async def configured(self, model_config_id: ModelConfigId | None) -> ModelConfig | None:
        other = None if model_config_id is None else self.others.get(model_config_id)
        return self.config if other is None else other.config

    async def choose_named(self, name: str, owner_id: UserId | None = None) -> ModelChoice:
        del owner_id
        found = [one for one in self.others.values() if one.config.name == name]
        if not found:
            raise ModelError(known_failure("config", name))
        return self._usable(found[0])

    async def learn_limit(self, model_id: ModelConfigId, learned: LearnedLimit) -> None:
        assert model_id == self.config.id
        self.learned = learned

    async def forget_limit(self, model_id: ModelConfigId, learned: LearnedLimit) -> None:
        assert (model_id, learned) == (self.config.id, self.learned)
        self.learned = None

    def _config_with_limit(self) -> ModelConfig:
        if self.config.context_limit or self.learned is None or self.learned.is_bound:
            return self.config
        return replace(self.config, context_limit=self.learned.tokens)


class EngineRig:
    def __init__(self, replica: Replica, events: Events, api: FakeServer, model: OneModel) -> None:
        self.replica = replica
        self.events = events
        self.api = api
        self.model = model
        self.owner = UserId(UUID(int=7))

    @property
    def pool(self) -> Pool:
        return self.replica.database.pool

    # The model

    def answer(self, *steps: str | Step, input_tokens: int | None = None) -> None:
        """Script the next answer, piece by piece. It reports `input_tokens` as its usage."""
        usage = () if input_tokens is None else (usage_chunk(input_tokens),)
        pieces = (_piece(step) for step in steps)
        self.api.script(*pieces, chunk(finish="stop"), *usage, DONE)

    def cut_answer(self, *steps: str | Step) -> None:
        """Script an answer that ends in the middle."""
        self.api.script(*(_piece(step) for step in steps), Cut())

    def set_context_limit(self, limit: int) -> None:
        """Set the model's context window, in tokens."""
        self.model.config = replace(self.model.config, context_limit=limit)

    def call_tools(
        self,
        *calls: tuple[str, str, str],
        input_tokens: int | None = None,
        first: Gate | None = None,
    ) -> None:
        """Script an answer that calls tools: (id, name, arguments), perhaps after a gate."""
        usage = () if input_tokens is None else (usage_chunk(input_tokens),)
        wanted = [
            {"index": i, "id": id_, "type": "function", "function": {"name": n, "arguments": a}}
            for i, (id_, n, a) in enumerate(calls)
        ]
        gates = () if first is None else (first,)
        self.api.script(*gates, chunk(tool_calls=wanted), chunk(finish="tool_calls"), *usage, DONE)

    # Users

    async def create(self, text: str, **fields: object) -> ChatId:
        command = replace(self.command(text), **fields)
        with self.replica.worker.reserve_slot(root=command.parent_chat_id is None) as free:
            await create_chat(self.replica.transactor, command, change_id(), free=free)
        return command.id

    async def ask(self, text: str, *answer: str | Step) -> ChatId:
        """Script the answer and create the chat. If the answer has a gate, wait until the model
        has reached it."""
        self.answer(*answer)
        chat_id = await self.create(text)
        for gate in answer:
            if isinstance(gate, Gate):
                await gate.reached.wait()
                break
        return chat_id

    async def start_tool(self, text: str, gate: Gate) -> ChatId:
        """Script a call `c1` of the tool `echo`, create the chat and wait until the tool has
        reached its gate."""
        self.call_tools(("c1", "echo", "{}"))
        chat_id = await self.create(text)
        await gate.reached.wait()
        return chat_id

    def command(self, text: str) -> CreateChat:
        return CreateChat(
            id=ChatId(uuid4()), owner_id=self.owner, title="test", prompt=self.prompt(text)
        )

    async def create_unowned(self, text: str) -> ChatId:
        """As a replica without a free slot creates it."""
        command = self.command(text)
        await create_chat(self.replica.transactor, command, change_id(), free=None)
        return command.id

    async def send(self, chat_id: ChatId, text: str, when_busy: WhenBusy = "queue") -> Chat:
        command = SendMessage(prompt=self.prompt(text), when_busy=when_busy)
        with self.replica.worker.reserve_slot(root=True) as free:
            return await self.run(chat_id, command, free)

    async def interrupt(self, chat_id: ChatId) -> Chat:
        return await self.run(chat_id, InterruptChat())

    async def edit(self, chat_id: ChatId, text: str) -> Chat:
        """Edit the chat's first message."""
        target = (await messages.load_history(self.pool, HARNESS, chat_id))[0]
        command = EditMessage(message_id=target.id, prompt=self.prompt(text))
        with self.replica.worker.reserve_slot(root=True) as free:
            return await self.run(chat_id, command, free)

    async def submit(self, chat_id: ChatId, **outputs: str) -> Chat:
        """Submit results of client tools, by call id."""
        results = (
            ClientResult(tool_call_id=ToolCallId(i), output=text) for i, text in outputs.items()
        )
        command = SubmitToolResults(results=tuple(results))
        with self.replica.worker.reserve_slot(root=True) as free:
            return await self.run(chat_id, command, free)

    async def answer_calls(self, chat_id: ChatId, *answers: CallAnswer) -> Chat:
        """As the owner."""
        command = AnswerCalls(answered_by=self.owner, answers=answers)
        with self.replica.worker.reserve_slot(root=True) as free:
            return await self.run(chat_id, command, free)

    async def set_policy(self, *rules: ToolRule) -> None:
        """The owner's own tool policy."""
        actor, policy = UserActor(user_id=self.owner, role="member"), ToolPolicy(rules=rules)
        stored = await tool_policies.get_user(self.pool, actor)
        await tool_policies.save_user(self.pool, actor, policy, version=stored.version)

    async def compact(self, chat_id: ChatId) -> Chat:
        command = RequestCompaction(compactable=True)
        with self.replica.worker.reserve_slot(root=True) as free:
            return await self.run(chat_id, command, free)

    async def promote(self, chat_id: ChatId, item: int) -> Chat:
        return await self.run(chat_id, PromoteQueued(id=QueueId(item)))

    async def archive(self, chat_id: ChatId) -> Chat:
        return await self.run(chat_id, UpdateChat(archived=True))

    async def unarchive(self, chat_id: ChatId) -> Chat:
        return await self.run(chat_id, UpdateChat(archived=False))

    async def run(self, chat_id: ChatId, command: Command, free: WorkerId | None = None) -> Chat:
        done = operation(command, change_id(), chat_id, free=free)
        return (await self.replica.transactor.run(done)).chat

    async def reap_owner(self, chat_id: ChatId) -> None:
        """Take the chat from its worker, which is dead, before its lease has ended."""
        owner = present((await self.chat(chat_id)).worker_id)
        await self.run(chat_id, ReapChat(worker_ids=frozenset({owner})))

    def prompt(self, text: str) -> UserInput:
        return UserInput(content=(TextPart(text=text),), created_by=self.owner)

    # Life cycle

    def start_drain(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self.replica.worker.drain())

    def new_replica(self, dsn: str) -> Replica:
        """Another replica of the same kind, not running yet."""
        config = ReplicaConfig(connect=ConnectConfig(dsn=dsn), worker=RigOptions().worker)
        return Replica(
            config, self.replica.env, models=self.model, build_tools=lambda _replica: Tools(())
        )

    # Waits and reads

    async def chat(self, chat_id: ChatId) -> Chat:
        return present(await chats.get(self.pool, HARNESS, chat_id))

    async def wait_state(self, chat_id: ChatId, *states: str) -> Chat:
        """Wait until the row is in one of the states."""

        async def is_there() -> Chat | None:
            chat = await self.chat(chat_id)
            return chat if chat.state in states else None

        return await eventually(is_there, within_s=WAIT_TIMEOUT_S)

    async def wait_shown(self, chat_id: ChatId, text: str) -> None:
        """Wait until the live parts contain the text."""

        async def is_there() -> bool:
            tape = self.replica.episodes.find(chat_id)
            return tape is not None and text.encode() in b"".join(tape.events)

        await eventually(is_there, within_s=WAIT_TIMEOUT_S)

    async def wait_journaled(self, chat_id: ChatId) -> None:
        """Wait until live parts of the running step are in the journal."""
        episode = Episode.of(await self.chat(chat_id))

        async def is_journaled() -> bool:
            return bool(await read_episode(self.pool, episode))

        await eventually(is_journaled)

    async def wait_chat_task_left(self, chat_id: ChatId, *, epoch: int | None = None) -> Chat:
        """Wait until the chat's runner, or the one of that epoch, has ended."""
        fields = {"chat_id": chat_id} if epoch is None else {"chat_id": chat_id, "epoch": epoch}
        await self.events.wait("chat_task_left", **fields)
        return await self.chat(chat_id)

    async def history(self, chat_id: ChatId) -> list[Message]:
        return await messages.load_history(self.pool, HARNESS, chat_id)

    async def summary_result(self, chat_id: ChatId) -> dict[str, object]:
        """What viewers see of the newest summary."""
        rows = reversed(await self.history(chat_id))
        parts = (part for row in rows for part in row.content)
        shown = next(p for p in parts if isinstance(p, ToolResultPart) and p.result)
        return msgspec.json.decode(bytes(shown.result or b""), type=dict[str, object])

    async def transcript(self, chat_id: ChatId) -> list[str]:
        return [_line(message) for message in await self.history(chat_id)]

    async def recorded_usage(self) -> list[tuple[str, bool, int | str]]:
        """Every recorded model call: kind, success, input tokens or `estimated`."""
        await self.replica.usage_writer.wait_idle()
        rows = await self.pool.fetch("SELECT * FROM usage_events ORDER BY id")
        return [
            (row["kind"], row["ok"], "estimated" if row["estimated"] else row["input_tokens"])
            for row in rows
        ]


def change_id() -> ChangeId:
    return ChangeId(random.getrandbits(62) + 1)


def _piece(step: str | Step) -> Step:
    return chunk(content=step) if isinstance(step, str) else step


def usage_chunk(read: int) -> bytes:
    usage = {"prompt_tokens": read, "completion_tokens": 5, "total_tokens": read + 5}
    data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + msgspec.json.encode({**data, "choices": [], "usage": usage}) + b"\n\n"


def _line(message: Message) -> str:
    return f"{message.role}: {' '.join(_word(part) for part in message.content)}"


def _word(part: Part) -> str:
    match part:
        case TextPart() | ReasoningPart():
            return part.text
        case ToolCallPart():
            return f"{part.tool_name}({part.tool_call_id})"
        case ToolResultPart():
            result = msgspec.json.decode(bytes(part.result)) if part.result else None
            return f"{'error' if part.is_error else 'result'}({part.tool_call_id}) {result}"
        case NoticePart():
            return f"notice({part.code})"
        case _:
            return type(part).__name__


class RigOptions(Struct, frozen=True, kw_only=True):
    """How a replica differs from the default one."""

    tools: Sequence[Tool] = ()
    source: ToolSource | None = None
    build_tools: Callable[[Replica], ToolSource] | None = None
    clock: Clock | None = None
    worker: WorkerConfig = WorkerConfig(heartbeat_interval_s=0.2, drain_timeout_s=5)
    budget: Budget | None = None
    spend_limit: SpendLimit | None = None
    titles: bool = False
    model_call_timeout_s: float = 60.0
    pool_size: int = 3
    lock_timeout_s: float = 5.0
    max_steps: int = 1200
    on_statement: StatementHook | None = None
    kind: Literal["openai-compat", "anthropic"] = "openai-compat"
    limits: StepLimits = DEFAULT_STEP_LIMITS
    hooks: Callable[[Pool, ConfigChanges, Env], TurnHooks] | None = None
    nats: NatsConfig | None = None

    def provider_at(self, url: str) -> ProviderConfig:
        if self.kind == "anthropic":
            return ProviderConfig(kind="anthropic", base_url=url, api_key=Secret(ANTHROPIC_KEY))
        ids = {"X-Chat": Secret("{chat_id} of {owner_id}"), "X-Workspace": Secret("{workspace_id}")}
        return ProviderConfig(kind="openai-compat", base_url=f"{url}/v1", headers=ids)


@asynccontextmanager
async def engine_rig(dsn: str, **options: object) -> AsyncGenerator[EngineRig]:
    async with FakeCompatible.running() as api, engine_rig_with(dsn, api, **options) as rig:
        yield rig


@asynccontextmanager
async def engine_rig_with(
    dsn: str, api: FakeServer, **options: object
) -> AsyncGenerator[EngineRig]:
    """A replica on this database and model API. `options` are fields of `RigOptions`."""
    chosen = replace(RigOptions(), **options)
    events = Events()
    clock = chosen.clock or SystemClock()
    env = Env(clock=clock, emit=events, new_id=uuid4, new_change_id=change_id)
    provider = build_provider(chosen.provider_at(api.url))
    model = OneModel(provider, chosen.kind)
    config = ReplicaConfig(
        connect=ConnectConfig(dsn=dsn, lock_timeout_s=chosen.lock_timeout_s),
        nats=chosen.nats,
        worker=chosen.worker,
        spend_limit=chosen.spend_limit,
        titles=chosen.titles,
        model_call_timeout_s=chosen.model_call_timeout_s,
        pool_size=chosen.pool_size,
        max_steps=chosen.max_steps,
        answer_times=AnswerTimes(question_s=7200.0, approval_s=3600.0),
        step_limits=chosen.limits,
    )
    tools = chosen.source or Tools(chosen.tools)

    def build_tools(replica: Replica) -> ToolSource:
        return tools if chosen.build_tools is None else chosen.build_tools(replica)

    database, changes = open_database_pools(config, chosen.on_statement), ConfigChanges()
    hooks = None if chosen.hooks is None else chosen.hooks(database.pool, changes, env)
    replica = Replica(
        config,
        env,
        models=model,
        build_tools=build_tools,
        options=ReplicaOptions(budget=chosen.budget, hooks=hooks),
        database=database,
        changes=changes,
    )
    closing = AsyncExitStack()
    try:
        async with replica.running():
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await replica.worker.registered.wait()
            yield EngineRig(replica, events, api, model)
            if isinstance(clock, FakeClock):
                # Closing waits for sleeps of this clock, which the test no longer advances.
                await closing.enter_async_context(advancing(clock))
    finally:
        await closing.aclose()
        await provider.close()


@asynccontextmanager
async def advancing(clock: FakeClock) -> AsyncGenerator[None]:
    """Advance the clock continuously, about ten times as fast as real time."""

    async def advance() -> None:
        while True:
            clock.advance(0.01)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        advancing_task = group.create_task(advance())
        try:
            yield
        finally:
            advancing_task.cancel()


async def pass_time(clock: FakeClock, seconds: float) -> None:
    """Advance the clock in steps that let the worker renew its lease in between."""
    while seconds > 0:
        await clock.wait_for_sleeper("heartbeat")
        step = min(seconds, 5.0)
        clock.advance(step)
        seconds -= step
