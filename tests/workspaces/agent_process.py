"""Workspace agents as separate processes for tests."""

import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import UUID

from chatd.clock import SystemClock
from chatd.domain.ids import ChatId, MessageId
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import AgentId, Endpoint
from chatd.workspaces.agents.agent_client import AgentClient, ChatIdentity, ConnectedAgent
from chatd.workspaces.agents.agent_resolver import AgentConnector
from chatd.workspaces.agents.agent_session import derive_agent_key
from chatd.workspaces.local.kit import agent_zip
from tests.support.database import installation_home
from tests.support.eventually import eventually
from tests.support.workspaces import no_other_host

SECRET = b"a secret of the server, 32 bytes"
AGENT = AgentId(UUID("00000000-0000-4000-8000-0000000000a1"))
START_S = 30.0
UNPACKED = "agent-"


@functools.cache
def unpacked_agent() -> Path:
    """The agent's files as a kit has them, for all runs: Python keeps what it compiles there, which
    takes more than half of a start."""
    content = agent_zip()
    directory = installation_home() / f"{UNPACKED}{hashlib.sha256(content).hexdigest()[:12]}"
    if not directory.is_dir():
        for former in directory.parent.glob(f"{UNPACKED}*"):
            shutil.rmtree(former, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=directory.parent))
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(unfinished)
        try:
            unfinished.rename(directory)
        except OSError:  # another process has made it meanwhile
            shutil.rmtree(unfinished)
    return directory


def connector(secret: bytes = SECRET) -> AgentConnector:
    return AgentConnector(
        secret=secret, host_id="here", clock=SystemClock(), open_stream=no_other_host
    )


class AgentProcess:
    """One agent in a directory, where it can be started again after its end."""

    def __init__(
        self,
        place: Path,
        *,
        tcp: bool = False,
        agent_id: AgentId = AGENT,
        key: bytes | None = None,
        desktop: tuple[int, int] | None = None,
        browser: bool = False,
    ) -> None:
        self._agent_id = agent_id
        self._desktop = desktop
        self._browser = browser
        self._key = key or derive_agent_key(SECRET, agent_id)
        self.home = place / "home"
        self.run_dir = place / "run"
        self.socket = self.run_dir / "agent.sock"
        self._tcp = tcp
        self._process: subprocess.Popen[bytes] | None = None
        self.home.mkdir(exist_ok=True)

    def start(self) -> None:
        (self.run_dir / "port").unlink(missing_ok=True)
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(unpacked_agent()), "--config-fd", str(read)],
            pass_fds=[read],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        with open(write, "wb") as pipe:
            pipe.write(json.dumps(self._config()).encode())

    def _config(self) -> dict[str, object]:
        where = {"host": "127.0.0.1"} if self._tcp else {"socket": str(self.socket)}
        return {
            "agent_id": str(self._agent_id),
            "dial_key": self._key.hex(),
            "directory": str(self.home),
            "run_dir": str(self.run_dir),
            "home": str(self.home),
            "env": {"GREETING": "hello"},
            **dict(zip(("desktop_width", "desktop_height"), self._desktop or (), strict=False)),
            "browser": self._browser,
            **where,
        }

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def endpoint(self) -> Endpoint:
        if self._tcp:
            port = int((self.run_dir / "port").read_text())
            return Endpoint(kind="tcp", host="127.0.0.1", port=port)
        return Endpoint(kind="unix", path=str(self.socket), host_id="here")

    async def connect(self) -> ConnectedAgent:
        """Waits for an agent that is just starting."""

        async def connected() -> ConnectedAgent | None:
            with contextlib.suppress(AgentUnreachable, FileNotFoundError):
                return await connector().connect(AGENT, [self.endpoint()])
            return None

        return await eventually(connected, within_s=START_S)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Returns its exit code. Blocks until it ends."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(START_S)


class Workbench:
    """A running agent and a client for one chat."""

    def __init__(self, process: AgentProcess, connected: ConnectedAgent, place: Path) -> None:
        self.process = process
        self.connected = connected
        self.chat_id = new_chat_id()
        self.conn = self.on_behalf()
        self._place = place

    def on_behalf(
        self, chat_id: ChatId | None = None, *, epoch: int = 1, turn: int | None = None
    ) -> AgentClient:
        message = None if turn is None else MessageId(turn)
        identity = ChatIdentity(chat_id=chat_id or self.chat_id, epoch=epoch, turn=message)
        return AgentClient(self.connected, SystemClock(), identity)

    def key(self, name: str) -> str:
        """A key that no other test uses."""
        return f"{self.chat_id}:1:{name}"

    def path(self, name: str) -> str:
        return str(self._place / name)


def new_chat_id() -> ChatId:
    return ChatId(UUID(bytes=os.urandom(16), version=4))


@contextlib.asynccontextmanager
async def running_agent(place: Path, *, tcp: bool = False) -> AsyncGenerator[Workbench]:
    process = AgentProcess(place, tcp=tcp)
    process.start()
    try:
        async with workbench(process, process.home) as bench:
            yield bench
    finally:
        process.end(signal.SIGKILL)


@contextlib.asynccontextmanager
async def workbench(process: AgentProcess, place: Path) -> AsyncGenerator[Workbench]:
    yield Workbench(process, await process.connect(), place)
