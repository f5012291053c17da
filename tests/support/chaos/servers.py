"""`chatd serve` as processes, and clients of any of them.

A client repeats a request without a reply with the same key, and resumes a stream that ended at
another server with the last version seen.
"""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout
from msgspec import Struct

from chatd.domain.chat_views.events import Event
from chatd.domain.ids import ChatId
from tests.support.client_state import ClientState

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0
REPLY_TIMEOUT_S: Final = 10.0
TOKEN: Final = "a-token-of-rolling-servers"
AUTH: Final = {"Authorization": f"Bearer {TOKEN}"}
RETRYABLE_STATUSES: Final = frozenset({502, 503, 504})
_MEMBER: Final = re.compile(r'--member=.*"number":([0-9]+)')


class Installation(Struct, frozen=True, kw_only=True):
    """The settings that all servers share, and the program that they run."""

    dsn: str
    model_url: str
    data_dir: Path
    program: Path = Path(sys.executable).with_name("chatd")

    @property
    def env(self) -> dict[str, str]:
        provider = {"name": "fake", "kind": "openai-compat", "base_url": f"{self.model_url}/v1"}
        model = {"name": "fake", "provider": "fake", "model": "fake-1", "default": True}
        return {
            "HOME": "/nonexistent",
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "CHATD_ADMIN_TOKEN": TOKEN,
            "CHATD_LOG_LEVEL": "warning",
            "CHATD_DATABASE_URL": self.dsn,
            "CHATD_DATABASE_POOL_SIZE": "5",
            "CHATD_DATA_DIR": str(self.data_dir),
            "CHATD_PROVIDERS": msgspec.json.encode([provider]).decode(),
            "CHATD_MODELS": msgspec.json.encode([model]).decode(),
        }


class ServerProcess:
    def __init__(self, process: Process, url: str) -> None:
        self.url = url
        self.stopping = False
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def members(self) -> dict[int, int]:
        """The processes of a server with several, by their numbers."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found: dict[int, int] = {}
        for child in children:
            with suppress(FileNotFoundError):
                line = Path(f"/proc/{child}/cmdline").read_text()
                if (spec := _MEMBER.search(line)) is not None:
                    found[int(spec[1])] = int(child)
        return found

    async def terminate(self) -> None:
        """Send SIGTERM; the server must exit with 0."""
        self.stopping = True
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_TIMEOUT_S):
            code = await self._process.wait()
        assert code == 0, f"a server that was asked to leave ended with {code}"

    def kill(self) -> None:
        self.stopping = True
        if self._process.returncode is None:
            self._process.kill()


@asynccontextmanager
async def server(
    installation: Installation, *flags: str, **variables: str
) -> AsyncGenerator[ServerProcess]:
    """Killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        installation.program,
        *("serve", "--port", "0", *flags),
        env=installation.env | variables,
        stdin=DEVNULL,
        stdout=PIPE,
    )
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            url = await _read_url(process)
        yield ServerProcess(process, url)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read_url(process: Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        for word in line.decode().split():
            if word.startswith("http://"):
                return f"http://{urlsplit(word.rstrip(',')).netloc}"
    raise AssertionError("the server ended before it was ready")


class ServerGroup:
    """The servers that run or are stopping."""

    def __init__(self, installation: Installation, stack: AsyncExitStack) -> None:
        self._installation = installation
        self._stack = stack
        self._turn = 0
        self._restarts = 0
        self.now: list[ServerProcess] = []

    async def add(self, installation: Installation | None = None) -> None:
        """Another one than those that replace it, if given."""
        started = server(installation or self._installation)
        self.now.append(await self._stack.enter_async_context(started))

    async def restart_in_turn(self, times: int, pause_s: float) -> float:
        """Stop one server, then start its replacement; after a pause the next. Returns how long
        the slowest took to stop."""
        loop, slowest_s = asyncio.get_running_loop(), 0.0
        for _ in range(times):
            began, place = loop.time(), self._restarts % len(self.now)
            self._restarts += 1
            await self.now[place].terminate()
            slowest_s = max(slowest_s, loop.time() - began)
            self.now[place] = await self._stack.enter_async_context(server(self._installation))
            await asyncio.sleep(max(began + pause_s - loop.time(), 0.0))
        return slowest_s

    def next(self) -> ServerProcess:
        """Round robin; a stopping server is chosen only if all are stopping."""
        self._turn += 1
        up = [one for one in self.now if not one.stopping] or self.now
        return up[self._turn % len(up)]


class HttpClient:
    """`state` is what it sees of its chat."""

    def __init__(self, servers: ServerGroup, http: ClientSession) -> None:
        self._servers = servers
        self._http = http
        self._changed = asyncio.Event()
        self._last_id = ""
        self.chat_id: ChatId | None = None
        self.connections = 0
        self.state = ClientState()

    async def send(self, text: str, key: str) -> None:
        """Repeat until a server accepts it. The first message creates the chat."""
        chat = "" if self.chat_id is None else f"/{self.chat_id}/messages"
        body = msgspec.json.encode({"content": [{"type": "text", "text": text}]})
        while True:
            try:
                answer = await self._post(f"/api/v1/chats{chat}", body, key)
            except (ClientError, ConnectionError, TimeoutError):
                answer = None
            if answer is not None:
                self.chat_id = self.chat_id or msgspec.convert(answer["id"], ChatId)
                return
            await asyncio.sleep(0.05)

    async def _post(self, path: str, body: bytes, key: str) -> dict[str, object] | None:
        headers = AUTH | {"Content-Type": "application/json", "Idempotency-Key": key}
        url = self._servers.next().url + path
        async with self._http.post(
            url, data=body, headers=headers, timeout=ClientTimeout(total=REPLY_TIMEOUT_S)
        ) as response:
            content = await response.read()
            if response.status in RETRYABLE_STATUSES:
                return None
            assert response.status < 300, f"{response.status}: {content.decode()}"
            return msgspec.json.decode(content, type=dict[str, object])

    # Streams

    async def watch(self) -> None:
        """Read at one server after the other until cancelled."""
        while True:
            with suppress(ClientError, ConnectionError, TimeoutError):
                await self._watch_once()
            await asyncio.sleep(0.05)

    async def until(self, there: Callable[[ClientState], bool], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not there(self.state):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{self.chat_id} does not go on: {self.state}") from None

    async def _watch_once(self) -> None:
        if not self._last_id:
            self.state = ClientState()
        headers = AUTH if not self._last_id else AUTH | {"Last-Event-ID": self._last_id}
        url = f"{self._servers.next().url}/api/v1/chats/{self.chat_id}/events"
        self.connections += 1
        async with self._http.get(url, headers=headers, timeout=ClientTimeout(total=None)) as got:
            if got.status in RETRYABLE_STATUSES:
                return
            assert got.status == 200, f"{got.status}: {await got.text()}"
            async for fields in _blocks(got.content):
                if fields.get("event") == "end":
                    return
                if data := fields.get("data"):
                    self._take(msgspec.json.decode(data, type=Event), fields.get("id"))

    def _take(self, event: Event, last_id: str | None) -> None:
        self.state = self.state.apply([event])
        if last_id is not None:
            self._last_id = "" if last_id == "0" else last_id
        self._changed.set()


async def _blocks(lines: AsyncIterable[bytes]) -> AsyncGenerator[dict[str, str]]:
    fields: dict[str, str] = {}
    async for raw in lines:
        line = raw.decode().rstrip("\r\n")
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        else:
            yield fields
            fields = {}
