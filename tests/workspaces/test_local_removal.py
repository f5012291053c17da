"""Removing what somebody hostile has left behind, and giving out accounts."""

import asyncio
import os
import subprocess
import traceback
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from uuid import UUID

import pytest

from chatd.domain.ids import WorkspaceId
from chatd.workspaces.backend import BuildFailed
from chatd.workspaces.local.accounts import (
    LOWEST,
    RANGE,
    Range,
    account_for,
    account_of,
    choose_range,
)
from chatd.workspaces.local.layout import SOCKET_PATH_MAX, Layout, Spot
from chatd.workspaces.local.removal import discard, empty_trash
from tests.support.local_rig import AS_ROOT, data_directory

WHOLE = "         0          0 4294967295\n"
SMALL = "         0     100000      65536\n"
DEPTH = 1200


@pytest.fixture
def layout() -> Generator[Layout]:
    with data_directory() as data_dir:
        layout = Layout(data_dir=data_dir)
        layout.make(passable=False)
        yield layout


def make_hostile(top: Path, outside: Path) -> None:
    """Deeper than any path can say, closed to its own owner, full of ways out."""
    top.mkdir()
    for name in ("fifo", "run"):
        os.mkfifo(top / name)
    (top / "way-out").symlink_to(outside)
    (top / "loop").symlink_to(top)
    (top / "file").write_text("")
    os.link(top / "file", top / "hard")
    (top / "file").chmod(0)
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    name = "d" * 50
    for number in range(DEPTH):
        os.mkdir(name, dir_fd=here)
        if number % 100 == 0:
            os.symlink(outside, "out", dir_fd=here)
        deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    closed = top / "closed" / "inner"
    closed.mkdir(parents=True)
    (closed / "file").write_text("")
    closed.chmod(0)
    closed.parent.chmod(0o500)
    top.chmod(0)


def as_nobody(act: Callable[[], None]) -> None:
    """In a child that makes system calls and leaves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Newer Pythons warn of threads.
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            act()
            code = 0
        finally:
            traceback.print_exc()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.covers("hostile-4")
def test_a_hostile_tree_is_removed_and_nothing_else(layout: Layout) -> None:
    outside = layout.data_dir / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    tree = layout.workspaces / "tree"
    make_hostile(tree, outside)
    discard(tree, layout.trash)
    assert not tree.exists()
    empty_trash(layout.trash)
    assert list(layout.trash.iterdir()) == []
    assert (outside / "precious").read_text() == "kept"


@pytest.mark.skipif(not AS_ROOT, reason="only root can act under another account")
def test_an_ordinary_account_removes_its_hostile_tree_too(layout: Layout) -> None:
    """Root ignores modes, others meet them."""
    outside = layout.data_dir / "outside"
    for path in (outside, layout.data_dir / "mine", layout.data_dir / "mine" / "trash"):
        path.mkdir()
    (outside / "precious").write_text("kept")
    tree, trash = layout.data_dir / "mine" / "tree", layout.data_dir / "mine" / "trash"

    def act() -> None:
        make_hostile(tree, outside)
        discard(tree, trash)
        empty_trash(trash)

    for path in (layout.data_dir.parent, layout.data_dir, outside, trash.parent, trash):
        path.chmod(0o777)
    as_nobody(act)
    assert list(trash.iterdir()) == []
    assert not tree.exists()
    assert (outside / "precious").read_text() == "kept"


async def test_several_may_empty_the_trash_at_once(layout: Layout) -> None:
    for number in range(20):
        for inner in range(20):
            (layout.trash / f"{number}" / f"{inner}" / "x" / "y").mkdir(parents=True)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(asyncio.to_thread(empty_trash, layout.trash))
    assert list(layout.trash.iterdir()) == []


def test_removing_what_is_not_there_is_fine(layout: Layout) -> None:
    discard(layout.workspaces / "nothing", layout.trash)
    empty_trash(layout.trash)


@pytest.mark.skipif(not AS_ROOT, reason="only root can mount")
def test_what_was_left_mounted_is_let_go_and_not_emptied(layout: Layout) -> None:
    source, tree = layout.data_dir / "source", layout.workspaces / "tree"
    (tree / "mounted").mkdir(parents=True)
    source.mkdir()
    (source / "precious").write_text("kept")
    mounted = subprocess.run(
        ["mount", "--bind", source, tree / "mounted"], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    discard(tree, layout.trash)
    empty_trash(layout.trash)
    assert (source / "precious").read_text() == "kept"
    assert not tree.exists()


# Accounts


def spot(layout: Layout, number: int) -> Spot:
    found = layout.spot(WorkspaceId(UUID(int=number)))
    found.root.mkdir(exist_ok=True)
    return found


def test_an_account_is_given_once_and_for_good(layout: Layout) -> None:
    numbers = Range(base=LOWEST, size=RANGE)
    given = [account_for(layout, spot(layout, n), numbers) for n in range(5)]
    assert len(set(given)) == 5
    assert [account_for(layout, spot(layout, n), numbers) for n in range(5)] == given
    assert [account_of(spot(layout, n)) for n in range(5)] == given


def test_an_account_is_not_given_again_while_there_are_others(layout: Layout) -> None:
    numbers = Range(base=LOWEST, size=3)
    first = account_for(layout, spot(layout, 1), numbers)
    discard(spot(layout, 1).root, layout.trash)
    second = account_for(layout, spot(layout, 2), numbers)
    third = account_for(layout, spot(layout, 3), numbers)
    assert len({first, second, third}) == 3
    with pytest.raises(BuildFailed, match="delete some"):
        account_for(layout, spot(layout, 4), numbers)  # The first one's files are still there.
    empty_trash(layout.trash)
    assert account_for(layout, spot(layout, 4), numbers) == first


def test_a_lost_or_damaged_counter_gives_no_account_twice(layout: Layout) -> None:
    numbers = Range(base=LOWEST, size=RANGE)
    given = {account_for(layout, spot(layout, n), numbers) for n in range(3)}
    layout.accounts.write_text("not a number")
    assert account_for(layout, spot(layout, 9), numbers) not in given


def test_accounts_come_from_where_nobody_else_looks() -> None:
    one = choose_range(Path("/var/lib/chatd"), WHOLE)
    other = choose_range(Path("/srv/chatd"), WHOLE)
    assert one is not None
    assert other is not None
    assert one != other
    assert LOWEST <= min(one.base, other.base) < max(one.base, other.base) < 2**31 - RANGE
    inside = choose_range(Path("/var/lib/chatd"), SMALL)
    assert inside is not None
    assert inside.base + inside.size < 65_534
    assert choose_range(Path("/var/lib/chatd"), "0 1000 1\n") is None


# Paths


def test_the_socket_of_a_deep_data_directory_still_has_a_short_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80) / ("e" * 80)
    layout = Layout(data_dir=deep)
    layout.make(passable=False)
    workspace = WorkspaceId(UUID(int=7))
    layout.spot(workspace).run.mkdir(parents=True)
    path = layout.socket(workspace)
    assert len(bytes(path)) <= SOCKET_PATH_MAX
    assert path == layout.socket(workspace)
    path.write_text("reached")
    assert (layout.spot(workspace).run / path.name).read_text() == "reached"
    link = path.parents[2]
    link.unlink()
    link.parent.rmdir()


def test_what_is_there_is_found_by_its_name(layout: Layout) -> None:
    spot(layout, 1)
    (layout.workspaces / "lost+found").mkdir()
    assert layout.present() == [WorkspaceId(UUID(int=1))]
    assert Layout(data_dir=layout.data_dir / "none").present() == []
