"""What the set-up does for sandboxes on a machine that has no bubblewrap yet."""

import json
from pathlib import Path

import pytest

from tests.support.local_rig import AS_ROOT
from tools import environment

pytestmark = pytest.mark.skipif(not AS_ROOT, reason="only root installs packages")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in `bin` and nowhere else, and a note of the set-up of its own."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CHATD_SETUP_SYSTEM", raising=False)
    monkeypatch.setattr(environment, "NOTE", tmp_path / "note.json")
    return tmp_path


def put_apt_get(machine: Path, script: str) -> None:
    """Writes down what it is asked, then does as the script says."""
    path = machine / "bin" / "apt-get"
    path.write_text(f'#!/bin/sh\necho "$*" >> {machine}/asked\n{script}\n')
    path.chmod(0o755)


def asked(machine: Path) -> list[str]:
    lines = (machine / "asked").read_text().splitlines()
    return [line.split("Timeout=20 ")[1] for line in lines]


def test_bubblewrap_is_installed_where_it_can_be(machine: Path) -> None:
    assert not environment.wants_bubblewrap()
    put_apt_get(machine, f"/usr/bin/touch {machine}/bin/bwrap; /bin/chmod +x {machine}/bin/bwrap")
    assert environment.wants_bubblewrap()
    environment.install_bubblewrap()
    assert asked(machine) == ["install --yes --no-install-recommends bubblewrap"]
    assert not environment.wants_bubblewrap()


def test_lists_are_fetched_if_it_is_unknown(machine: Path) -> None:
    put_apt_get(machine, f'case "$*" in *update) exec /usr/bin/touch {machine}/new;; esac; '
                         f"test -e {machine}/new")  # fmt: skip
    environment.install_bubblewrap()
    assert [line.split()[0] for line in asked(machine)] == ["install", "update", "install"]


def test_a_failure_is_a_remark_and_is_not_repeated(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_apt_get(machine, "echo no network >&2; exit 100")
    environment.install_bubblewrap()
    assert "install the package bubblewrap by hand" in capsys.readouterr().out
    assert json.loads((machine / "note.json").read_text()) == {"bubblewrap": "tried"}
    assert not environment.wants_bubblewrap()


def test_whoever_says_no_is_left_alone(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_apt_get(machine, "exit 0")
    monkeypatch.setenv("CHATD_SETUP_SYSTEM", "0")
    assert not environment.wants_bubblewrap()


def test_whoever_has_it_is_left_alone(machine: Path) -> None:
    put_apt_get(machine, "exit 0")
    (machine / "bin" / "bwrap").touch(mode=0o755)
    assert not environment.wants_bubblewrap()
