"""A data directory for each test, with a cluster that is created once and copied."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from chatd.pg.binaries import candidates, copy_programs
from chatd.pg.process import Account, first_closed_dir
from chatd.pg.server import open_server
from tests.pg.users import ENV, NOBODY, PgInstance, copy_data_dir


def fast_dir() -> Path:
    """In memory if there is enough: copying a cluster on a disk takes a second."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 * 1024**3:
        return memory
    return Path("/tmp")


@pytest.fixture(scope="session")
def open_dir() -> Iterator[Path]:
    """A directory that every account can enter; only the owner can enter pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="chatd-pg-", dir=fast_dir()))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def home(open_dir: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=open_dir))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def world_writable_dir(home: Path) -> Path:
    """A directory in which every account can create files."""
    home.chmod(0o1777)
    return home


@pytest.fixture
async def shared_instance(
    world_writable_dir: Path, open_bin_dir: Path
) -> AsyncIterator[PgInstance]:
    """An instance that any account can create."""
    instance = PgInstance(world_writable_dir / "pg", open_bin_dir)
    yield instance
    await instance.clean_up()


@pytest.fixture
async def empty_instance(home: Path) -> AsyncIterator[PgInstance]:
    """An instance without a data directory."""
    instance = PgInstance(home / "pg")
    yield instance
    await instance.clean_up()


@pytest.fixture(scope="session")
def prepared_data_dir(open_dir: Path, open_bin_dir: Path) -> Path:
    """A data directory with a cluster and no programs, to copy: initdb takes a second."""

    async def create() -> None:
        server = await open_server(PgInstance(open_dir / "prepared", open_bin_dir).config(), ENV)
        await server.close()

    asyncio.run(create())
    return open_dir / "prepared"


@pytest.fixture
async def instance(home: Path, prepared_data_dir: Path) -> AsyncIterator[PgInstance]:
    """An instance with a cluster and without users."""
    copy_data_dir(prepared_data_dir, home / "pg")
    instance = PgInstance(home / "pg")
    yield instance
    await instance.clean_up()


@pytest.fixture(scope="session")
def open_bin_dir(open_dir: Path) -> Path:
    """PostgreSQL's programs where every account can run them, even if the checkout is private."""
    bin_dir = candidates(None, ENV)[0]
    nobody = Account(name="nobody", uid=NOBODY, gid=NOBODY)
    if first_closed_dir(bin_dir, nobody) is None:
        return bin_dir
    return copy_programs(bin_dir, open_dir / "programs")
