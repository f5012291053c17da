"""`chatd workspaces pull` and `push`, with a real workspace agent."""

import asyncio
import io
import os
import socket
import subprocess
import tarfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from chatd.cli.workspace_copies import left_behind
from tests.api.workspace_api import WorkspaceApi, end_build, workspace_api
from tests.support.api.server import ME
from tests.support.command_line import CHATD
from tests.workspaces.agent_process import AGENT, running_agent

pytestmark = pytest.mark.timeout(240)


class Commands:
    def __init__(self, api: WorkspaceApi, home: Path, here: Path) -> None:
        self.home = home
        self.here = here
        self._env = {
            "HOME": str(here),
            "PATH": "/usr/bin:/bin",
            "CHATD_URL": api.server.url,
            "CHATD_TOKEN": ME,
        }

    async def run(self, *arguments: str, given: bytes = b"") -> tuple[int, bytes, str]:
        process = await asyncio.create_subprocess_exec(
            *(CHATD, "workspaces", *arguments),
            cwd=self.here,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate(given)
        assert process.returncode is not None
        return process.returncode, out, err.decode()


@pytest.fixture
async def commands(dsn: str, tmp_path: Path) -> AsyncGenerator[Commands]:
    here = tmp_path / "here"
    here.mkdir()
    async with workspace_api(dsn) as api, running_agent(tmp_path) as bench:
        await api.make(name="shop")
        await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
        yield Commands(api, bench.process.home, here)


async def test_a_directory_is_pushed_and_pulled(commands: Commands) -> None:
    """Six commands, each a process."""
    source = commands.here / "site"
    (source / "css").mkdir(parents=True)
    (source / "css" / "a.css").write_text("b{}")
    (source / "self").symlink_to("css")
    (source / "out").symlink_to("/etc")
    content = os.urandom(1_500_000)
    (source / "photo").write_bytes(content)
    code, _, err = await commands.run("push", "shop", "site", "--to", "www", "-z")
    assert (code, "2 files, 1.4 MiB, in www" in err) == (0, True), err
    assert "1 links lead out of the directory and were left out: out" in err
    assert (commands.home / "www" / "photo").read_bytes() == content
    (commands.home / "www" / "new").write_text("made there")
    (commands.home / "www" / "escape").symlink_to("../../..")
    code, _, err = await commands.run("pull", "shop", "www")
    assert (code, "3 files, 1.4 MiB, in www" in err) == (0, True), err
    assert "were left out: escape" in err
    pulled = commands.here / "www"
    assert (pulled / "photo").read_bytes() == content
    assert (pulled / "self" / "a.css").read_text() == "b{}"
    code, out, _ = await commands.run("pull", "shop", "www/css", "--to", "-")
    with tarfile.open(fileobj=io.BytesIO(out)) as found:
        assert (code, found.getnames()) == (0, ["a.css"])
    code, out, err = await commands.run("push", "shop", "-", "--to", "again", given=out)
    assert code == 0, err
    assert (commands.home / "again" / "a.css").read_text() == "b{}"
    code, _, err = await commands.run("push", "shop", "-", given=b"no archive" * 100_000)
    assert (code, "not a tar archive" in err) == (2, True), err
    code, _, err = await commands.run("pull", "other")
    assert (code, "there are: shop" in err) == (2, True), err


def test_what_was_not_sent_is_told() -> None:
    assert left_behind({"X-Archive-Skipped": "0"}) == []
    assert left_behind({"X-Archive-Skipped": "2", "X-Archive-Unreadable": "1"}) == [
        "  2 pipes, sockets and devices were left out",
        "  1 files could not be read there and are missing",
    ]


async def test_ports_are_listed_and_a_link_to_a_preview_is_printed(commands: Commands) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = str(listening.getsockname()[1])
        code, out, error = await commands.run("ports", "shop")
        assert code == 0, error
        assert any(line.startswith(port.encode()) for line in out.splitlines()), out
        code, out, error = await commands.run("preview", "shop", port, "--path", "/a")
    assert code == 0, error
    assert out.startswith(f"http://{port}-".encode())
    assert b".localhost:" in out
    code, _, error = await commands.run("preview", "shop", "70000")
    assert code == 2, error
