"""The identity of a host and the secret of its agents: files that are created once."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from chatd.api.accounts.authenticator import ADMIN_TOKEN_FILE, admin_token
from chatd.domain.errors import ChatdError
from chatd.workspaces.agents.agent_session import HOST_ID_FILE, SECRET_FILE, host_id, server_secret


def test_the_secret_and_id_of_a_host_are_created_once_and_private(
    tmp_path: Path,
) -> None:
    place = tmp_path / "data"
    secret, name = server_secret(None, place), host_id(place)
    assert (server_secret(None, place), host_id(place)) == (secret, name)
    assert len(secret) == len(name) == 64
    assert {p.name: p.stat().st_mode & 0o777 for p in place.iterdir()} == {
        HOST_ID_FILE: 0o600,
        SECRET_FILE: 0o600,
    }
    assert server_secret(None, tmp_path / "other") != secret
    assert server_secret(" one that is given \n", tmp_path / "none") == b"one that is given"
    assert not (tmp_path / "none").exists()


def test_servers_that_start_at_once_agree_on_the_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server_secret, None, tmp_path) for _ in range(16)]
    assert len({secret.result() for secret in asked}) == 1
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (host_id, HOST_ID_FILE),
        (partial(server_secret, None), SECRET_FILE),
        (partial(admin_token, None), ADMIN_TOKEN_FILE),
    ],
)
def test_created_files_are_synced_to_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], object],
    name: str,
) -> None:
    synced: list[tuple[int, bool]] = []
    fsync = os.fsync

    def noting(fd: int) -> None:
        synced.append((os.fstat(fd).st_ino, (tmp_path / name).exists()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    make(tmp_path)
    # First the content under another name, then the rename.
    inodes = (tmp_path / name).stat().st_ino, tmp_path.stat().st_ino
    assert synced == [(inodes[0], False), (inodes[1], True)]
    make(tmp_path)
    assert len(synced) == 2


def test_a_secret_that_is_too_short_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / SECRET_FILE).write_text("short\n")
    with pytest.raises(ChatdError, match=str(tmp_path / SECRET_FILE)):
        server_secret(None, tmp_path)
    with pytest.raises(ChatdError, match="CHATD_SECRET"):
        server_secret("short", tmp_path)


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ChatdError, match=HOST_ID_FILE):
        host_id(tmp_path / "file")
