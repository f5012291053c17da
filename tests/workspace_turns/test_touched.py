"""Which files count as written by a chat and by its parents."""

from pathlib import Path

import pytest

from chatd.agent.git.git_repositories import TouchedPaths
from tests.agent.server.agent_server import AgentServer

FAMILY = {"Chatd-Chat-Id": "child", "Chatd-Ancestor-Chat-Ids": '["parent"]'}


def edits(path: Path, search: str) -> dict[str, object]:
    edit = {"search": search, "replace": "new"}
    return {"files": [{"path": str(path), "edits": [edit]}]}


@pytest.mark.covers("files-10")
async def test_only_files_written_for_a_chat_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TouchedPaths()
    monkeypatch.setattr("chatd.agent.main.TouchedPaths", lambda: store)
    server = AgentServer(tmp_path)
    await server.agent.listen()
    try:
        server.boot_id = str((await server.request("GET", "/healthz")).json["boot_id"])
        for name, headers in (("theirs", FAMILY), ("unowned", {})):
            target = f"write-file?path={server.path(name)}"
            assert (await server.api("POST", target, b"old", headers)).status == 200
        written = server.home / "theirs"
        assert store.paths("child") == store.paths("parent") == (str(written),)
        other = server.home / "unowned"
        refused = await server.api("POST", "edit-files", edits(other, "not there"), FAMILY)
        assert refused.status == 400
        directory = f"write-file?path={server.path('')}"
        assert (await server.api("POST", directory, b"x", FAMILY)).status == 400
        assert store.paths("child") == (str(written),)
        assert (await server.api("POST", "edit-files", edits(other, "old"), FAMILY)).status == 200
        assert store.paths("child") == store.paths("parent") == (str(written), str(other))
    finally:
        await server.agent.close()
