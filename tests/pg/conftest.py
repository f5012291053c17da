"""A data directory of its own for every test, and a cluster made once and copied."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from chatd.pg.account import Account, first_closed_dir
from chatd.pg.binaries import candidates
from chatd.pg.relocate import copy_programs
from chatd.pg.server import start
from tests.pg.users import ENV, NOBODY, Place, copy_data_dir


def roomy_dir() -> Path:
    """Memory if there is enough of it: copying a cluster on a disk takes a second."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 * 1024**3:
        return memory
    return Path("/tmp")


@pytest.fixture(scope="session")
def open_dir() -> Iterator[Path]:
    """A directory that any account can pass; pytest's own are closed to all but the owner."""
    path = Path(tempfile.mkdtemp(prefix="chatd-pg-", dir=roomy_dir()))
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
def everybodys(home: Path) -> Path:
    """A directory in which any account can make things."""
    home.chmod(0o1777)
    return home


@pytest.fixture
async def shared(everybodys: Path, open_bin_dir: Path) -> AsyncIterator[Place]:
    """A place where any account can be the first."""
    place = Place(everybodys / "pg", open_bin_dir)
    yield place
    await place.clean_up()


@pytest.fixture
async def empty(home: Path) -> AsyncIterator[Place]:
    """A place where nothing has been created yet."""
    place = Place(home / "pg")
    yield place
    await place.clean_up()


@pytest.fixture(scope="session")
def made(open_dir: Path) -> Path:
    """A data directory with a finished cluster in it, to copy: initdb takes a second."""

    async def make() -> None:
        server = await start(Place(open_dir / "made").config(), ENV)
        await server.close()

    asyncio.run(make())
    return open_dir / "made"


@pytest.fixture
def copied(home: Path, made: Path) -> Path:
    copy_data_dir(made, home / "pg")
    return home / "pg"


@pytest.fixture
async def place(copied: Path) -> AsyncIterator[Place]:
    """A place with a cluster that nobody uses yet."""
    place = Place(copied)
    yield place
    await place.clean_up()


@pytest.fixture(scope="session")
def open_bin_dir(open_dir: Path) -> Path:
    """PostgreSQL's programs where any account can run them, also if the checkout is closed."""
    bin_dir = candidates(None, ENV)[0]
    nobody = Account(name="nobody", uid=NOBODY, gid=NOBODY)
    if first_closed_dir(bin_dir, nobody) is None:
        return bin_dir
    return copy_programs(bin_dir, open_dir / "programs")
