"""Servers and runners as processes on hosts of their own, and chats that run commands there.

Each command appends its name to a file of its workspace. `CommandVerdict` compares these files with
what the model was told.
"""

import asyncio
import random
import secrets
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout
from msgspec import Struct

from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.ids import ChatId
from chatd.store.database.pool import Pool
from chatd.workspaces.local.local_backend import LocalConfig
from tests.support.chaos.namespace_hosts import NamespaceHost
from tests.support.chaos.patience import Patience
from tests.support.chaos.servers import AUTH, RETRYABLE_STATUSES
from tests.support.chaos.transcript_judge import BUSY_CHATS
from tests.support.local_rig import HOST, LocalRig
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import RecordedRequest, Reply, Step
from tests.support.stored import Stored

CHATD: Final = Path(sys.executable).with_name("chatd")
API_PORT: Final = 7870
PEER_PORT: Final = 7871
POOL: Final = "lab"
LOG: Final = "ran"
"""The file of a workspace to which each command appends its name."""
REQUEST_TIMEOUT_S: Final = 15.0
START_TIMEOUT_S: Final = 120.0
END_TIMEOUT_S: Final = 120.0
"""For a runner whose token was revoked. It may be cut off at the same time."""
TURN_TIMEOUT_S: Final = 400.0
MAX_REPAIRS: Final = 6
"""How often a turn starts its workspace before it goes on with the next command."""
SPELLS: Final = (0.0, 0.0, 0.3, 2.0, 6.0)
"""How long a command runs, in seconds."""

Json = dict[str, Any]


class Script(Struct, frozen=True):
    """A user message to the model: the commands to run, by name, and for how long each runs.
    `template`: make a workspace of this template first."""

    name: str
    spells: tuple[float, ...]
    template: str = ""


class _Message(Struct, frozen=True):
    role: str
    content: object = None
    tool_call_id: str = ""


class _Body(Struct, frozen=True):
    messages: tuple[_Message, ...]


class CommandModel(FakeCompatible):
    """Runs each command of a script once. Starts the workspace if a result asks for it."""

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
        return Reply(steps=_next_step(script, messages[at + 1 :]))


def _script(content: object) -> Script | None:
    parts = cast("list[Json]", content) if isinstance(content, list) else [{"text": content}]
    for part in parts:
        with suppress(msgspec.DecodeError):
            # A report of chatd to the model may follow the script in its text.
            text = str(part.get("text")).partition("\n")[0]
            return msgspec.json.decode(text, type=Script)
    return None


def _next_step(script: Script, since: Sequence[_Message]) -> tuple[Step, ...]:
    results = {one.tool_call_id: str(one.content) for one in since if one.role == "tool"}
    last = next((str(one.content) for one in reversed(since) if one.role == "tool"), "")
    repairs = sum("-start" in call for call in results)
    is_stopped = "start_workspace" in last and repairs < MAX_REPAIRS
    if script.template and f"{script.name}-create" not in results:
        return _call(f"{script.name}-create", "create_workspace", template_id=script.template)
    if is_stopped and "stop_workspace" in last and f"{script.name}-stop{repairs}" not in results:
        return _call(f"{script.name}-stop{repairs}", "stop_workspace")
    if is_stopped or f"{script.name}-stop{repairs}" in results:
        return _call(f"{script.name}-start{repairs}", "start_workspace")
    for number, spell in enumerate(script.spells):
        name = f"{script.name}-{number}"
        if name not in results:
            command = f"echo {name} >> {LOG}; sleep {spell:g}; echo {name} ran"
            return _call(name, "execute", command=command, timeout="120s")
    return (chunk(content="done"), chunk(finish="stop"), DONE)


def _call(call_id: str, tool: str, **arguments: object) -> tuple[Step, ...]:
    function = {"name": tool, "arguments": msgspec.json.encode(arguments).decode()}
    call = {"index": 0, "id": call_id, "type": "function", "function": function}
    return (chunk(tool_calls=[call]), chunk(finish="tool_calls"), DONE)


