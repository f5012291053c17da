"""Tests see nothing of the machine, and the decoys that prove it touch nothing of a person's."""

import os
from http.client import HTTPConnection
from pathlib import Path

from tests.support.machine import HOME_PREFIX, is_kept
from tools.decoys import PREFIX, decoy_server, linked, planted


def test_a_test_has_a_home_of_its_own_and_no_variables_of_the_machine() -> None:
    env = os.environ  # noqa: TID251 - what is in it is the question
    home = Path(env["HOME"])
    assert home.name.startswith(HOME_PREFIX)
    assert Path.cwd() == home.resolve()
    with planted(in_fixed_places=False) as decoys:
        assert [name for name in decoys.variables if name in env] == ["HOME"]


def test_decoys_are_removed_at_the_end() -> None:
    with planted(in_fixed_places=False) as decoys:
        home = Path(decoys.variables["HOME"])
        assert (home / ".config" / "chatd" / "profiles.toml").exists()
        assert (Path(decoys.variables["CHATD_DATA_DIR"]) / "admin-token").exists()
        assert not any(is_kept(name) for name in decoys.variables)
    assert not home.exists()


def test_what_a_person_has_in_a_place_stays(tmp_path: Path) -> None:
    place = tmp_path / "chatd"
    place.mkdir()
    (place / "data").write_text("of a person")
    with linked(place, tmp_path / "decoy"):
        assert (place / "data").read_text() == "of a person"
    assert (place / "data").read_text() == "of a person"


def test_a_decoy_in_an_empty_place_goes_and_what_came_meanwhile_stays(tmp_path: Path) -> None:
    place, decoy = tmp_path / "chatd", tmp_path / "decoy"
    decoy.mkdir()
    with linked(place, decoy):
        assert place.readlink() == decoy
    assert not place.is_symlink()
    with linked(place, decoy):
        place.unlink()
        place.mkdir()
    assert place.is_dir()


def test_the_link_of_a_killed_run_is_replaced_and_no_other(tmp_path: Path) -> None:
    place, decoy = tmp_path / "chatd", tmp_path / "decoy"
    decoy.mkdir()
    place.symlink_to(tmp_path / f"{PREFIX}gone")
    with linked(place, decoy):
        assert place.readlink() == decoy
    place.symlink_to(tmp_path / "a-disk-that-is-not-mounted")
    with linked(place, decoy):
        assert place.readlink().name == "a-disk-that-is-not-mounted"


def test_a_request_to_the_decoy_server_is_noted() -> None:
    requests: list[str] = []
    with decoy_server(requests, 0) as port:
        asking = HTTPConnection("127.0.0.1", port, timeout=30)
        asking.request("GET", "/api/v1/auth/me")
        assert asking.getresponse().status == 418
        asking.close()
    assert requests == ["GET /api/v1/auth/me HTTP/1.1"]
