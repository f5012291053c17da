"""An API server on a real port and its client. No worker runs the chats; tests play the worker.

There are two users, `ME` and `OTHER_USER`.
"""

import asyncio
import io
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote
from uuid import UUID

import aiohttp
import msgspec
from argon2 import PasswordHasher
from msgspec import Struct
from prometheus_client import CollectorRegistry

from chatd.api.accounts.authenticator import AccountsConfig, build_accounts
from chatd.api.application import ApiApplication, build_application
from chatd.api.deps import ApiDeps, StreamLimits, WebImageHosts
from chatd.api.error_codes import ERROR_CODES
from chatd.api.openapi.document import list_codes
from chatd.api.route import PREFIX, ApiRoute, RouteTable, StreamRoute
from chatd.api.server import Application, BoundAddress, bind, serve
from chatd.clock import SystemClock
from chatd.domain.access.permissions import ADMIN_USER_ID, UserActor
from chatd.domain.chat.change import Change
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.chat.worker_transitions import acquire, finish_turn
from chatd.domain.errors import ChatdError
from chatd.domain.files import FileLimits
from chatd.domain.ids import ChatId, ModelConfigId, UserId, WorkerId
from chatd.domain.model.protocol import EffortRange, ModelCapabilities, ModelConfig, Prices
from chatd.domain.ports import Clock
from chatd.git_hosts.host_apis import HostApis
from chatd.sealed_secrets import KeyRing
from chatd.services.hooks import HookAdministration
from chatd.services.mcp_servers import McpServers
from chatd.services.repositories import RepositoryConnections
from chatd.services.slack.connections import SlackConnections
from chatd.services.slack.slack_api import SlackRequests
from chatd.services.webhooks import PushRequests
from chatd.services.workspaces.host_credentials import HostCredentials
from chatd.services.workspaces.runner_administration import RunnerAdministration
from chatd.services.workspaces.runners import RunnerServices
from chatd.services.workspaces.templates import TemplateAdministration
from chatd.services.workspaces.workspaces import WorkspaceControl
from chatd.store.chat import chats
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool
from chatd.store.file_stores import DATABASE_CHUNK_BYTES, DatabaseFileStore, FileStores
from chatd.store.model.model_configs import StoredModel
from chatd.store.model.providers import StoredProvider
from tests.support.factories import HARNESS, OWNER, WORKER, draft, text
from tests.support.models import TEST_KEY, ModelRig
from tests.support.operations import deciding, deciding_transactor, operation
from tests.support.outcomes import present
from tests.support.providers.server import Gate
from tests.support.seeds import step
from tests.support.stream_replica import A, HintNetwork, StreamReplica, env_with, replica_on

QUICK_HASHER: Final = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
ME: Final = "my-token"
OTHER_USER: Final = "a-strangers-token"
ADMINISTRATOR: Final = "an-administrators-token"
KEY: Final = TEST_KEY
KEY_RING: Final = KeyRing([TEST_KEY], TEST_KEY.id)
OTHER_OWNER: Final = UserId(UUID(int=77))
USERS: Final = {
    token: UserActor(user_id=user, role="member")
    for token, user in ((ME, OWNER), (OTHER_USER, OTHER_OWNER))
} | {ADMINISTRATOR: UserActor(user_id=ADMIN_USER_ID, role="admin")}

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


class FakeModelDirectory:
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

    async def overrides(self) -> Mapping[str, ModelConfigId]:
        return {}

    async def capabilities(self, model: StoredModel) -> ModelCapabilities:
        return ModelCapabilities(context_limit=model.config.context_limit)

    async def is_priced(self, model: StoredModel) -> bool:
        return model.config.prices is not None

    async def price_source(self, model: StoredModel) -> str | None:
        return None if model.config.prices is None else model.config.prices.source

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
        self.reserved: list[Literal["root", "child"]] = []

    @contextmanager
    def __call__(self, *, root: bool) -> Generator[WorkerId | None]:
        self.held += 1
        self.reserved.append("root" if root else "child")
        try:
            yield self.worker
        finally:
            self.held -= 1


class FakeTitles:
    """Satisfies `TitleSuggester`. Waits at `gate`, if the test has one, then raises `error`."""

    def __init__(self) -> None:
        self.title = "A better title"
        self.excerpts: list[str] = []
        self.gate: Gate | None = None
        self.error: ChatdError | None = None

    async def suggest(self, chat: Chat, excerpt: str) -> str:
        del chat
        self.excerpts.append(excerpt)
        if self.gate is not None:
            await self.gate.pass_through()
        if self.error is not None:
            raise self.error
        return self.title


def answered(words: str) -> Callable[[Chat], Change]:
    return lambda chat: finish_turn(chat, step(chat, draft("assistant", text(words))))


