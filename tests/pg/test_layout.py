"""Where the data directory and the socket are, and the connection URL."""

from pathlib import Path

import pytest

from chatd.pg.config import (
    MAX_SOCKET_PATH_BYTES,
    PgError,
    choose_data_dir,
    choose_socket_dir,
    connection_url,
)


@pytest.mark.parametrize(
    ("configured", "env", "uid", "expected"),
    [
        ("/given", {"HOME": "/home/ann"}, 1000, "/given"),
        ("/given", {}, 0, "/given"),
        (None, {"HOME": "/home/ann"}, 1000, "/home/ann/.local/share/chatd/pg"),
        (None, {"HOME": "/home/ann", "XDG_DATA_HOME": "/data"}, 1000, "/data/chatd/pg"),
        (None, {"HOME": "/home/ann", "XDG_DATA_HOME": ""}, 1000, "/home/ann/.local/share/chatd/pg"),
        (None, {"HOME": "/h", "XDG_DATA_HOME": "relative"}, 1000, "/h/.local/share/chatd/pg"),
        (None, {"HOME": "/root", "XDG_DATA_HOME": "/data"}, 0, "/var/lib/chatd/pg"),
    ],
)
def test_the_data_directory_is_configured_or_the_users_or_roots(
    configured: str | None, env: dict[str, str], uid: int, expected: str
) -> None:
    assert choose_data_dir(Path(configured) if configured else None, env, uid=uid) == Path(expected)


def test_without_a_home_the_message_names_what_to_set() -> None:
    with pytest.raises(PgError, match=r"XDG_DATA_HOME nor HOME .* data directory or a database"):
        choose_data_dir(None, {"HOME": ""}, uid=1000)


LONGEST_DATA_DIR = "/" + "d" * (MAX_SOCKET_PATH_BYTES - len("//run/.s.PGSQL.5432"))


@pytest.mark.parametrize(
    ("data_dir", "owner", "parent"),
    [
        ("/var/lib/chatd/pg", 0, "/var/lib/chatd/pg"),
        (LONGEST_DATA_DIR, 1000, LONGEST_DATA_DIR),
        (LONGEST_DATA_DIR + "d", 1000, "/tmp"),
        (LONGEST_DATA_DIR[:-1] + "ä", 1000, "/tmp"),  # One character, two bytes.
        (LONGEST_DATA_DIR + "d", 0, "/run"),
        ("/with,comma", 1000, "/tmp"),
        ('/with"quote', 1000, "/tmp"),
    ],
)
def test_the_socket_is_in_the_data_directory_unless_its_path_cannot_be_used(
    data_dir: str, owner: int, parent: str
) -> None:
    socket_dir = choose_socket_dir(Path(data_dir), owner=owner)

    assert socket_dir.parent == Path(parent)
    assert len(bytes(socket_dir / ".s.PGSQL.5432")) <= MAX_SOCKET_PATH_BYTES


def test_short_socket_directories_differ_by_data_directory_and_by_owner() -> None:
    first, second = Path(LONGEST_DATA_DIR + "-1"), Path(LONGEST_DATA_DIR + "-2")

    chosen = {choose_socket_dir(path, owner=uid) for path in (first, second) for uid in (1, 2)}

    assert len(chosen) == 4
    assert choose_socket_dir(first, owner=1) in chosen


def test_the_url_is_independent_of_the_environment_and_quotes_the_path() -> None:
    assert (
        connection_url(Path("/run/a b&c"))
        == "postgresql://chatd@/chatd?host=/run/a%20b%26c&port=5432&sslmode=disable"
    )
