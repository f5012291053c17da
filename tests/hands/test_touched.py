"""Which files count as written by a chat: those that were, and for whoever it acts."""

from pathlib import Path

import pytest

from chatd.agent.git_paths import PathStore
from tests.agent.test_http_routes import Bench

FAMILY = {"Chatd-Chat-Id": "child", "Chatd-Ancestor-Chat-Ids": '["parent"]'}


def edits(path: Path, search: str) -> dict[str, object]:
    edit = {"search": search, "replace": "new"}
    return {"files": [{"path": str(path), "edits": [edit]}]}


@pytest.mark.covers("files-10")
async def test_only_what_was_written_for_a_chat_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PathStore()
    monkeypatch.setattr("chatd.agent.main.PathStore", lambda: store)
    bench = Bench(tmp_path)
    await bench.agent.listen()
    try:
        bench.boot = str((await bench.ask("GET", "/healthz")).json["boot_id"])
        for name, headers in (("theirs", FAMILY), ("nobodys", {})):
            target = f"write-file?path={bench.path(name)}"
            assert (await bench.api("POST", target, b"old", headers)).status == 200
        written = bench.home / "theirs"
        assert store.paths("child") == store.paths("parent") == (str(written),)
        other = bench.home / "nobodys"
        refused = await bench.api("POST", "edit-files", edits(other, "not there"), FAMILY)
        assert refused.status == 400
        directory = f"write-file?path={bench.path('')}"
        assert (await bench.api("POST", directory, b"x", FAMILY)).status == 400
        assert store.paths("child") == (str(written),)
        assert (await bench.api("POST", "edit-files", edits(other, "old"), FAMILY)).status == 200
        assert store.paths("child") == store.paths("parent") == (str(written), str(other))
    finally:
        await bench.agent.close()