class ApiReply(Struct, frozen=True, kw_only=True):
    status: int
    headers: Mapping[str, str]
    content: bytes
    set_cookies: tuple[str, ...] = ()

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.content, type=Json)

    @property
    def items(self) -> list[Json]:
        """Those of a page of a list. Asserts that the page has the shape of all pages."""
        page = self.json
        assert isinstance(page["has_more"], bool)
        assert isinstance(page["next_cursor"], str) == page["has_more"]
        return self.at("items")

    @property
    def cursor(self) -> str:
        """That of the next page."""
        return msgspec.convert(self.json["next_cursor"], str)

    def at(self, name: str) -> list[Json]:
        """A list in the reply."""
        return msgspec.convert(self.json[name], list[Json])

    @property
    def code(self) -> tuple[int, object]:
        """Status and code of an error. Asserts that the body has the shape of all errors."""
        body = self.json
        amounts = {"spent_micros", "limit_micros", "resets_at"}
        extra = amounts if body["code"] == "usage_limit_exceeded" else set[str]()
        assert body.keys() <= {"code", "message", "detail", "validations", *extra}, body
        assert isinstance(body["message"], str)
        assert self.headers["content-type"] == "application/json"
        return self.status, body["code"]

    @property
    def field(self) -> object:
        """The only invalid field."""
        validations = msgspec.convert(self.json["validations"], list[dict[str, str]])
        (only,) = validations
        return only["field"]


class ApiServer:
    """The API server of one replica, with an HTTP client."""

    sent: list[str]
    """The SQL statements that the replica sent."""

    def __init__(
        self, replica: StreamReplica, deps: ApiDeps, api: ApiApplication, at: BoundAddress
    ) -> None:
        self.sent = []
        self.replica = replica
        self.deps = deps
        self.api = api
        self.port = at.port
        self.url = at.url
        self.http = aiohttp.ClientSession(at.url)

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = ME,
        headers: Mapping[str, str] | None = None,
    ) -> ApiReply:
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
            reply = ApiReply(
                status=response.status,
                headers=found,
                content=content,
                set_cookies=tuple(response.headers.getall("set-cookie", [])),
            )
            if response.status >= 400 and method != "HEAD":
                check_documented(self.api.table, method, path, reply.code)
            return reply

    async def open_page(self, path: str) -> ApiReply:
        """A page outside the API."""
        async with asyncio.timeout(30), self.http.get(path) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            content = await response.read()
            return ApiReply(status=response.status, headers=found, content=content)

    async def create(self, words: str = "hello", **fields: object) -> ChatId:
        made = await self.ask("POST", "/chats", message_body(words, **fields))
        assert made.status == 201, made.content
        return ChatId(UUID(str(made.json["id"])))

    async def chat(self, chat_id: ChatId) -> Chat:
        return present(await chats.get(self.replica.pool, HARNESS, chat_id))

    async def act(self, chat_id: ChatId, decide: Callable[[Chat], Change | None]) -> Chat:
        """Apply a change, as a worker or another user does."""
        transactor = deciding_transactor(self.replica.pool, self.replica.on_applied)
        command = deciding(lambda loaded: decide(loaded.chat))
        done = operation(command, self.deps.env.new_change_id(), chat_id)
        return (await transactor.run(done)).chat

    async def play_turn(self, chat_id: ChatId, words: str) -> Chat:
        """Play the worker for one turn."""
        await self.act(chat_id, lambda chat: acquire(chat, WORKER))
        return await self.act(chat_id, answered(words))


def check_documented(table: RouteTable, method: str, path: str, code: tuple[int, object]) -> None:
    """Asserts that the operation lists the error code, and that the code has this status."""
    status, name = code
    assert ERROR_CODES[str(name)].status == status, code
    found = table.find(f"{PREFIX}{unquote(path.partition('?')[0])}")
    if found is None or status == 405:
        return
    candidates = (found[0].handlers.get(method), found[0].stream)
    routes = [one for one in candidates if isinstance(one, ApiRoute | StreamRoute)]
    assert not routes or any(name in list_codes(one) for one in routes), (method, path, code)


