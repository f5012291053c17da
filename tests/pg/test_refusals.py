"""Places and programs that cannot be used: the message says what is wrong and what to do."""

from pathlib import Path

import pytest

from chatd.pg.config import Config
from chatd.pg.errors import PgError
from chatd.pg.places import choose_socket_dir
from chatd.pg.server import start
from tests.pg import fakes
from tests.pg.users import AS_ROOT, ENV, NOBODY, Place

needs_root = pytest.mark.skipif(not AS_ROOT, reason="about what only root meets")


async def test_a_read_only_directory_is_named(shared: Place) -> None:
    shared.data_dir.mkdir(mode=0o555)
    user = await shared.user(uid=NOBODY if AS_ROOT else None)

    message = await user.failure()

    assert str(shared.data_dir) in message
    assert "Permission denied" in message
    assert "choose another data directory" in message


async def test_a_parent_in_which_nothing_can_be_made_is_named(shared: Place) -> None:
    shared.data_dir.mkdir(mode=0o555)
    shared.data_dir /= "inner"
    user = await shared.user(uid=NOBODY if AS_ROOT else None)

    message = await user.failure()

    assert str(shared.data_dir) in message
    assert "Permission denied" in message


async def test_a_file_in_place_of_the_directory_is_refused(empty: Place) -> None:
    empty.data_dir.write_text("precious")

    with pytest.raises(PgError, match="Not a directory"):
        await start(empty.config(), ENV)

    assert empty.data_dir.read_text() == "precious"


async def test_a_full_disk_is_called_a_full_disk(empty: Place, home: Path) -> None:
    empty.bin_dir = fakes.programs(home / "bin", initdb=fakes.DISK_IS_FULL)

    with pytest.raises(PgError, match="There is no room for the database") as caught:
        await start(empty.config(), ENV)

    assert "No space left on device" in str(caught.value)
    assert not list(empty.data_dir.glob("cluster*"))


async def test_a_cluster_of_another_major_version_is_refused_and_left_alone(
    place: Place, home: Path
) -> None:
    place.bin_dir = fakes.programs(home / "bin", version="17.2")

    with pytest.raises(PgError, match="was made by PostgreSQL") as caught:
        await start(place.config(), ENV)

    message = str(caught.value)
    assert "17.2" in message
    assert "pg_dump" in message
    assert "Nothing has been changed" in message
    assert place.layout.cluster.is_dir()


async def test_a_broken_cluster_is_not_replaced(place: Place) -> None:
    (place.layout.cluster / "PG_VERSION").write_text("")

    with pytest.raises(PgError, match="PG_VERSION cannot be read"):
        await start(place.config(), ENV)

    assert (place.layout.cluster / "base").is_dir()


async def test_a_setting_that_postgresql_rejects_is_shown_in_its_own_words(place: Place) -> None:
    with pytest.raises(PgError, match='unrecognized configuration parameter "shared_bufers"'):
        await start(place.config(shared_bufers="1MB"), ENV)

    assert await place.is_dead()


async def test_a_server_that_dies_again_and_again_is_given_up_with_its_log(place: Place) -> None:
    for segment in (place.layout.cluster / "pg_wal").glob("0000*"):
        segment.unlink()

    with pytest.raises(PgError, match="could not locate a valid checkpoint record"):
        await start(place.config(), ENV)

    assert await place.is_dead()


@needs_root
async def test_a_directory_that_the_account_cannot_pass_is_named(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(PgError, match="cannot enter") as caught:
        await start(Config(data_dir=closed / "inner" / "pg"), ENV)

    assert f"cannot enter {closed}. " in str(caught.value)
    assert not list(closed.iterdir())
    assert closed.stat().st_mode & 0o777 == 0o700


@needs_root
async def test_a_cluster_of_another_user_is_refused(place: Place) -> None:
    place.data_dir.chmod(0o711)
    user = await place.user(uid=NOBODY)

    message = await user.failure()

    assert "belongs to" in message
    assert "Start chatd as that user" in message


@needs_root
async def test_a_socket_directory_that_somebody_else_made_is_not_trusted(
    everybodys: Path, open_bin_dir: Path
) -> None:
    place = Place(everybodys / ("long" * 30), open_bin_dir)
    trap = choose_socket_dir(place.data_dir, owner=NOBODY)
    trap.mkdir(mode=0o777)
    try:
        user = await place.user(uid=NOBODY)
        message = await user.failure()
    finally:
        trap.rmdir()

    assert f"{trap} is in the way" in message
