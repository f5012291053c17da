"""`chatd serve` as a process with workspaces, and a model that makes the calls named in the prompt.

All but the model is real: workspaces, agents and commands. The end of a test stops the supervisor
of its data directory.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from aiohttp import ClientSession
from msgspec import Struct

from chatd.clock import SystemClock
from chatd.domain.workspace.template_definition import TemplateDefinition
from chatd.workspaces.local.local_backend import LocalConfig
from chatd.workspaces.templates import template_rows
from tests.support.eventually import eventually
from tests.support.local_rig import HOST, LocalRig
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import RecordedRequest, Reply, Step

CHATD = Path(sys.executable).with_name("chatd")
LAST_LINE = "Ctrl-C stops."
WAIT_TIMEOUT_S = 120.0
"""Long enough for a busy machine."""

Json = dict[str, Any]
Call = tuple[str, Json]


class Script(Struct, frozen=True):
    """A user message to this model: the calls to make, one after the other."""

    name: str
    calls: tuple[tuple[str, Json], ...] = ()


class _Message(Struct, frozen=True):
    role: str
    content: object = None


class _Body(Struct, frozen=True):
    messages: tuple[_Message, ...]


class ScriptedModel(FakeCompatible):
    """Derives the next call from the conversation, so that it continues after a server dies."""

    def answer(self, request: RecordedRequest) -> Reply:
        if (refusal := self.refuse(request)) is not None:
            return refusal
        messages = msgspec.json.decode(request.body, type=_Body).messages
        said = [
            (at, script)
            for at, message in enumerate(messages)
            if message.role == "user" and (script := _script(message.content)) is not None
        ]
        if not said:
            return Reply(steps=(chunk(content="A title"), chunk(finish="stop"), DONE))
        at, script = said[-1]
        done = sum(message.role == "tool" for message in messages[at:])
        return Reply(steps=_steps(script, done))


def _script(content: object) -> Script | None:
    """A report of chatd to the model may follow the script in its text."""
    parts = cast("list[Json]", content) if isinstance(content, list) else [{"text": content}]
    lines = [line for part in parts for line in str(part.get("text")).split("\n")]
    for line in reversed(lines):
        try:
            found: object = json.JSONDecoder().raw_decode(line)[0]
            return msgspec.convert(found, Script)
        except (ValueError, msgspec.ValidationError):
            continue
    return None


def _steps(script: Script, done: int) -> tuple[Step, ...]:
    if done >= len(script.calls):
        return (chunk(content="done"), chunk(finish="stop"), DONE)
    name, args = script.calls[done]
    function = {"name": name, "arguments": json.dumps(args)}
    call_id = f"{script.name}-{done}"
    call = {"index": 0, "id": call_id, "type": "function", "function": function}
    return (chunk(tool_calls=[call]), chunk(finish="tool_calls"), DONE)


class ServerSite:
    """A data directory, a database, and the settings of servers on them."""

    def __init__(self, data_dir: Path, dsn: str, *templates: TemplateDefinition) -> None:
        self.data_dir = data_dir
        self.dsn = dsn
        self._templates = {file.name: file for file in templates}
        self._settings = data_dir.parent / "chatd.toml"

    def template_id(self, name: str) -> str:
        file = self._templates[name]
        return str(template_rows(file, "settings").template.id)

    def create(self, template: str) -> Call:
        return ("create_workspace", {"template_id": self.template_id(template)})

    def configure(self, model: ScriptedModel) -> None:
        """Write the settings file, as an operator does."""
        lines = [
            "[[providers]]",
            'name = "obedient"',
            'kind = "openai-compat"',
            f'base_url = "{model.url}/v1"',
            "[[models]]",
            'name = "obedient"',
            'provider = "obedient"',
            'model = "obedient-1"',
            "default = true",
            "[[models]]",
            'name = "quick-demo"',
            'provider = "demo"',
            'model = "demo"',
            "options = { tokens_per_second = 0 }",
        ]
        for file in self._templates.values():
            lines += ["[[templates]]", f'name = "{file.name}"', "[templates.spec]"]
            lines.append(f"startup_script = {json.dumps(file.spec.startup_script)}")
            lines.append(f"desktop = {json.dumps(file.spec.desktop)}")
            lines.append(f"browser = {json.dumps(file.spec.browser)}")
            lines.append("[templates.spec.limits]")
            limits = msgspec.structs.asdict(file.spec.limits)
            lines += [f"{name} = {value}" for name, value in limits.items()]
        self._settings.write_text("\n".join(lines) + "\n")

    def add_settings(self, *lines: str) -> None:
        """After `configure`, for servers that start later."""
        with self._settings.open("a") as file:
            file.write("\n".join(lines) + "\n")

    @asynccontextmanager
    async def server(self, program: Path = CHATD, **env: str) -> AsyncGenerator["WorkspaceServer"]:
        """Ready. Killed at the end if it still runs."""
        at = ("--port", "0", "--data-dir", self.data_dir, "--database-url", self.dsn)
        with (self.data_dir.parent / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                program,
                *map(str, ("serve", "--config", self._settings, *at)),
                env={"HOME": "/nonexistent", "PATH": os.defpath, **env},
                stdout=PIPE,
                stderr=log,
            )
        server = WorkspaceServer(process, self, env.get("CHATD_ADMIN_TOKEN"))
        try:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await server.ready()
            yield server
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
            await server.close()

    def log(self) -> str:
        return (self.data_dir.parent / "log").read_text()

    async def end(self) -> None:
        await LocalRig(LocalConfig(data_dir=self.data_dir, host_id=HOST)).close()


class WorkspacePaths(Struct, frozen=True, kw_only=True):
    """A workspace. `inside` is its home as commands see it, `root` is where it is on the host."""

    inside: str
    root: Path

    @staticmethod
    def of(site: ServerSite, made: Json) -> "WorkspacePaths":
        """From the result of the call that created it."""
        assert made["created"], made
        return WorkspacePaths(
            inside=made["directory"], root=site.data_dir / "ws" / made["workspace_id"]
        )

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def socket(self) -> Path:
        return self.root / "run" / "agent.sock"


class WorkspaceServer:
    def __init__(self, process: Process, site: ServerSite, token: str | None) -> None:
        self.process = process
        self.url = ""
        self.site = site
        self._token = token
        self._client: ClientSession | None = None

    async def ready(self) -> None:
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != LAST_LINE:
            line = await self.process.stdout.readline()
            assert line, f"it ended after {lines}"
            lines.append(line.decode().removesuffix("\n"))
        api = next(line.split()[1] for line in lines if line.startswith("  API  "))
        self.url = api.removesuffix("/api/v1,")
        token = self._token or (self.site.data_dir / "admin-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        self._client = ClientSession(self.url, headers=headers)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def download(self, path: str) -> bytes:
        assert self._client is not None
        async with self._client.get(f"/api/v1{path}") as answer:
            assert answer.status == 200, await answer.text()
            return await answer.read()

    async def ask(
        self, method: Literal["GET", "POST", "PUT"], path: str, body: object = None
    ) -> Json:
        assert self._client is not None
        async with self._client.request(method, f"/api/v1{path}", json=body) as answer:
            assert answer.status < 300, (answer.status, await answer.text())
            return await answer.json()

    async def refusal(self, method: Literal["POST"], path: str, body: object) -> Json:
        """The error of a request, with its status."""
        assert self._client is not None
        async with self._client.request(method, f"/api/v1{path}", json=body) as answer:
            assert answer.status >= 400, await answer.text()
            return {"status": answer.status, **await answer.json()}

    async def create(self, name: str, *calls: Call, **fields: object) -> str:
        """Create a chat that makes these calls; return its id."""
        said = {**message_body(script_text(name, *calls)), "model": "obedient", **fields}
        return (await self.ask("POST", "/chats", said))["id"]

    async def send(self, chat: str, name: str, *calls: Call, **fields: object) -> None:
        said = {**message_body(script_text(name, *calls)), "model": "obedient", **fields}
        await self.ask("POST", f"/chats/{chat}/messages", said)

    async def call(self, chat: str, name: str, *calls: Call) -> list[Json]:
        """Make these calls; return their results."""
        before = len(await self.results(chat))
        await self.send(chat, name, *calls)
        return (await self.wait_idle(chat))[before:]

    async def wait_idle(self, chat: str) -> list[Json]:
        """Wait until the chat is idle; return the results of its calls, oldest first."""

        async def look() -> bool:
            row = await self.ask("GET", f"/chats/{chat}")
            assert row["status"] != "error", row
            return row["status"] == "waiting"

        await eventually(look, within_s=WAIT_TIMEOUT_S)
        return await self.results(chat)

    async def workspace_of(self, chat: str) -> "WorkspacePaths":
        """The workspace that a chat created by its first call."""
        return WorkspacePaths.of(self.site, (await self.wait_idle(chat))[0])

    async def results(self, chat: str) -> list[Json]:
        parts = await self.parts(chat)
        return [part["result"] for part in parts if part["type"] == "tool-result"]

    async def parts(self, chat: str) -> list[Json]:
        page = await self.ask("GET", f"/chats/{chat}/messages?limit=200")
        messages = sorted(page["items"], key=lambda message: message["id"])
        return [part for message in messages for part in message["content"]]


def message_body(words: str) -> Json:
    return {"content": [{"type": "text", "text": words}]}


def script_text(name: str, *calls: Call) -> str:
    return msgspec.json.encode(Script(name, calls)).decode()


Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def socket_taken(socket: Path, connected: Connected) -> AsyncGenerator[Path]:
    """Listens in the place of an agent; yields where the agent's own socket is meanwhile. Every
    second the agent makes a socket again that was taken from it: its place is taken again."""
    behind, own = socket.with_suffix(".real"), socket.with_suffix(".held")

    def is_taken() -> bool:
        return socket.exists() and socket.samefile(own)

    def take_place() -> None:
        if socket.exists() and not is_taken():
            socket.rename(behind)
            socket.hardlink_to(own)

    async def stand() -> None:
        while True:
            await SystemClock().sleep(0.01, "stand")
            take_place()

    server = await asyncio.start_unix_server(connected, own)
    own.chmod(0o666)
    take_place()
    standing = asyncio.get_running_loop().create_task(stand())
    try:
        yield behind
    finally:
        standing.cancel()
        server.close()
        if is_taken():
            behind.rename(socket)
        own.unlink(missing_ok=True)


class ReplyHoldingProxy:
    """Replaces the socket of an agent and holds the reply to one kind of request, once it has taken
    effect. All else passes."""

    def __init__(self, socket: Path, target: bytes) -> None:
        self._socket = socket
        self._behind = socket
        self._target = target
        self.replied = asyncio.Event()
        """The agent has replied."""
        self._open = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["ReplyHoldingProxy"]:
        async with socket_taken(self._socket, self._connected) as self._behind:
            try:
                yield self
            finally:
                self.release()

    async def wait_replied(self) -> None:
        """Raises TimeoutError, also after a refusal of the agent, which is not held."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await self.replied.wait()

    def release(self) -> None:
        """Let the held replies pass."""
        self._open.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Each connection carries one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            from_agent, to_agent = await asyncio.open_unix_connection(self._behind)
            to_agent.write(head)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, to_agent))
                held = self._target in head.partition(b"\r\n")[0]
                group.create_task(self._answer(from_agent, writer, held=held))
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if held and b" 200 " in data[:15]:
                    self.replied.set()
                    await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the client closes its connection."""
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def execute(command: str, timeout: str = "60s") -> Call:
    return ("execute", {"command": command, "timeout": timeout})


# Runners as processes, and a command that counts

LINES = 16
COUNT = f"for i in $(seq {LINES}); do echo line $i | tee -a lines; sleep 0.25; done"
COUNTED = "".join(f"line {number}\n" for number in range(1, LINES + 1))


@asynccontextmanager
async def runner_process(
    url: str, token_file: Path, data_dir: Path, program: Path = CHATD
) -> AsyncGenerator[Process]:
    """Connected. Killed at the end if it still runs."""
    at = ("--server", url, "--token-file", token_file, "--data-dir", data_dir, "--name", "laptop")
    process = await asyncio.create_subprocess_exec(
        program,
        *map(str, ("runner", "start", *at)),
        env={"HOME": "/nonexistent", "PATH": os.defpath},
        stdin=DEVNULL,
        stdout=PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not (line := await process.stdout.readline()).startswith(b"connected"):
                assert line, "it ended before it was connected"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def prepare_pool(server: WorkspaceServer, place: Path) -> tuple[Path, str]:
    """The file with a runner's token, and a template for its pool."""
    made = await server.ask("POST", "/runner-tokens", {"name": "laptop", "pool": "lab"})
    token_file = place / "token"
    token_file.write_text(made["token"])
    body = {"name": "lab", "backend": "sandbox", "spec": {"pool": "lab"}}
    return token_file, (await server.ask("POST", "/template-configs", body))["id"]


def _has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


async def wait_for_text(path: Path, text: str) -> None:
    async def look() -> bool:
        return _has(path, text)

    await eventually(look, within_s=WAIT_TIMEOUT_S)


def check_counted(results: list[Json]) -> None:
    """The results of `COUNT` and of `cat lines`: it ran once, and all its output came."""
    said, file = results
    assert (said["success"], said["output"]) == (True, COUNTED)
    assert file["output"] == COUNTED
