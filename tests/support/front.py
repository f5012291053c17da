"""The front door on a real port, and clients of it. Nobody runs the chats: a test plays the
worker where it wants one.

Two people can come in, `ME` and `STRANGER`. What they get is kept as it came over the wire.
"""

import asyncio
import io
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import aiohttp
import msgspec
from msgspec import Struct
from prometheus_client import CollectorRegistry

from chatd.api.application import Api, build
from chatd.api.auth import Tokens
from chatd.api.doors import Doors, Limits, Rooms
from chatd.api.serve import Bound, serve
from chatd.clock import SystemClock
from chatd.domain.chat.change import Change
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.ids import ChatId, ModelConfigId, UserId, WorkerId
from chatd.domain.model.protocol import EffortRange, ModelConfig, Prices
from chatd.domain.ports import Clock
from chatd.store.chat import chats
from chatd.store.model_configs import StoredModel, StoredProvider
from chatd.store.pool import Pool
from tests.support.factories import OWNER
from tests.support.operations import deciding, deciding_transactor, operation
from tests.support.streaming import A, Network, StreamReplica, env_with, replica_on

ME: Final = "my-token"
STRANGER: Final = "a-strangers-token"
OTHER_OWNER: Final = UserId(UUID(int=77))
USERS: Final = {ME: OWNER, STRANGER: OTHER_OWNER}

Json = dict[str, object]


def model(number: int, name: str, **fields: object) -> ModelConfig:
    plain = ModelConfig(
        id=ModelConfigId(UUID(int=number)), name=name, provider="acme", model=f"{name}-1"
    )
    return msgspec.structs.replace(plain, **fields)


FAST: Final = model(501, "fast", context_limit=1000)
CLEVER: Final = model(502, "clever", provider="other", reasoning_effort=EffortRange(max="high"))
RETIRED: Final = model(503, "retired", prices=Prices(input="3"))
LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)


def known(config: ModelConfig, *, default: bool = False, enabled: bool = True) -> StoredModel:
    return StoredModel(
        config=config,
        enabled=enabled,
        is_default=default,
        source="settings",
        created_at=LONG_AGO,
        updated_at=LONG_AGO,
    )


class Directory:
    """Satisfies `ModelDirectory`. The first is the default; `gone` are switched off."""

    def __init__(self, *models: ModelConfig, gone: Sequence[ModelConfig] = ()) -> None:
        self.models = [known(one, default=one is models[0]) for one in models]
        self.models += [known(one, enabled=False) for one in gone]

    async def by_name(self, name: str) -> StoredModel | None:
        return next((one for one in self.models if one.config.name == name), None)

    async def get(self, model_id: ModelConfigId) -> StoredModel | None:
        return next((one for one in self.models if one.config.id == model_id), None)

    async def default(self) -> StoredModel | None:
        return next((one for one in self.models if one.is_default), None)

    async def all(self) -> Sequence[StoredModel]:
        return self.models

    async def providers(self) -> Sequence[StoredProvider]:
        return [
            StoredProvider(
                id=UUID(int=number),
                name=name,
                kind="anthropic",
                base_url=None,
                has_api_key=name == "acme",
                enabled=True,
                source="settings",
                created_at=LONG_AGO,
                updated_at=LONG_AGO,
            )
            for number, name in enumerate(sorted({one.config.provider for one in self.models}))
        ]


class Slots:
    """Satisfies `Offer`: a worker, if the test has one."""

    def __init__(self) -> None:
        self.worker: WorkerId | None = None
        self.held = 0

    @contextmanager
    def __call__(self, *, root: bool) -> Generator[WorkerId | None]:
        self.held += 1
        try:
            yield self.worker
        finally:
            self.held -= 1


class Answer(Struct, frozen=True, kw_only=True):
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.content, type=Json)

    @property
    def items(self) -> list[Json]:
        return msgspec.json.decode(self.content, type=list[Json])

    def at(self, name: str) -> list[Json]:
        """A list that is in the answer."""
        return msgspec.convert(self.json[name], list[Json])

    @property
    def code(self) -> tuple[int, object]:
        """Status and code of an error, whose body has the one shape that errors have."""
        body = self.json
        assert body.keys() <= {"code", "message", "detail", "validations"}, body
        assert isinstance(body["message"], str)
        assert self.headers["content-type"] == "application/json"
        return self.status, body["code"]

    @property
    def field(self) -> object:
        """The one field that is complained about."""
        validations = msgspec.convert(self.json["validations"], list[dict[str, str]])
        (only,) = validations
        return only["field"]


