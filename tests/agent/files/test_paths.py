"""Resolving paths and listing directories."""

import os
from pathlib import Path
from typing import TypedDict

import pytest
from msgspec import convert

from chatd.agent.errors import AgentError
from chatd.agent.files import file_content
from chatd.agent.files.file_content import list_directory
from chatd.agent.files.file_paths import MAX_LINKS, resolve_path
from tests.agent.unprivileged import denied_without_privileges
from tests.support.outcomes import present


def test_links_are_resolved_and_a_missing_tail_is_kept(tmp_path: Path) -> None:
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "up").symlink_to("real/sub/../../link")
    (tmp_path / "far").symlink_to(tmp_path / "link/sub")
    (tmp_path / "dangling").symlink_to("missing/x")
    table = {
        "link/sub": "real/sub",
        "link/new/file": "real/new/file",
        "up/sub": "real/sub",
        "far/..": "real",
        "far//./x/": "real/sub/x",
        "dangling/y": "missing/x/y",
        "no/../link": "real",
    }
    for path, expected in table.items():
        assert resolve_path(f"{tmp_path}/{path}") == str(tmp_path / expected)
    assert resolve_path("/../..") == "/"


def test_too_many_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(AgentError, match="too many levels") as refused:
        resolve_path(str(tmp_path / "loop"))
    assert refused.value.status == 400
    (tmp_path / "0").mkdir()
    for number in range(1, MAX_LINKS + 2):
        (tmp_path / str(number)).symlink_to(str(number - 1))
    assert resolve_path(str(tmp_path / str(MAX_LINKS))) == str(tmp_path / "0")
    with pytest.raises(AgentError):
        resolve_path(str(tmp_path / str(MAX_LINKS + 1)))


def test_resolving_without_permission_is_forbidden(shared: Path) -> None:
    (shared / "closed").mkdir()
    (shared / "closed/link").symlink_to("x")
    (shared / "closed").chmod(0)  # closed to its owner too, who may run the tests
    denied = present(denied_without_privileges(lambda: resolve_path(str(shared / "closed/link/y"))))
    assert denied.status == 403


class Entry(TypedDict):
    name: str
    absolute_path_string: str
    is_dir: bool


def contents(listed: dict[str, object]) -> list[tuple[str, bool]]:
    entries = convert(listed["contents"], list[Entry])
    return [(each["name"], each["is_dir"]) for each in entries]


@pytest.mark.covers("files-12")
def test_a_directory_is_listed_with_directories_first(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "dir" / name).mkdir(parents=True)
    for name in ("z", "C", ".hidden"):
        (tmp_path / "dir" / name).touch()
    (tmp_path / "dir/to-dir").symlink_to("a")
    (tmp_path / "dir/broken").symlink_to("nowhere")
    listed = list_directory(["dir"], "home", home=str(tmp_path))
    assert contents(listed) == [
        ("a", True),
        ("b", True),
        ("to-dir", True),
        (".hidden", False),
        ("C", False),
        ("broken", False),
        ("z", False),
    ]
    assert listed["absolute_path_string"] == str(tmp_path / "dir")
    assert listed["absolute_path"] == list((tmp_path / "dir").parts[1:])


@pytest.mark.covers("files-12")
def test_paths_are_relative_to_home_or_root(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert contents(list_directory([], "home", home=str(tmp_path))) == [("x", False)]
    assert list_directory([], "root")["absolute_path_string"] == "/"
    assert contents(list_directory(str(tmp_path).split("/"), "root")) == [("x", False)]


def test_invalid_utf8_in_names_is_replaced(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff", "wb"):
        pass
    assert contents(list_directory([], "home", home=str(tmp_path))) == [("\ufffd", False)]


@pytest.mark.covers("files-12")
def test_invalid_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, relativity, status in [
        (["missing"], "home", 404),
        (["file"], "home", 400),
        ([], "moon", 400),
        (["a\0b"], "home", 400),
    ]:
        with pytest.raises(AgentError) as refused:
            list_directory(path, relativity, home=str(tmp_path))
        assert refused.value.status == status


@pytest.mark.covers("files-12")
def test_listing_without_permission_is_forbidden(shared: Path) -> None:
    (shared / "closed").mkdir(mode=0)
    denied = denied_without_privileges(lambda: list_directory(["closed"], "home", home=str(shared)))
    assert denied is not None
    assert denied.status == 403


def test_a_directory_with_too_many_entries_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_content, "MAX_DIRECTORY_ENTRIES", 2)
    for name in "ab":
        (tmp_path / name).touch()
    assert len(contents(list_directory([], "home", home=str(tmp_path)))) == 2
    (tmp_path / "c").touch()
    with pytest.raises(AgentError, match="use execute with find") as refused:
        list_directory([], "home", home=str(tmp_path))
    assert refused.value.status == 413
