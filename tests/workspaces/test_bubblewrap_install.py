"""What the set-up does for sandboxes on a machine that has no bubblewrap yet."""

import json
from pathlib import Path

import pytest

from tests.support.local_rig import AS_ROOT
from tools import environment

pytestmark = pytest.mark.skipif(not AS_ROOT, reason="only root installs packages")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs only in `bin`, and a separate note of the set-up."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CHATD_SETUP_SYSTEM", raising=False)
    monkeypatch.setattr(environment, "NOTE", tmp_path / "note.json")
    return tmp_path


def put_apt_get(machine: Path, script: str) -> None:
    """Records its arguments, then runs the script."""
    path = machine / "bin" / "apt-get"
    path.write_text(f'#!/bin/sh\necho "$*" >> {machine}/asked\n{script}\n')
    path.chmod(0o755)


def requests(machine: Path) -> list[str]:
    lines = (machine / "asked").read_text().splitlines()
    return [line.split("Timeout=20 ")[1] for line in lines]


def test_bubblewrap_is_installed_with_apt(machine: Path) -> None:
    assert not environment.wants_bubblewrap()
    put_apt_get(machine, f"/usr/bin/touch {machine}/bin/bwrap; /bin/chmod +x {machine}/bin/bwrap")
    assert environment.wants_bubblewrap()
    environment.install_bubblewrap()
    assert requests(machine) == ["install --yes --no-install-recommends bubblewrap"]
    assert not environment.wants_bubblewrap()


def test_package_lists_are_updated_if_the_package_is_unknown(machine: Path) -> None:
    put_apt_get(machine, f'case "$*" in *update) exec /usr/bin/touch {machine}/new;; esac; '
                         f"test -e {machine}/new")  # fmt: skip
    environment.install_bubblewrap()
    assert [line.split()[0] for line in requests(machine)] == ["install", "update", "install"]


def test_a_failure_is_a_remark_and_is_not_repeated(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_apt_get(machine, "echo no network >&2; exit 100")
    environment.install_bubblewrap()
    assert "install the package bubblewrap by hand" in capsys.readouterr().out
    assert json.loads((machine / "note.json").read_text()) == {"bubblewrap": "tried"}
    assert not environment.wants_bubblewrap()


def test_the_installation_can_be_disabled(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_apt_get(machine, "exit 0")
    monkeypatch.setenv("CHATD_SETUP_SYSTEM", "0")
    assert not environment.wants_bubblewrap()


def test_an_installed_bubblewrap_is_not_installed_again(machine: Path) -> None:
    put_apt_get(machine, "exit 0")
    (machine / "bin" / "bwrap").touch(mode=0o755)
    assert not environment.wants_bubblewrap()