class Front:
    """One replica's front door, and somebody at it."""

    sent: list[str]
    """The statements that its replica has sent."""

    def __init__(self, replica: StreamReplica, doors: Doors, api: Api, at: Bound) -> None:
        self.sent = []
        self.replica = replica
        self.doors = doors
        self.api = api
        self.port = at.port
        self.http = aiohttp.ClientSession(at.url)

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = ME,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """`body` is sent as JSON, or as it is if it is bytes."""
        data = None
        if body is not None:
            data = io.BytesIO(body if isinstance(body, bytes) else msgspec.json.encode(body))
        sent = authorized(token) | dict(headers or {})
        async with (
            asyncio.timeout(30),
            self.http.request(method, f"/api/v1{path}", data=data, headers=sent) as response,
        ):
            content = await response.read()
            found = {name.lower(): value for name, value in response.headers.items()}
            return Answer(status=response.status, headers=found, content=content)

    async def open_page(self, path: str) -> Answer:
        """Outside of the API."""
        async with asyncio.timeout(30), self.http.get(path) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            content = await response.read()
            return Answer(status=response.status, headers=found, content=content)

    async def create(self, words: str = "hello", **fields: object) -> ChatId:
        made = await self.ask("POST", "/chats", saying(words, **fields))
        assert made.status == 201, made.content
        return ChatId(UUID(str(made.json["id"])))

    async def chat(self, chat_id: ChatId) -> Chat:
        found = await chats.get(self.replica.pool, chat_id)
        assert found is not None
        return found

    async def act(self, chat_id: ChatId, decide: Callable[[Chat], Change | None]) -> Chat:
        """Play the worker, or anybody else."""
        transactor = deciding_transactor(self.replica.pool, self.replica.tell)
        command = deciding(lambda loaded: decide(loaded.chat))
        done = operation(command, self.doors.env.new_change_id(), chat_id)
        return (await transactor.run(done)).chat


def authorized(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def saying(words: str, **fields: object) -> Json:
    """The body of a request that says something."""
    return {"content": [{"type": "text", "text": words}], **fields}


class Door(Struct, frozen=True, kw_only=True):
    """How a test wants its front door."""

    clock: Clock | None = None
    limits: Limits = Limits()
    models: tuple[ModelConfig, ...] = (FAST, CLEVER)
    draining: Callable[[], bool] = lambda: False
    known: Callable[[ChatId], Chat | None] = lambda _chat_id: None
    rooms: Callable[[Pool], Rooms | None] = lambda _pool: None


def doors_of(replica: StreamReplica, wanted: Door, clock: Clock) -> Doors:
    def announce(chat: Chat, kind: str) -> None:
        replica.watches.on_metadata_changed(chat, kind)
        replica.network.publish(Hint.of(chat, kind))

    return Doors(
        pool=replica.pool,
        transactor=replica.transactor,
        announce=announce,
        offer=Slots(),
        feeds=replica.feeds,
        watches=replica.watches,
        models=Directory(*wanted.models, gone=(RETIRED,)),
        tokens=Tokens(USERS),
        env=env_with(clock),
        registry=CollectorRegistry(),
        draining=wanted.draining,
        known=wanted.known,
        rooms=wanted.rooms(replica.pool),
        limits=wanted.limits,
    )


@asynccontextmanager
async def front_door(dsn: str, wanted: Door | None = None) -> AsyncGenerator[Front]:
    wanted = wanted or Door()
    clock = wanted.clock or SystemClock()
    async with replica_on(dsn, clock, Network(), A) as (replica, sent):
        doors = doors_of(replica, wanted, clock)
        api = build(doors)
        async with listening(api) as bound:
            front = Front(replica, doors, api, bound)
            front.sent = sent
            try:
                yield front
            finally:
                await front.http.close()


@asynccontextmanager
async def listening(api: Api) -> AsyncGenerator[Bound]:
    """Cut off at the end, without the patience that a stop has."""
    bound: asyncio.Future[Bound] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        server = group.create_task(serve(api, "127.0.0.1", 0, bound.set_result, asyncio.Event()))
        try:
            yield await bound
        finally:
            server.cancel()
