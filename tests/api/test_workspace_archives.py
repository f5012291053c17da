"""The files of a workspace as tar archives over HTTP, from and to a real workspace agent."""

import io
import os
import tarfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from chatd.agent.files.archive_pack import PACKED_PIECE_BYTES
from chatd.domain.workspace.agent_api import MAX_PIECE_BYTES
from tests.api.workspace_api import WorkspaceApi, end_build
from tests.support.api.server import OTHER_USER, ApiReply
from tests.workspaces.agent_process import AGENT, Workbench, running_agent


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with running_agent(tmp_path) as bench:
        yield bench


class Archives:
    def __init__(self, api: WorkspaceApi, workspace_id: object, home: Path) -> None:
        self.api = api
        self.path = f"/workspaces/{workspace_id}/archive"
        self.home = home

    async def load(self, query: str = "") -> ApiReply:
        return await self.api.ask("GET", f"{self.path}?{query}")

    async def unpack(self, content: bytes, query: str = "") -> ApiReply:
        headers = {"content-type": "application/x-tar"}
        return await self.api.ask("PUT", f"{self.path}?{query}", content, headers=headers)


@pytest.fixture
async def archives(api: WorkspaceApi, bench: Workbench) -> Archives:
    made = await api.make()
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    return Archives(api, made["id"], bench.process.home)


@pytest.mark.parametrize("gzip", ["", "&gzip=true"])
async def test_a_directory_goes_out_and_comes_back(archives: Archives, gzip: str) -> None:
    big = os.urandom(2 * MAX_PIECE_BYTES + 3 * PACKED_PIECE_BYTES + 17)
    (archives.home / "app" / "src").mkdir(parents=True)
    (archives.home / "app" / "big.bin").write_bytes(big)
    (archives.home / "app" / "src" / "main.py").write_text("print()\n")
    (archives.home / "app" / "link").symlink_to("src/main.py")
    (archives.home / "app" / "python").symlink_to("/usr/bin/python3")
    os.mkfifo(archives.home / "app" / "pipe")
    loaded = await archives.load(f"path=app{gzip}")
    assert loaded.status == 200
    assert loaded.headers["content-type"] == f"application/{'gzip' if gzip else 'x-tar'}"
    suffix = "tar.gz" if gzip else "tar"
    assert f'filename="app.{suffix}"' in loaded.headers["content-disposition"]
    counted = [loaded.headers[f"x-archive-{name}"] for name in ("files", "bytes", "skipped")]
    assert counted == ["2", str(len(big) + 8), "1"]
    with tarfile.open(fileobj=io.BytesIO(loaded.content)) as found:
        assert {each.name for each in found} == {
            *("big.bin", "src", "src/main.py", "link", "python")
        }
    unpacked = await archives.unpack(loaded.content, "path=new/copy")
    assert unpacked.json == {
        "files": 2,
        "bytes": len(big) + 8,
        "links": 1,
        "directories": 1,
        "skipped": 0,
        "left_out": ["python"],
        "left_out_count": 1,
    }
    assert (archives.home / "new" / "copy" / "big.bin").read_bytes() == big
    assert (archives.home / "new" / "copy" / "link").read_text() == "print()\n"


async def test_archives_that_cannot_be_used_are_refused_with_a_code(archives: Archives) -> None:
    (archives.home / "file").touch()
    assert (await archives.load("path=../..")).code == (403, "outside_workspace")
    assert (await archives.load("path=nothing")).code == (404, "not_found")
    assert (await archives.load("path=file")).code == (400, "invalid_input")
    assert (await archives.unpack(b"", "path=a%00b")).code == (400, "invalid_input")
    assert (await archives.unpack(b"x" * 3000)).code == (400, "bad_archive")
    assert (await archives.unpack(b"", "path=/etc/x")).code == (403, "outside_workspace")
    hostile = io.BytesIO()
    with tarfile.open(fileobj=hostile, mode="w") as made:
        made.addfile(tarfile.TarInfo("../evil"))
    refused = await archives.unpack(hostile.getvalue())
    assert refused.code == (400, "bad_archive")
    assert "../evil" in str(refused.json["message"])
    assert [each.name for each in archives.home.iterdir()] == ["file"]


async def test_only_the_owner_copies_files(archives: Archives) -> None:
    for method in ("GET", "PUT"):
        refused = await archives.api.ask(method, archives.path, token=OTHER_USER)
        assert refused.code == (404, "not_found")


async def test_a_workspace_without_an_agent_is_refused(api: WorkspaceApi) -> None:
    made = await api.make()
    reply = await api.ask("GET", f"/workspaces/{made['id']}/archive")
    assert reply.code == (409, "no_agent")