class Machine:
    """A host with a server or a runner on it, and its data directory."""

    def __init__(self, host: NamespaceHost, place: Path, kits: Path) -> None:
        self.host = host
        self.name = host.name
        self.is_busy = False
        """An accident of it is under way."""
        self.data_dir = place / host.name
        self.data_dir.mkdir(mode=0o700)
        (self.data_dir / "ws-toolbox").symlink_to(kits)
        self.process: Process | None = None
        self._log = place / f"{host.name}.log"
        self._seen = 0
        """How much of the log had been written before the last start."""

    async def run(self, *words: str, **env: str) -> Process:
        self._log.touch()
        self._seen = len(self._log.read_text())
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self.host.command(str(CHATD), *words),
                env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", **env},
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def wait_for_line(self, text: str, process: Process) -> None:
        """Until its log has this text, or the process ends."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while process.returncode is None:
                said = await asyncio.to_thread(self._log.read_text)
                if text in said[self._seen :]:
                    return
                await asyncio.sleep(0.1)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
            await self.process.wait()

    async def close(self) -> None:
        """Also of what outlives it."""
        self.host.mend()
        await self.end()
        await self.rig().close()

    def rig(self) -> LocalRig:
        return LocalRig(LocalConfig(data_dir=self.data_dir, host_id=HOST))

    def ran(self) -> Counter[str]:
        """How often each command ran in the workspaces of this machine, and in those of its copy:
        a copy makes a workspace again that is started while it is connected."""
        found: Counter[str] = Counter()
        for file in self.data_dir.glob(f"**/ws/*/home/{LOG}"):
            found.update(file.read_text().split())
        return found


class ServerMachine(Machine):
    env: Mapping[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://{self.host.address}:{API_PORT}"

    async def start(self) -> None:
        at = ("--host", self.host.address, "--port", str(API_PORT))
        self.process = await self.run("serve", *at, "--data-dir", str(self.data_dir), **self.env)
        await self.wait_for_line("Ctrl-C stops.", self.process)


class RunnerMachine(Machine):
    server = ""
    token_id = ""

    async def start(self) -> None:
        self.process = await self.run(*self.words(self.data_dir))
        # It has read its token.
        await self.wait_for_line(f"process {self.process.pid},", self.process)

    def words(self, data_dir: Path) -> Sequence[str]:
        where = ("--server", self.server, "--token-file", str(self.data_dir / "token"))
        return ("runner", "start", *where, "--data-dir", str(data_dir), "--name", self.name)


class Client:
    """Repeats a request without a reply at the next server, under the same key."""

    def __init__(self, http: ClientSession, servers: Sequence[ServerMachine]) -> None:
        self._http = http
        self._servers = servers
        self._turn = 0

    async def ask(self, method: str, path: str, body: object = None) -> Json:
        key = f"00000000-0000-4000-8000-{secrets.randbelow(16**12):012x}"
        headers = AUTH | {"Content-Type": "application/json", "Idempotency-Key": key}
        data = None if body is None else msgspec.json.encode(body)
        limit = ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with asyncio.timeout(TURN_TIMEOUT_S):
            while True:
                self._turn += 1
                url = f"{self._servers[self._turn % len(self._servers)].url}/api/v1{path}"
                with suppress(ClientError, OSError):
                    async with self._http.request(
                        method, url, data=data, headers=headers, timeout=limit
                    ) as reply:
                        content = await reply.read()
                        if reply.status not in RETRYABLE_STATUSES:
                            assert reply.status < 300, f"{path}: {reply.status} {content!r}"
                            return msgspec.json.decode(content or b"{}", type=Json)
                await asyncio.sleep(0.2)


async def give_token(client: Client, machine: RunnerMachine) -> None:
    """For its next start."""
    body = {"name": machine.name, "pool": POOL}
    made = await client.ask("POST", "/runner-tokens", body)
    machine.token_id = made["id"]
    (machine.data_dir / "token").write_text(made["token"])


class CommandChat:
    """One user with one chat and one workspace."""

    def __init__(self, number: int, client: Client, template: str, dice: random.Random) -> None:
        self._name = f"c{number}"
        self._client = client
        self._template = template
        self._dice = dice
        self._turns = 0
        self.chat_id = ""
        self.failed: list[str] = []
        """The errors in which turns ended."""

    async def run(self) -> None:
        while True:
            await self.turn([self._dice.choice(SPELLS) for _ in range(self._dice.randint(2, 5))])

    async def turn(self, spells: Sequence[float]) -> str:
        """The name of its first command, when the turn has ended."""
        self._turns += 1
        name = f"{self._name}m{self._turns}"
        template = "" if self.chat_id else self._template
        text = msgspec.json.encode(Script(name, tuple(spells), template)).decode()
        body = {"content": [{"type": "text", "text": text}], "model": "fake"}
        if not self.chat_id:
            self.chat_id = (await self._client.ask("POST", "/chats", body))["id"]
        else:
            await self._client.ask("POST", f"/chats/{self.chat_id}/messages", body)
        while True:
            row = await self._client.ask("GET", f"/chats/{self.chat_id}")
            if row["status"] == "error":
                self.failed.append(row["last_error"]["kind"])
            if row["status"] in ("waiting", "error"):
                return f"{name}-0"
            await asyncio.sleep(0.3)


async def wait_settled(pool: Pool) -> None:
    """Raises AssertionError for a chat that does not become idle."""
    patience, seen = Patience(60.0), None
    while busy := [str(dict(row)) for row in await pool.fetch(BUSY_CHATS)]:
        if busy != seen:
            patience.renew()
        seen = busy
        assert not patience.is_over, f"stuck: {busy}"
        await asyncio.sleep(0.1)


class CommandVerdict:
    """Counts what the model was told of commands, and compares it with what ran."""

    def __init__(self, ran: Counter[str]) -> None:
        self._ran = ran
        self.counts: Counter[str] = Counter()
        self.texts: Counter[str] = Counter()
        self.broken: list[str] = []

    def check(self, chats: Mapping[ChatId, Stored]) -> None:
        for chat_id, found in chats.items():
            self._require(found.chat.state == "W", f"{chat_id} ended in {found.chat.last_error}")
            for message in found.messages:
                for part in message.content:
                    if isinstance(part, ToolResultPart) and part.tool_name == "execute":
                        self._check_result(part)
        told = {name for name, times in self._ran.items() if times > 1}
        self._require(not told, f"ran twice: {sorted(told)}")

    def _check_result(self, part: ToolResultPart) -> None:
        name, text = str(part.tool_call_id), msgspec.json.encode(part.result).decode()
        times = self._ran[name]
        match self._kind(text):
            case "succeeded" as kind:
                self._require(times == 1, f"{name} succeeded and ran {times} times: {text}")
            case "refused" as kind:
                self._require(times == 0, f"{name} was refused and ran {times} times: {text}")
            case kind:
                self._require(times <= 1, f"{name} ran {times} times: {text}")
        self.counts[kind] += 1

    def _kind(self, text: str) -> str:
        if '"success":true' in text:
            return "succeeded"
        self.texts[text[:300]] += 1
        if any(words in text for words in ("unknown", "not known", "may have", "signal")):
            return "unknown"
        return "running" if '"running":true' in text else "refused"

    def _require(self, holds: bool, text: str) -> None:  # noqa: FBT001
        if not holds:
            self.broken.append(text)
