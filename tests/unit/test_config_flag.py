"""The flag --config holds for processes that the command starts, too."""

from pathlib import Path

import pytest

from chatd.cli.process import read_settings


def test_a_started_process_reads_the_file_that_the_flag_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHATD_CONFIG", "")
    file = tmp_path / "own.toml"
    file.write_text("[worker]\ndrain_s = 7.0\n")
    assert read_settings({}, Path("own.toml")).worker.drain_s == 7.0
    monkeypatch.chdir("/")
    assert read_settings({}, None).worker.drain_s == 7.0
