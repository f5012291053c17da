"""The account that runs the server for root, and the directory that it cannot enter."""

import os
import stat
from pathlib import Path

import pytest

from chatd.pg.config import ClusterLayout, PgError
from chatd.pg.process import Account, can_enter, choose_account, first_account, first_closed_dir

POSTGRES = Account(name="postgres", uid=101, gid=104)
NOBODY = Account(name="nobody", uid=65534, gid=65534)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([POSTGRES, NOBODY], POSTGRES),
        ([NOBODY], NOBODY),
        ([Account(name="postgres", uid=0, gid=0), NOBODY], NOBODY),
    ],
)
def test_the_first_account_that_exists_and_is_not_root_is_chosen(
    known: list[Account], expected: Account
) -> None:
    accounts = {account.name: account for account in known}

    assert first_account(("postgres", "nobody"), accounts.get) == expected


def test_without_an_account_the_message_says_what_to_do() -> None:
    with pytest.raises(PgError, match=r"none of the accounts a, b exists.*ordinary user.*URL"):
        first_account(("a", "b"), lambda _: None)


def found(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    return os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        (found(0o755), True),
        (found(0o711), True),
        (found(0o700), False),
        (found(0o750), False),
        (found(0o750, gid=104), True),
        (
            found(0o701, gid=104),
            False,
        ),  # The group's bits decide for a member.
        (found(0o700, uid=101), True),
        (found(0o077, uid=101, gid=104), False),
    ],
)
def test_mode_bits_decide_whether_an_account_can_enter(
    directory: os.stat_result, *, expected: bool
) -> None:
    assert can_enter(directory, POSTGRES) is expected


@pytest.mark.parametrize(
    ("closed", "expected"),
    [([], None), (["/a/b"], "/a/b"), (["/a", "/a/b"], "/a"), (["/a/b/c"], "/a/b/c")],
)
def test_the_outermost_closed_directory_is_named(closed: list[str], expected: str | None) -> None:
    def read_stat(path: Path) -> os.stat_result:
        return found(0o700 if str(path) in closed else 0o755)

    named = first_closed_dir(Path("/a/b/c"), POSTGRES, read_stat)

    assert named == (Path(expected) if expected else None)


def test_an_ordinary_user_runs_the_server_as_itself(tmp_path: Path) -> None:
    layout = ClusterLayout(data_dir=tmp_path, socket_dir=tmp_path)

    assert choose_account(layout, uid=os.geteuid() or 1000) is None


def test_the_cluster_of_another_user_is_refused(tmp_path: Path) -> None:
    layout = ClusterLayout(data_dir=tmp_path, socket_dir=tmp_path)
    layout.cluster.mkdir()

    with pytest.raises(PgError, match="belongs to"):
        choose_account(layout, uid=os.geteuid() + 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners of files")
@pytest.mark.parametrize("owned", ["cluster", "data_dir"])
def test_for_root_the_owner_of_existing_files_runs_the_server(tmp_path: Path, owned: str) -> None:
    layout = ClusterLayout(data_dir=tmp_path / "pg", socket_dir=tmp_path)
    layout.cluster.mkdir(parents=True)
    os.chown(layout.cluster if owned == "cluster" else layout.data_dir, 4711, 4712)

    account = choose_account(layout, uid=0)

    assert account == Account(name="uid 4711", uid=4711, gid=4712)
