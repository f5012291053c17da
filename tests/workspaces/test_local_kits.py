"""Removal of kits of earlier versions."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from chatd.workspaces.local.workspace_dirs import lock_kit, remove_unused_kits

OWN, SERVER, SANDBOX, UNUSED, PARTIAL = ("0" * 15 + digit for digit in "12345")


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """Kits of this server, of another server, of a workspace; an unused one; one half removed."""
    for name in (OWN, SERVER, SANDBOX, UNUSED):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "lib" / "file").touch()
    (tmp_path / f".{PARTIAL}-0123" / "lib").mkdir(parents=True)
    (tmp_path / "unlike a kit").mkdir()
    return tmp_path


def present(kits: Path) -> set[str]:
    return {path.name for path in kits.iterdir() if path.is_dir()}


async def test_a_kit_that_no_server_and_no_workspace_uses_is_removed(kits: Path) -> None:
    requests: list[Sequence[str]] = []

    async def words_in_use(words: Sequence[str]) -> AbstractSet[str]:
        requests.append(words)
        assert lock_kit(kits, words[0], exclusive=True) is None
        return {SANDBOX}

    serving = lock_kit(kits, SERVER)
    assert serving is not None
    await remove_unused_kits(kits, OWN, words_in_use)
    assert requests == [[SANDBOX, UNUSED, PARTIAL]]
    assert present(kits) == {OWN, SERVER, SANDBOX, "unlike a kit"}
    assert not (kits / f"{UNUSED}.lock").exists()
    serving.close()
    await remove_unused_kits(kits, OWN, words_in_use)
    assert present(kits) == {OWN, SANDBOX, "unlike a kit"}


async def test_kits_stay_when_the_supervisor_cannot_tell_what_runs(kits: Path) -> None:
    async def unknown(words: Sequence[str]) -> AbstractSet[str] | None:
        del words

    before = present(kits)
    await remove_unused_kits(kits, OWN, unknown)
    assert present(kits) == before
    again = lock_kit(kits, UNUSED, exclusive=True)
    assert again is not None
    again.close()


async def test_kits_in_a_linked_directory_stay(kits: Path) -> None:
    async def nothing(words: Sequence[str]) -> AbstractSet[str]:
        del words
        return set()

    link = kits / "link"
    link.symlink_to(kits)
    before = present(kits)
    await remove_unused_kits(link, OWN, nothing)
    assert present(kits) == before
