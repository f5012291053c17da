"""Removal of hostile trees, assignment of uids, and paths."""

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
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.local.workspace_dirs import (
    LOWEST_UID,
    MAX_SOCKET_PATH_BYTES,
    UIDS_PER_RANGE,
    LocalLayout,
    UidRange,
    WorkspacePaths,
    assign_uid,
    choose_uid_range,
    empty_trash,
    move_to_trash,
    read_uid,
)
from tests.support.local_rig import AS_ROOT, data_directory
from tests.support.outcomes import present

WHOLE = "         0          0 4294967295\n"
SMALL = "         0     100000      65536\n"
DEPTH = 1200


@pytest.fixture
def layout() -> Generator[LocalLayout]:
    with data_directory() as data_dir:
        layout = LocalLayout(data_dir=data_dir)
        layout.create_dirs(reached_by_host_path=False)
        yield layout


def create_hostile_tree(top: Path, outside: Path) -> None:
    """Deeper than the longest path, closed to its own owner, full of links to outside."""
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
    """In a child process that exits afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Newer Pythons warn about threads.
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
def test_a_hostile_tree_is_removed_and_nothing_else(layout: LocalLayout) -> None:
    outside = layout.data_dir / "outside"
    outside.mkdir()
    (outside / "precious").write_text("intact")
    tree = layout.workspaces / "tree"
    create_hostile_tree(tree, outside)
    move_to_trash(tree, layout.trash)
    assert not tree.exists()
    empty_trash(layout.trash)
    assert list(layout.trash.iterdir()) == []
    assert (outside / "precious").read_text() == "intact"


@pytest.mark.skipif(not AS_ROOT, reason="only root can act under another account")
def test_an_ordinary_account_removes_its_hostile_tree_too(layout: LocalLayout) -> None:
    """Modes do not restrict root, but other accounts."""
    outside = layout.data_dir / "outside"
    for path in (outside, layout.data_dir / "mine", layout.data_dir / "mine" / "trash"):
        path.mkdir()
    (outside / "precious").write_text("intact")
    tree, trash = layout.data_dir / "mine" / "tree", layout.data_dir / "mine" / "trash"

    def act() -> None:
        create_hostile_tree(tree, outside)
        move_to_trash(tree, trash)
        empty_trash(trash)

    for path in (layout.data_dir.parent, layout.data_dir, outside, trash.parent, trash):
        path.chmod(0o777)
    as_nobody(act)
    assert list(trash.iterdir()) == []
    assert not tree.exists()
    assert (outside / "precious").read_text() == "intact"


async def test_several_processes_can_empty_the_trash_at_once(layout: LocalLayout) -> None:
    for number in range(20):
        for inner in range(20):
            (layout.trash / f"{number}" / f"{inner}" / "x" / "y").mkdir(parents=True)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(asyncio.to_thread(empty_trash, layout.trash))
    assert list(layout.trash.iterdir()) == []


def test_removing_a_missing_tree_does_nothing(layout: LocalLayout) -> None:
    move_to_trash(layout.workspaces / "nothing", layout.trash)
    empty_trash(layout.trash)


@pytest.mark.skipif(not AS_ROOT, reason="only root can mount")
def test_a_leftover_mount_is_unmounted_and_not_emptied(layout: LocalLayout) -> None:
    source, tree = layout.data_dir / "source", layout.workspaces / "tree"
    (tree / "mounted").mkdir(parents=True)
    source.mkdir()
    (source / "precious").write_text("intact")
    mounted = subprocess.run(
        ["mount", "--bind", source, tree / "mounted"], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    move_to_trash(tree, layout.trash)
    empty_trash(layout.trash)
    assert (source / "precious").read_text() == "intact"
    assert not tree.exists()


# Uids


def paths_of(layout: LocalLayout, number: int) -> WorkspacePaths:
    found = layout.workspace_paths(WorkspaceId(UUID(int=number)))
    found.root.mkdir(exist_ok=True)
    return found


def test_a_workspace_gets_its_uid_once(layout: LocalLayout) -> None:
    uids = UidRange(base=LOWEST_UID, size=UIDS_PER_RANGE)
    assigned = [assign_uid(layout, paths_of(layout, n), uids) for n in range(5)]
    assert len(set(assigned)) == 5
    assert [assign_uid(layout, paths_of(layout, n), uids) for n in range(5)] == assigned
    assert [read_uid(paths_of(layout, n)) for n in range(5)] == assigned


def test_a_uid_is_not_reused_while_others_are_free(layout: LocalLayout) -> None:
    uids = UidRange(base=LOWEST_UID, size=3)
    first = assign_uid(layout, paths_of(layout, 1), uids)
    move_to_trash(paths_of(layout, 1).root, layout.trash)
    second = assign_uid(layout, paths_of(layout, 2), uids)
    third = assign_uid(layout, paths_of(layout, 3), uids)
    assert len({first, second, third}) == 3
    with pytest.raises(BuildFailed, match="delete some"):
        assign_uid(
            layout, paths_of(layout, 4), uids
        )  # The first uid still owns files in the trash.
    empty_trash(layout.trash)
    assert assign_uid(layout, paths_of(layout, 4), uids) == first


def test_a_damaged_counter_assigns_no_uid_twice(layout: LocalLayout) -> None:
    uids = UidRange(base=LOWEST_UID, size=UIDS_PER_RANGE)
    assigned = {assign_uid(layout, paths_of(layout, n), uids) for n in range(3)}
    layout.uid_counter.write_text("not a number")
    assert assign_uid(layout, paths_of(layout, 9), uids) not in assigned


def test_uid_ranges_avoid_those_of_the_host() -> None:
    one = choose_uid_range(Path("/var/lib/chatd"), WHOLE)
    other = choose_uid_range(Path("/srv/chatd"), WHOLE)
    assert one is not None
    assert other is not None
    assert one != other
    assert (
        LOWEST_UID <= min(one.base, other.base) < max(one.base, other.base) < 2**31 - UIDS_PER_RANGE
    )
    inside = present(choose_uid_range(Path("/var/lib/chatd"), SMALL))
    assert inside.base + inside.size < 65_534
    assert choose_uid_range(Path("/var/lib/chatd"), "0 1000 1\n") is None


# Paths


def test_the_socket_of_a_deep_data_directory_still_has_a_short_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80) / ("e" * 80)
    layout = LocalLayout(data_dir=deep)
    layout.create_dirs(reached_by_host_path=False)
    workspace = WorkspaceId(UUID(int=7))
    layout.workspace_paths(workspace).run.mkdir(parents=True)
    path = layout.socket(workspace)
    assert len(bytes(path)) <= MAX_SOCKET_PATH_BYTES
    assert path == layout.socket(workspace)
    path.write_text("reached")
    assert (layout.workspace_paths(workspace).run / path.name).read_text() == "reached"
    link = path.parents[2]
    link.unlink()
    link.parent.rmdir()


def test_workspaces_are_listed_by_their_directories(layout: LocalLayout) -> None:
    paths_of(layout, 1)
    (layout.workspaces / "lost+found").mkdir()
    assert layout.list_workspaces() == [WorkspaceId(UUID(int=1))]
    assert LocalLayout(data_dir=layout.data_dir / "none").list_workspaces() == []
