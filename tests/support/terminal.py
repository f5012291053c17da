"""A real server and the terminal on it, driven by textual's Pilot.

The server runs in this process. It has two models: `demo`, quick, and `scripted`, whose answers the
test gives and can hold at gates (`server.vendor`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
from aiohttp import ClientSession
from textual import screen
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from chatd.app import process
from chatd.app.composition import LifecycleCallbacks, ReadyInfo
from chatd.client.server import ServerAddress
from chatd.clock import SystemClock
from chatd.domain.ids import ChatId
from chatd.settings.schema import (
    ChatSettings,
    DatabaseSettings,
    ModelEntry,
    ProviderEntry,
    ServerSettings,
    Settings,
    WorkspaceSettings,
)
from chatd.terminal.app import ChatTerminal
from chatd.terminal.session import open_session
from chatd.workspaces.local.local_backend import LocalConfig
from tests.support.eventually import eventually, poll_delays
from tests.support.local_rig import HOST, LocalRig
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate

TOKEN: Final = "a-token-of-the-terminal"
WAIT_S: Final = 40.0
WIDE: Final = (120, 36)
SMALL: Final = (80, 24)
FRAMES_PER_S: Final = 20
FRAME_PERIOD: Final = "UPDATE_PERIOD"
PARSE_METHOD: Final = "_parse_rules"
T = TypeVar("T")
Json = dict[str, object]


class TerminalServer:
    """`stop` ends it, as SIGTERM would."""

    def __init__(
        self,
        url: str,
        http: ClientSession,
        vendor: FakeCompatible,
        stop: Callable[[], None],
    ) -> None:
        self.address = ServerAddress(url=url, token=TOKEN)
        self.http = http
        self.vendor = vendor
        self.stop = stop

    async def call(self, method: str, path: str, body: object = None) -> Json:
        async with self.http.request(method, f"/api/v1{path}", json=body) as reply:
            data = await reply.read()
            assert reply.status < 300, data
            return msgspec.json.decode(data, type=Json) if data else {}

    async def create_chat(self, text: str, model: str = "demo", **more: object) -> ChatId:
        content = [{"type": "text", "text": text}]
        models = await self.call("GET", "/models")
        items = msgspec.convert(models["items"], list[Json])
        chosen = next(item["id"] for item in items if item["name"] == model)
        body = {"content": content, "model_config_id": chosen, **more}
        chat = await self.call("POST", "/chats", body)
        return msgspec.convert(chat["id"], ChatId)

    async def status_of(self, chat_id: ChatId) -> str:
        return str((await self.call("GET", f"/chats/{chat_id}"))["status"])

    async def until_status(self, chat_id: ChatId, status: str) -> None:
        async def is_there() -> bool:
            return await self.status_of(chat_id) == status

        await eventually(is_there)

    def will_answer(self, text: str, *, held: Gate | None = None) -> None:
        """The next answer of the model `scripted`: half of the text, the gate, the rest."""
        half = len(text) // 2
        gate = () if held is None else (held,)
        self.vendor.script(
            chunk(role="assistant", content=text[:half]),
            *gate,
            chunk(content=text[half:]),
            chunk(finish="stop"),
            DONE,
        )


@asynccontextmanager
async def serve_terminal(
    dsn: str, data_dir: Path, change: Callable[[Settings], Settings] = lambda settings: settings
) -> AsyncGenerator[TerminalServer]:
    """Workspaces outlive a server: if there are any, they end with the test."""
    try:
        async with _serve(dsn, data_dir, change) as server:
            yield server
    finally:
        await LocalRig(LocalConfig(data_dir=data_dir, host_id=HOST)).close()


@asynccontextmanager
async def _serve(
    dsn: str, data_dir: Path, change: Callable[[Settings], Settings]
) -> AsyncGenerator[TerminalServer]:
    stop = asyncio.Event()
    ready: asyncio.Future[ReadyInfo] = asyncio.get_running_loop().create_future()
    async with FakeCompatible.running() as vendor, asyncio.TaskGroup() as group:
        serving = process.serve(
            change(settings_of(dsn, data_dir, vendor.url)),
            {"CHATD_ADMIN_TOKEN": TOKEN},
            clock=SystemClock(),
            stop=stop,
            callbacks=LifecycleCallbacks(ready=ready.set_result),
        )
        group.create_task(serving)
        url = (await ready).url or ""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        try:
            async with ClientSession(url, headers=headers) as http:
                yield TerminalServer(url, http, vendor, stop.set)
        finally:
            stop.set()


def settings_of(dsn: str, data_dir: Path, vendor_url: str) -> Settings:
    """Without workspaces, which are slow to start and stop, and without generated titles."""
    demo = ModelEntry(
        name="demo", provider="demo", model="demo", default=True, options={"tokens_per_second": 400}
    )
    scripted = ModelEntry(name="scripted", provider="fake", model="scripted-1")
    return Settings(
        data_dir=data_dir,
        server=ServerSettings(port=0),
        database=DatabaseSettings(url=dsn),
        workspaces=WorkspaceSettings(enabled=False),
        chats=ChatSettings(titles=False),
        providers=(ProviderEntry(name="fake", kind="openai-compat", base_url=f"{vendor_url}/v1"),),
        models=(demo, scripted),
    )


@asynccontextmanager
async def run_terminal(
    server: TerminalServer,
    chat_id: ChatId | None = None,
    *,
    size: tuple[int, int] = WIDE,
    token: str = TOKEN,
) -> AsyncGenerator[Pilot[None]]:
    """The whole terminal, signed in as the administrator unless another token is given."""
    address = ServerAddress(url=server.address.url, token=token)
    async with open_session(address, SystemClock()) as session:
        terminal = ChatTerminal(session, chat_id)
        async with terminal.run_test(size=size, notifications=True) as pilot:
            yield pilot


async def until(pilot: Pilot[None], look: Callable[[], T | None]) -> T:
    """Let the terminal work until `look` returns something true, and return that."""
    delays = poll_delays()
    try:
        async with asyncio.timeout(WAIT_S):
            while not (seen := look()):
                await pilot.pause(next(delays))
            return seen
    except TimeoutError:
        raise AssertionError(f"it never came to that; the screen:\n{screen_text(pilot)}") from None


def screen_text(pilot: Pilot[None]) -> str:
    """What a person sees: the characters of the screen."""
    screen = pilot.app.screen
    return "\n".join(
        "".join(segment.text for segment in strip)
        for strip in screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    )


async def until_shown(pilot: Pilot[None], text: str) -> str:
    """Wait until the screen has this text, and return all of it."""
    return await until(pilot, lambda: shown if text in (shown := screen_text(pilot)) else None)


@contextmanager
def cheap_terminals() -> Generator[None]:
    """Parse each style sheet once in a test process, not in each test, and draw fewer frames."""
    parse_rules = cast("Callable[..., object]", getattr(Stylesheet, PARSE_METHOD))
    frame_period: object = getattr(screen, FRAME_PERIOD)
    parsed: dict[object, object] = {}

    def parse_once(sheet: Any, *args: Any, **options: Any) -> object:
        variables = frozenset(sheet._variables.items())
        key = (args, *sorted(options.items()), variables)
        if key not in parsed:
            parsed[key] = parse_rules(sheet, *args, **options)
        return parsed[key]

    setattr(Stylesheet, PARSE_METHOD, parse_once)
    setattr(screen, FRAME_PERIOD, 1 / FRAMES_PER_S)
    try:
        yield
    finally:
        setattr(Stylesheet, PARSE_METHOD, parse_rules)
        setattr(screen, FRAME_PERIOD, frame_period)
