"""The files of a chat's workspace over HTTP, from a real workspace agent."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from chatd.api.routes.workspace.workspace_files import BINARY
from chatd.domain.workspace.agent_api import MAX_PIECE_BYTES
from tests.api.workspace_api import WorkspaceApi, end_build
from tests.support.api.server import OTHER_USER, ApiReply, ApiServer, Json
from tests.workspaces.agent_process import AGENT, Workbench, running_agent


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with running_agent(tmp_path) as bench:
        yield bench


class Files:
    def __init__(self, api: WorkspaceApi, chat_id: object, home: Path) -> None:
        self.api = api
        self.chat_id = chat_id
        self.home = home

    async def list(self, path: str = "") -> ApiReply:
        return await self.api.ask("GET", f"/chats/{self.chat_id}/workspace/files?path={path}")

    async def load(self, path: str, more: str = "") -> ApiReply:
        return await self.api.ask("GET", f"/chats/{self.chat_id}/workspace/file?path={path}{more}")


@pytest.fixture
async def files(api: WorkspaceApi, bench: Workbench) -> Files:
    made = await api.make()
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    chat_id = await api.server.create(workspace_id=made["id"])
    return Files(api, chat_id, bench.process.home)


async def test_a_directory_and_a_file_are_read(files: Files) -> None:
    (files.home / "src").mkdir()
    (files.home / "src" / "app.py").write_text("print('hä')\n")
    listed = (await files.list()).json
    assert (listed["home"], listed["is_cut"]) == (str(files.home), False)
    [entry] = msgspec.convert(listed["items"], list[Json])
    assert (entry["name"], entry["kind"]) == ("src", "directory")
    assert listed["entries"] == listed["items"], "for earlier clients"
    [entry] = (await files.list("src")).items
    assert (entry["name"], entry["kind"], entry["size_bytes"]) == ("app.py", "file", 13)
    assert str(entry["modified_at"]).startswith("20")
    loaded = await files.load("src/app.py")
    assert loaded.content.decode() == "print('hä')\n"
    assert loaded.headers["content-type"] == "text/plain; charset=utf-8"
    assert (loaded.headers["x-file-size"], loaded.headers["cache-control"]) == ("13", "no-store")
    part = await files.load("src/app.py", "&offset=10&limit=2")
    assert (part.content, part.headers["x-file-size"]) == (b"')", "13")


async def test_a_directory_is_read_by_pages_that_go_on_where_the_last_one_ended(
    files: Files,
) -> None:
    for name in ("b", "c", "d", "e"):
        (files.home / name).touch()
    first = await files.list("&limit=2")
    assert [entry["name"] for entry in first.items] == ["b", "c"]
    assert len(msgspec.convert(first.json["entries"], list[Json])) == 4
    (files.home / "a").touch()
    second = await files.list(f"&limit=2&cursor={first.json['next_cursor']}")
    assert [entry["name"] for entry in second.items] == ["d", "e"]
    assert (second.json["has_more"], second.json["entries"]) == (False, [])
    assert (await files.list("&cursor=x")).code == (400, "invalid_cursor")


@pytest.mark.promise("P13")
async def test_nothing_in_a_hostile_file_runs_in_a_browser(files: Files) -> None:
    hostile = b"<html><script>fetch('/api/v1/auth/me')</script>"
    for name in ("x.html", "x.svg", "x.js", "x.png"):
        (files.home / name).write_bytes(hostile)
        loaded = await files.load(name)
        assert loaded.headers["content-type"] == "text/plain; charset=utf-8"
        assert loaded.headers["x-content-type-options"] == "nosniff"
        assert loaded.headers["content-security-policy"] == "default-src 'none'; sandbox"
    (files.home / 'a";x\r\n.html').write_bytes(b"\0" + hostile)
    loaded = await files.load("a%22;x%0d%0a.html")
    assert loaded.headers["content-type"] == "application/octet-stream"
    shown = loaded.headers["content-disposition"]
    assert shown.startswith('attachment; filename="a__x.html"')
    (files.home / "real.gif").write_bytes(b"GIF89a" + bytes(20))
    assert (await files.load("real.gif")).headers["content-type"] == "image/gif"
    (files.home / "x.pdf").write_bytes(b"%PDF-1.7\n\0")
    assert (await files.load("x.pdf")).headers["content-disposition"].startswith("attachment")


async def test_a_download_sends_the_whole_file_as_an_attachment(files: Files) -> None:
    content = os.urandom(2 * MAX_PIECE_BYTES + 17)
    (files.home / "big.bin").write_bytes(content)
    loaded = await files.load("big.bin", "&download=true")
    assert loaded.content == content
    assert loaded.headers["content-type"] == "application/octet-stream"
    assert loaded.headers["content-disposition"].startswith('attachment; filename="big.bin"')
    assert len((await files.load("big.bin")).content) == MAX_PIECE_BYTES
    (files.home / "empty").touch()
    assert (await files.load("empty", "&download=true")).content == b""
    assert (await files.load("empty")).headers["content-type"].startswith("text/plain")


@pytest.mark.promise("P15")
async def test_paths_that_cannot_be_read_are_refused_with_a_code(files: Files) -> None:
    (files.home / "out").symlink_to("/etc")
    (files.home / "d").mkdir()
    os.mkfifo(files.home / "pipe")
    assert (await files.load("../../etc/passwd")).code == (403, "outside_workspace")
    assert (await files.load("/etc/passwd")).code == (403, "outside_workspace")
    assert (await files.load("out/passwd")).code == (403, "outside_workspace")
    assert (await files.list("out")).code == (403, "outside_workspace")
    assert (await files.load("nothing")).code == (404, "not_found")
    assert (await files.load("d")).code == (400, "invalid_input")
    assert (await files.load("pipe")).code == (400, "invalid_input")
    assert (await files.list("nothing")).code == (404, "not_found")
    assert (await files.load("a%00b")).code == (400, "invalid_input")
    assert (await files.load("x" * 5000)).code == (400, "invalid_input")
    assert (await files.load("d", "&limit=0")).code == (400, "invalid_input")
    assert (await files.load("d", "&offset=-1")).code == (400, "invalid_input")


@pytest.mark.promise("P12", "P14")
async def test_files_of_a_workspace_that_does_not_answer_are_refused(
    api: WorkspaceApi, bench: Workbench
) -> None:
    chat_id = await api.server.create()
    path = f"/chats/{chat_id}/workspace/files"
    assert (await api.ask("GET", path, token=OTHER_USER)).code == (404, "not_found")
    assert (await api.ask("GET", path)).code == (409, "no_workspace")
    made = await api.make()
    await api.ask("PATCH", f"/chats/{chat_id}", {"workspace_id": made["id"]})
    assert (await api.ask("GET", path)).code == (409, "no_agent")
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    assert (await api.ask("GET", path)).status == 200
    bench.process.end(9)
    assert (await api.ask("GET", path)).code == (409, "agent_lost")


async def test_files_are_refused_while_workspaces_are_disabled(server: ApiServer) -> None:
    chat_id = await server.create()
    path = f"/chats/{chat_id}/workspace/file?path=x"
    assert (await server.ask("GET", path)).code == (409, "workspaces_off")


async def test_a_file_is_saved_only_over_the_version_that_was_loaded(files: Files) -> None:
    async def save(path: str, content: bytes, version: str = "") -> ApiReply:
        where = f"/chats/{files.chat_id}/workspace/file?path={path}&version={version}"
        return await files.api.ask("PUT", where, content, headers={"content-type": "text/plain"})

    script = files.home / "run.sh"
    script.write_text("one\n")
    script.chmod(0o755)
    version = (await files.load("run.sh")).headers["x-file-version"]
    saved = await save("run.sh", b"two\n", version)
    assert (saved.status, saved.json["size"]) == (200, 4), saved.content
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("two\n", 0o755)
    assert (await save("run.sh", b"three\n", version)).code == (409, "file_changed")
    assert (await save("run.sh", b"three\n")).code == (409, "file_changed")
    assert script.read_text() == "two\n"
    again = await save("run.sh", b"three\n", str(saved.json["version"]))
    assert (again.status, script.read_text()) == (200, "three\n")
    script.unlink()
    assert (await save("run.sh", b"x", str(again.json["version"]))).code == (409, "file_changed")
    assert (await save("new.txt", b"new")).status == 200
    assert (await save("new.txt", b"x" * (MAX_PIECE_BYTES + 1))).status == 413
    assert (await save("../outside.txt", b"x")).code == (403, "outside_workspace")
    assert (files.home / "new.txt").read_text() == "new"


async def test_a_page_is_shown_in_a_sandbox(files: Files) -> None:
    (files.home / "a.html").write_text("<script>1</script>")
    shown = await files.load("a.html", "&page=true")
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    policy = shown.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy
    (files.home / "b.bin").write_bytes(b"\0<script>1</script>")
    assert (await files.load("b.bin", "&page=true")).headers["content-type"] == BINARY
