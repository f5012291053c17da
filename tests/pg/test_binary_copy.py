"""As root, chatd copies programs that the server's account cannot run."""

from pathlib import Path

import pytest

from chatd.pg.binaries import candidates, copy_programs
from chatd.pg.server import open_server
from tests.pg.users import AS_ROOT, ENV, PgInstance, fetch

pytestmark = pytest.mark.skipif(not AS_ROOT, reason="only root runs the server as another user")


@pytest.fixture
def closed_bin_dir(home: Path) -> Path:
    """A checkout under root's home, created with a tight umask."""
    closed = home / "closed"
    bin_dir = copy_programs(candidates(None, ENV)[0], closed)
    for path in (closed, *closed.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
    return bin_dir


def program_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/exe").readlink()


async def test_unreachable_programs_are_copied_and_old_copies_removed(
    instance: PgInstance, closed_bin_dir: Path
) -> None:
    instance.bin_dir = closed_bin_dir
    old = instance.data_dir / "programs-18.0-0123456789ab"
    unfinished = instance.data_dir / "partial-programs-01234567"
    old.mkdir()
    unfinished.mkdir()

    server = await open_server(instance.config(), ENV)
    try:
        assert await fetch(server.dsn, "SELECT to_tsvector('english', 'cats')::text") == "'cat':1"
        (copy,) = instance.data_dir.glob("*programs-*")
        assert copy.stat().st_uid == 0
        assert program_of(instance.postmaster()).is_relative_to(copy)
    finally:
        await server.close()
    assert all(parent.stat().st_mode & 0o077 == 0 for parent in closed_bin_dir.parents[:3])


async def test_programs_are_copied_once_and_an_unfinished_copy_is_removed_all_the_same(
    instance: PgInstance, closed_bin_dir: Path
) -> None:
    instance.bin_dir = closed_bin_dir
    server = await open_server(instance.config(), ENV)
    await server.close()
    (copy,) = instance.data_dir.glob("programs-*")
    before = copy.stat()
    unfinished = instance.data_dir / "partial-programs-01234567"
    unfinished.mkdir()

    server = await open_server(instance.config(), ENV)
    await server.close()

    assert copy.stat() == before
    assert not unfinished.exists()