def authorized(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def message_body(words: str, **fields: object) -> Json:
    """The body of a request with a text message."""
    return {"content": [{"type": "text", "text": words}], **fields}


class ApiOptions(Struct, frozen=True, kw_only=True):
    """What a test changes about its API server. `models` is None for those of the database. The
    page is not built, unless the test names its directory."""

    clock: Clock | None = None
    accounts: AccountsConfig = AccountsConfig()
    changes: ConfigChanges | None = None
    network: HintNetwork | None = None
    limits: StreamLimits = StreamLimits()
    file_limits: FileLimits = FileLimits()
    web_images: WebImageHosts = "public"
    chunk_bytes: int = DATABASE_CHUNK_BYTES
    stores: FileStores | None = None
    models: tuple[ModelConfig, ...] | None = (FAST, CLEVER)
    draining: Callable[[], bool] = lambda: False
    database_error: Callable[[], str | None] = lambda: None
    hears_hints: Callable[[], bool] = lambda: True
    known: Callable[[ChatId], Chat | None] = lambda _chat_id: None
    workspaces: Callable[[Pool], WorkspaceControl | None] = lambda _pool: None
    runners: RunnerServices | None = None
    frame_origins: tuple[str, ...] = ()
    metrics_token: str | None = None
    page_dir: Path = Path("/nonexistent/page")
    help_dir: Path = Path("/nonexistent/help")
    stops_subagents: bool = False
    slack_url: str = "http://127.0.0.1:9/api"
    mcp_hosts: frozenset[str] = frozenset({"127.0.0.1"})


def heard_changes() -> ConfigChanges:
    """As while the replica listens; tests of what it hears have a listener."""
    changes = ConfigChanges()
    changes.on_connected()
    return changes


def build_deps(replica: StreamReplica, options: ApiOptions, clock: Clock, rig: ModelRig) -> ApiDeps:
    def announce(chat: Chat, kind: str) -> None:
        replica.watches.on_metadata_changed(chat, kind)
        replica.network.publish(Hint.of(chat, kind))

    env = env_with(clock)
    changes = options.changes or heard_changes()
    changes.subscribe(replica.watches.on_config_change)
    return ApiDeps(
        pool=replica.pool,
        transactor=replica.transactor,
        announce=announce,
        reserve_slot=Slots(),
        titles=FakeTitles(),
        feeds=replica.feeds,
        chat_lists=replica.watches,
        models=rig.directory
        if options.models is None
        else FakeModelDirectory(*options.models, gone=(RETIRED,)),
        model_administration=rig.models,
        provider_administration=rig.providers,
        provider_trials=rig.calls,
        user_keys=rig.user_keys,
        templates=TemplateAdministration(replica.pool, env),
        runners=RunnerAdministration(replica.pool, env),
        host_credentials=HostCredentials(replica.pool, KEY_RING, env),
        repositories=RepositoryConnections(
            replica.pool,
            KEY_RING,
            env,
            rig.directory.get,
            HostApis(KEY_RING, env, allow_private=True),
            wake=lambda: None,
        ),
        slack=SlackConnections(
            replica.pool,
            KEY_RING,
            env,
            rig.directory.get,
            SlackRequests(options.slack_url, clock, allow_private=True),
            on_change=lambda: None,
        ),
        hooks=HookAdministration(replica.pool, KEY_RING, env, allow_private=True),
        accounts=build_accounts(
            replica.pool,
            env,
            changes,
            options.accounts,
            fixed={token: actor.user_id for token, actor in USERS.items()},
            key_ring=KEY_RING,
            hasher=QUICK_HASHER,
        ),
        push_public_key=PushRequests(replica.pool, KEY_RING, env, contact="").public_key,
        env=env,
        registry=CollectorRegistry(),
        key_ring=KEY_RING,
        files=options.stores
        or FileStores(current=DatabaseFileStore(replica.pool, chunk_bytes=options.chunk_bytes)),
        file_limits=options.file_limits,
        web_images=options.web_images,
        draining=options.draining,
        database_error=options.database_error,
        hears_hints=options.hears_hints,
        known=options.known,
        workspaces=options.workspaces(replica.pool),
        runner_services=options.runners,
        limits=options.limits,
        page_dir=options.page_dir,
        help_dir=options.help_dir,
        stops_subagents=options.stops_subagents,
        frame_origins=options.frame_origins,
        metrics_token=options.metrics_token,
        mcp=McpServers(replica.pool, changes, env, KEY_RING, hosts=options.mcp_hosts),
    )


async def sign_all_in(deps: ApiDeps) -> None:
    """Requests of known callers read no credential: let tests of statements begin with these."""
    for token in USERS:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        await deps.accounts.authenticator.caller({"type": "http", "headers": headers})


@asynccontextmanager
async def serve_api(dsn: str, options: ApiOptions | None = None) -> AsyncGenerator[ApiServer]:
    options = options or ApiOptions()
    clock = options.clock or SystemClock()
    async with replica_on(dsn, clock, options.network or HintNetwork(), A) as (replica, sent):
        rig = ModelRig(replica.pool, clock)
        await rig.start()
        deps = build_deps(replica, options, clock, rig)
        api = build_application(deps)
        async with listening(api) as bound:
            server = ApiServer(replica, deps, api, bound)
            await sign_all_in(deps)
            sent.clear()
            server.sent = sent
            try:
                yield server
            finally:
                await server.http.close()
                await rig.directory.close()


@asynccontextmanager
async def listening(api: Application) -> AsyncGenerator[BoundAddress]:
    """Aborts all connections at the end instead of stopping gracefully."""
    bound: asyncio.Future[BoundAddress] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(
            serve(api, await bind("127.0.0.1", 0), bound.set_result, asyncio.Event())
        )
        try:
            yield await bound
        finally:
            serving.cancel()
