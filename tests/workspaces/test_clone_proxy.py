"""Git behind the proxy of clones: every address that it names is checked."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chatd.clock import SystemClock
from chatd.domain.workspace.entities import GitSeed, TemplateSpec
from chatd.workspaces.network.inside import forward_words, proxy_variables
from chatd.workspaces.network.network_proxy import NetworkProxy
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from tests.support.network_names import TestNetwork

TEST_TIMEOUT_S = 40.0
OUTSIDE = "93.184.215.14"
URL = "http://git.example.org/repo.git"


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


def clone_proxy(tmp_path: Path, outside_port: int, spec: TemplateSpec) -> NetworkProxy:
    network = TestNetwork({"git.example.org": [[OUTSIDE]]}, {OUTSIDE: outside_port})
    networks = WorkspaceNetworks(tmp_path, SystemClock(), network.dialer)
    return networks.clone_proxy(spec, GitSeed(url=URL))


async def clone(proxy: NetworkProxy, tmp_path: Path) -> tuple[int | None, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory = tmp_path / "proxy"
    words = [*forward_words((sys.executable,), str(directory), port)]
    words += ["git", "clone", URL, str(tmp_path / "cloned")]
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "GIT_ALLOW_PROTOCOL": "http:https"}
    # Git asks no proxy about the loopback otherwise.
    env |= {**proxy_variables(port), "NO_PROXY": "", "no_proxy": ""}
    async with asyncio.timeout(TEST_TIMEOUT_S), proxy.listening(directory, None):
        process = await asyncio.create_subprocess_exec(
            *words, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output = (await process.communicate())[0].decode()
    return process.returncode, output


@pytest.mark.parametrize(
    "spec", [TemplateSpec(), TemplateSpec(network="allow", allow=("pypi.org",))]
)
async def test_a_repository_is_cloned_through_the_proxy(
    tmp_path: Path, repository: Path, spec: TemplateSpec
) -> None:
    async with RepositoryServer(repository).running() as server:
        proxy = clone_proxy(tmp_path, server.port, spec)
        code, output = await clone(proxy, tmp_path)
    assert code == 0, output
    assert proxy.failures == []
    assert (tmp_path / "cloned" / ".git" / "HEAD").exists()
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
        proxy = clone_proxy(tmp_path, outside.port, TemplateSpec())
        code, _ = await clone(proxy, tmp_path)
    assert code != 0
    assert outside.requests
    assert secret.requests == []
    assert "not on the public internet" in proxy.failures[-1]


@pytest.mark.parametrize("target", ["file:///{path}", "ext::touch {path}/owned"])
async def test_a_redirect_to_another_protocol_is_refused(
    tmp_path: Path, repository: Path, target: str
) -> None:
    async with RepositoryServer(repository).running() as outside:
        outside.redirect = target.format(path=tmp_path)
        code, _ = await clone(clone_proxy(tmp_path, outside.port, TemplateSpec()), tmp_path)
    assert code != 0
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "cloned").exists()


async def test_a_redirect_to_a_host_that_the_template_does_not_allow_is_refused(
    tmp_path: Path, repository: Path
) -> None:
    async with RepositoryServer(repository).running() as outside:
        outside.redirect = "http://elsewhere.example.org"
        spec = TemplateSpec(network="allow", allow=("pypi.org",))
        proxy = clone_proxy(tmp_path, outside.port, spec)
        code, _ = await clone(proxy, tmp_path)
    assert code != 0
    assert "may not reach elsewhere.example.org:80" in proxy.failures[-1]
