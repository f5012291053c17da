"""Git behind the proxy of clones: every address that it names is checked."""

import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chatd.guarded_dial import Connection, open_guarded_connection
from chatd.workspaces.local import clone_forward
from chatd.workspaces.local.seeds import PROXY_SOCKET, CloneProxy

TEST_TIMEOUT_S = 40.0


class RepositoryServer:
    """Serves the files of a repository, or redirects to another address."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.redirect = ""
        self.requests: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1].partition("?")[0]
        self.requests.append(path)
        file = self.directory / path.lstrip("/")
        if self.redirect:
            status, more, body = "302 Found", f"Location: {self.redirect}{path}\r\n", b""
        elif file.is_file():
            status, more, body = "200 OK", "", file.read_bytes()
        else:
            status, more, body = "404 Not Found", "", b""
        reply = f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n"
        writer.write(f"{reply}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["RepositoryServer"]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A bare repository that any file server can offer."""
    work, bare = tmp_path / "work", tmp_path / "served" / "repo.git"
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (
        ["init", "-q", str(work)],
        ["-C", str(work), *identity, "commit", "-q", "--allow-empty", "-m", "served"],
        ["clone", "-q", "--bare", str(work), str(bare)],
        ["-C", str(bare), "update-server-info"],
    ):
        subprocess.run(["git", *words], check=True, capture_output=True)
    return bare.parent


async def clone(proxy: CloneProxy, tmp_path: Path, url: str) -> tuple[int | None, str]:
    words = ["git", "clone", url, str(tmp_path / "cloned")]
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "GIT_ALLOW_PROTOCOL": "http:https"}
    async with asyncio.timeout(TEST_TIMEOUT_S), proxy.listening(tmp_path / "proxy", None):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", inspect.getsource(clone_forward),
            str(tmp_path / "proxy" / PROXY_SOCKET), *words,
            env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output = (await process.communicate())[0].decode()
    return process.returncode, output


async def test_a_repository_is_cloned_through_the_proxy(tmp_path: Path, repository: Path) -> None:
    async with RepositoryServer(repository).running() as server:

        async def dial(host: str, port: int) -> Connection:
            assert (host, port) == ("git.example.org", 80)
            return await open_guarded_connection("127.0.0.1", server.port, allow_private=True)

        proxy = CloneProxy(dial)
        code, output = await clone(proxy, tmp_path, "http://git.example.org/repo.git")
    assert code == 0, output
    assert proxy.refusals == []
    assert (tmp_path / "cloned" / ".git" / "HEAD").exists()
    assert not (tmp_path / "proxy").exists()
    assert any("/objects/" in path for path in server.requests)


@pytest.mark.parametrize("target", ["http://127.0.0.1:{port}", "http://localhost:{port}"])
async def test_a_redirect_to_the_host_is_refused(
    tmp_path: Path, repository: Path, target: str
) -> None:
    async with (
        RepositoryServer(repository).running() as outside,
        RepositoryServer(repository).running() as secret,
    ):
        outside.redirect = target.format(port=secret.port)

        async def dial(host: str, port: int) -> Connection:
            if host == "git.example.org":
                return await open_guarded_connection("127.0.0.1", outside.port, allow_private=True)
            return await open_guarded_connection(host, port)

        proxy = CloneProxy(dial)
        code, _ = await clone(proxy, tmp_path, "http://git.example.org/repo.git")
    assert code != 0
    assert outside.requests
    assert secret.requests == []
    assert "not on the public internet" in proxy.refusals[-1]


@pytest.mark.parametrize("target", ["file:///{path}", "ext::touch {path}/owned"])
async def test_a_redirect_to_another_protocol_is_refused(
    tmp_path: Path, repository: Path, target: str
) -> None:
    async with RepositoryServer(repository).running() as outside:
        outside.redirect = target.format(path=tmp_path)

        async def dial(_host: str, _port: int) -> Connection:
            return await open_guarded_connection("127.0.0.1", outside.port, allow_private=True)

        code, _ = await clone(CloneProxy(dial), tmp_path, "http://git.example.org/repo.git")
    assert code != 0
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "cloned").exists()


async def test_a_client_that_speaks_another_protocol_is_dropped(tmp_path: Path) -> None:
    async def dial(_host: str, _port: int) -> Connection:
        raise AssertionError

    proxy = CloneProxy(dial)
    async with asyncio.timeout(TEST_TIMEOUT_S), proxy.listening(tmp_path / "proxy", None):
        for bad in (b"GET / HTTP/1.1\r\n\r\n", b"\5\1\0\5\1\0\7", b"\5\1\0\5\2\0\1\1\1\1\1\0\1"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "proxy" / PROXY_SOCKET)
            writer.write(bad)
            writer.write_eof()
            assert not (await reader.read()).startswith(b"\5\0\5\0")
            writer.close()
