"""A server as a process of its own, and `chatd` commands against it, as a person or a script runs
them."""

import asyncio
import os
import socket
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

import msgspec
from msgspec import Struct
from typer.testing import CliRunner

from chatd.cli.main import app

CHATD: Final = Path(sys.executable).with_name("chatd")
LAST_LINE: Final = "Ctrl-C stops."
COMMAND_TIMEOUT_S: Final = 90.0

Json = dict[str, object]


class Finished(Struct, frozen=True):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.out, type=Json)

    @property
    def items(self) -> list[Json]:
        return msgspec.json.decode(self.out, type=list[Json])

    @property
    def lines(self) -> list[Json]:
        return read_lines(self.out)


def read_lines(text: str) -> list[Json]:
    return [msgspec.json.decode(line, type=Json) for line in text.splitlines()]


class ServerProcess:
    """Always at the same port, so that it can be killed and started again. Without workspaces
    unless asked for, which are slow to start, and without generated titles."""

    def __init__(
        self, dsn: str, directory: Path, *, tokens_per_second: int = 0, workspaces: bool = False
    ) -> None:
        self.directory = directory
        self._dsn = dsn
        self._port = _free_port()
        self._process: subprocess.Popen[str] | None = None
        (directory / "chatd.toml").write_text(
            f"[chats]\ntitles = false\n[workspaces]\nenabled = {str(workspaces).lower()}\n"
            '[[models]]\nname = "demo"\nprovider = "demo"\nmodel = "demo"\ndefault = true\n'
            f"options = {{ tokens_per_second = {tokens_per_second}, failures = 1 }}\n"
            '[[models]]\nname = "dear"\nprovider = "demo"\nmodel = "demo"\n'
            "prices = { input = 1, output = 1000000 }\n"
            '[[mcp_servers]]\nslug = "open"\nurl = "https://mcp.example.com/mcp"\n'
            '[[mcp_servers]]\nslug = "private"\nurl = "https://mcp.example.com/mcp"\n'
            'auth = "oauth2"\n'
        )

    @property
    def dsn(self) -> str:
        """Of its database."""
        return self._dsn

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def env(self) -> dict[str, str]:
        """Of commands, which find the server by its data directory."""
        return {
            "HOME": str(self.directory),
            "PATH": "/usr/bin:/bin",
            "CHATD_DATA_DIR": str(self.directory / "data"),
        }

    def start(self) -> None:
        at = ("--port", str(self._port), "--database-url", self._dsn, "--no-browser")
        config = ("--config", str(self.directory / "chatd.toml"))
        self._process = subprocess.Popen(
            [CHATD, "serve", *at, *config],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.rstrip("\n") == LAST_LINE:
                return
        raise AssertionError(f"chatd serve ended with {self._process.wait()}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None

    async def run(
        self, *arguments: object, given: bytes = b"", env: dict[str, str] | None = None
    ) -> Finished:
        """A command that ends. `given` is its input."""
        async with (
            asyncio.timeout(COMMAND_TIMEOUT_S),
            self.started(*arguments, env=env, stdin=PIPE) as process,
        ):
            out, err = await process.communicate(given)
        assert process.returncode is not None
        return Finished(process.returncode, out.decode(), err.decode())

    async def ok(self, *arguments: object, given: bytes = b"") -> Finished:
        finished = await self.run(*arguments, given=given)
        assert finished.code == 0, finished
        return finished

    def call(self, *arguments: object, env: dict[str, str] | None = None) -> Finished:
        """A command in this process, which spares its start. It has no input and no terminal, and
        leaves no variable behind: `--config` sets one."""
        variables = dict(os.environ)
        try:
            result = CliRunner().invoke(app, list(map(str, arguments)), env=self.env | (env or {}))
        finally:
            os.environ.clear()
            os.environ.update(variables)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Finished(result.exit_code, result.stdout, result.stderr)

    def done(self, *arguments: object) -> Finished:
        finished = self.call(*arguments)
        assert finished.code == 0, finished
        return finished

    def pipe(self, given: str, *arguments: object, cwd: Path | None = None) -> Finished:
        """A command with input, as a process."""
        command = [str(CHATD), *map(str, arguments)]
        ended = subprocess.run(
            command,
            env=self.env,
            cwd=cwd,
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        return Finished(ended.returncode, ended.stdout, ended.stderr)

    def create_chat(self, text: str, **more: object) -> str:
        """The id of a chat that is being answered."""
        content = [{"type": "text", "text": text}]
        return str(self.request("POST", "/chats", {"content": content, **more})["id"])

    def answered_chat(self, text: str = "answer fast", **more: object) -> str:
        chat_id = self.create_chat(text, **more)
        self.done("chats", "tail", chat_id, "--until-idle")
        return chat_id

    def set_policy(self, *rules: Json) -> None:
        """Of the administrator, who runs the commands."""
        self.request("PUT", "/settings/me/tool-policy", {"rules": rules})

    def request(self, method: str, path: str, body: object = None) -> Json:
        token = (self.directory / "data" / "admin-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        data = None if body is None else msgspec.json.encode(body)
        sent = Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        with urlopen(sent, timeout=COMMAND_TIMEOUT_S) as reply:
            return msgspec.json.decode(reply.read(), type=Json)

    @asynccontextmanager
    async def started(
        self, *arguments: object, env: dict[str, str] | None = None, stdin: int = DEVNULL
    ) -> AsyncGenerator[Process]:
        process = await asyncio.create_subprocess_exec(
            CHATD,
            *map(str, arguments),
            env=self.env | (env or {}),
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
            limit=4 * 1024 * 1024,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()


async def read_until(process: Process, wanted: str, *, errors: bool = False) -> list[str]:
    """The lines of the output up to one with this text."""
    stream = process.stderr if errors else process.stdout
    assert stream is not None
    lines: list[str] = []
    async with asyncio.timeout(COMMAND_TIMEOUT_S):
        while not lines or wanted not in lines[-1]:
            line = await stream.readline()
            assert line, f"it ended after {lines}"
            lines.append(line.decode().rstrip("\n"))
    return lines


async def finish(process: Process) -> tuple[int, str, str]:
    """The exit code and the rest of the output."""
    async with asyncio.timeout(COMMAND_TIMEOUT_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def run_at_terminal(server: ServerProcess, arguments: Sequence[object]) -> str:
    """What a command shows on the standard output of a terminal."""
    done = _at_terminal(server, arguments, "", stderr=subprocess.DEVNULL)
    assert done.code == 0, done
    return done.out


def ask_at_terminal(server: ServerProcess, arguments: Sequence[object], reply: str) -> Finished:
    """A command that has a terminal for all, where somebody types this line."""
    return _at_terminal(server, arguments, f"{reply}\n", stderr=None)


def _at_terminal(
    server: ServerProcess, arguments: Sequence[object], typed: str, *, stderr: int | None
) -> Finished:
    primary, secondary = os.openpty()
    process = subprocess.Popen(
        [str(CHATD), *map(str, arguments)],
        env=server.env | {"TERM": "xterm", "COLUMNS": "80"},
        stdin=secondary,
        stdout=secondary,
        stderr=secondary if stderr is None else stderr,
    )
    os.close(secondary)
    os.write(primary, typed.encode())
    shown = b""
    while chunk := _read(primary):
        shown += chunk
    code = process.wait(COMMAND_TIMEOUT_S)
    os.close(primary)
    return Finished(code, shown.decode(), "")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the end of a terminal
        return b""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
