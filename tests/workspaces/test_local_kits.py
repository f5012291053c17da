"""Which kits of earlier versions go, and which stay."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from chatd.workspaces.local.cleanup import lock_kit, remove_unused_kits

MINE, SERVES, RUNS, OLD, TORN = ("0" * 15 + digit for digit in "12345")


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """One of this server, of another, of a workspace, of nobody; and one half removed."""
    for name in (MINE, SERVES, RUNS, OLD):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "lib" / "file").touch()
    (tmp_path / f".{TORN}-0123" / "lib").mkdir(parents=True)
    (tmp_path / "unlike a kit").mkdir()
    return tmp_path


def present(kits: Path) -> set[str]:
    return {path.name for path in kits.iterdir() if path.is_dir()}


async def test_a_kit_that_no_server_and_no_workspace_uses_is_removed(kits: Path) -> None:
    asked: list[Sequence[str]] = []

    async def mentioned(words: Sequence[str]) -> AbstractSet[str]:
        asked.append(words)
        assert lock_kit(kits, words[0], exclusive=True) is None
        return {RUNS}

    serving = lock_kit(kits, SERVES)
    assert serving is not None
    await remove_unused_kits(kits, MINE, mentioned)
    assert asked == [[RUNS, OLD, TORN]]
    assert present(kits) == {MINE, SERVES, RUNS, "unlike a kit"}
    assert not (kits / f"{OLD}.lock").exists()
    serving.close()
    await remove_unused_kits(kits, MINE, mentioned)
    assert present(kits) == {MINE, RUNS, "unlike a kit"}


async def test_kits_stay_when_nobody_can_say_what_runs(kits: Path) -> None:
    async def silent(words: Sequence[str]) -> AbstractSet[str] | None:
        del words

    before = present(kits)
    await remove_unused_kits(kits, MINE, silent)
    assert present(kits) == before
    again = lock_kit(kits, OLD, exclusive=True)
    assert again is not None
    again.close()


async def test_kits_that_are_shared_by_a_link_stay(kits: Path) -> None:
    async def nothing(words: Sequence[str]) -> AbstractSet[str]:
        del words
        return set()

    link = kits / "link"
    link.symlink_to(kits)
    before = present(kits)
    await remove_unused_kits(link, MINE, nothing)
    assert present(kits) == before
