"""Who can read the log of the terminal."""

import logging
import os
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from chatd.terminal.app import LOG_FILE, MAX_LOG_BYTES, open_log

LOGGER = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def own_logging() -> Generator[None]:
    root = logging.getLogger()
    handlers, level, mask = root.handlers[:], root.level, os.umask(0o022)
    yield
    os.umask(mask)
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    for handler in handlers:
        root.addHandler(handler)


def modes(directory: Path) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in directory.iterdir()}


def test_only_its_account_reads_the_log_also_after_a_rotation(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).write_text("of an earlier version\n")
    assert open_log(tmp_path) == tmp_path / LOG_FILE
    LOGGER.warning("x" * (MAX_LOG_BYTES - 500))
    LOGGER.warning("y" * 1000)
    assert modes(tmp_path) == {LOG_FILE: 0o600, f"{LOG_FILE}.1": 0o600}
    assert "of an earlier version" in (tmp_path / f"{LOG_FILE}.1").read_text()
    assert (tmp_path / LOG_FILE).read_text().endswith(f"{'y' * 1000}\n")
