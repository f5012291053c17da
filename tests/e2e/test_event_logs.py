"""Viewers of real turns: what the client library makes of the events equals what the API says.

With --record-events the logs are written to `tests/data/events`, which the client library
and the page replay.
"""

import asyncio
import signal
from asyncio.subprocess import Process
from pathlib import Path

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace

from chatd.app import process
from chatd.app.composition import LifecycleCallbacks, ReadyInfo
from chatd.client.state import ShownChat
from chatd.clock import SystemClock
from chatd.domain.chat.parts import TextPart
from chatd.settings.schema import ModelEntry
from tests.client.test_recorded_chats import expected, shown_of
from tests.e2e.test_serve import TOKEN, address, chatd, client_of, plain_settings
from tests.support import event_fixtures
from tests.support.event_recorder import Recorder
from tests.support.event_scenes import CLIENT_TOOL, SCENES, body, has_parts, is_at_rest

# Real turns on a machine that may be busy; "retry" waits for two retries.
pytestmark = pytest.mark.timeout(150)

FAST = ModelEntry(
    name="demo", provider="demo", model="demo", default=True, options={"tokens_per_second": 400}
)


async def open_chat(client: ClientSession, words: str) -> Recorder:
    async with client.post("/api/v1/chats", json=body(words, client_tools=[CLIENT_TOOL])) as made:
        assert made.status == 201, await made.read()
        chat: dict[str, str] = await made.json()
    return Recorder(client, chat["id"])


class Checks:
    """`records`: write the logs."""

    def __init__(self, *, records: bool) -> None:
        self._records = records

    async def check(self, viewer: Recorder, scene: str) -> None:
        recorded = await viewer.finished(scene)
        assert shown_of(viewer.shown) == expected(recorded)
        if self._records:
            event_fixtures.save(recorded)

    async def play(self, client: ClientSession, name: str) -> None:
        words, scene = SCENES[name]
        viewer = await open_chat(client, words)
        await scene(viewer)
        await self.check(viewer, name)


@pytest.fixture
def checks(request: pytest.FixtureRequest) -> Checks:
    return Checks(records=bool(request.config.getoption("--record-events")))


async def test_a_viewer_of_each_scene_has_the_servers_own_state(
    dsn: str, data_dir: Path, checks: Checks
) -> None:
    """All scenes at once, each in a chat of its own."""
    settings = replace(plain_settings(dsn, data_dir), models=(FAST,))
    ready: asyncio.Future[ReadyInfo] = asyncio.get_running_loop().create_future()
    callbacks = LifecycleCallbacks(ready=ready.set_result)
    stop = asyncio.Event()
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        env = {"CHATD_ADMIN_TOKEN": TOKEN}
        clock = SystemClock()
        group.create_task(process.serve(settings, env, clock=clock, stop=stop, callbacks=callbacks))
        url = (await ready).url or ""
        async with client_of(url, TOKEN) as client, asyncio.TaskGroup() as scenes:
            for name in SCENES:
                scenes.create_task(checks.play(client, name))
        stop.set()


async def test_a_viewer_of_a_killed_server_has_the_state_after_the_takeover(
    dsn: str, data_dir: Path, checks: Checks
) -> None:
    """Slow: two servers, and the time after which a worker counts as dead. The answer goes on, and
    its text never gets shorter on the way."""
    command = ("serve", "--port", "0", "--no-browser", "--data-dir", data_dir)
    env = {
        "CHATD_ADMIN_TOKEN": TOKEN,
        "CHATD_DATABASE_URL": dsn,
        "CHATD_WORKSPACES_ENABLED": "false",
    }
    async with asyncio.timeout(140):
        async with chatd(*command, **env) as first, await client_at(first) as client:
            viewer = await open_chat(client, "tell me a long story")
            async with viewer.following():
                await viewer.until(has_parts)
                seen = live_text(viewer.received.shown)
                first.send_signal(signal.SIGKILL)
                await first.wait()
        async with chatd(*command, **env) as second, await client_at(second) as client:
            viewer.client = client
            async with viewer.following():
                await viewer.until(lambda shown: shown.takeover is not None)
                await viewer.until(lambda shown: len(live_text(shown)) > len(seen))
                assert live_text(viewer.received.shown).startswith(seen)
                await viewer.post("/interrupt")
                await viewer.until(is_at_rest)
            await checks.check(viewer, "takeover")


def live_text(shown: ShownChat) -> str:
    parts = () if shown.live is None else shown.live.parts
    return "".join(part.text for part in parts if isinstance(part, TextPart)).rstrip()


async def client_at(server: Process) -> ClientSession:
    return client_of(await address(server), TOKEN)
