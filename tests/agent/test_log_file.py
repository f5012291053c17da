"""The journal behind two descriptors: what a crash at any moment leaves, and a full disk."""

import errno
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chatd.agent.durable_files import HiddenLogFile, JsonLog, NamedLogFile, open_log_file
from chatd.agent.effect_guards import IdempotencyJournal

FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT


@contextmanager
def descriptors(place: Path, flags: int = FLAGS) -> Generator[tuple[int, int]]:
    """Two neighbouring descriptors of the files `a` and `b`."""
    opened = [os.open(place / name, flags, 0o600) for name in ("a", "b")]
    first = 200
    while any(Path(f"/proc/self/fd/{fd}").exists() for fd in (first, first + 1)):
        first += 2
    for number, fd in enumerate(opened):
        os.dup2(fd, first + number)
        os.close(fd)
    try:
        yield first, first + 1
    finally:
        os.close(first)
        os.close(first + 1)


def lines_of(place: Path) -> list[str]:
    """The lines after a restart, without seals."""
    with descriptors(place) as fds:
        data = HiddenLogFile(*fds).read().decode()
    return [line for line in data.splitlines() if not line.startswith('{"seal"')]


def test_appended_and_replaced_lines_are_there_after_a_restart(tmp_path: Path) -> None:
    with descriptors(tmp_path) as fds:
        log = HiddenLogFile(*fds)
        log.append(b"1\n", sync=True)
        log.replace(b"2\n3\n")
        log.append(b"4\n", sync=False)
        log.create_reserve()
        assert log.read().endswith(b"4\n")
    assert lines_of(tmp_path) == ["2", "3", "4"]
    with descriptors(tmp_path) as fds:
        log = HiddenLogFile(*fds)
        log.replace(b"5")
        log.append(b"6\n", sync=True)
    assert lines_of(tmp_path) == ["5", "6"]


@pytest.mark.promise("P7")
def test_a_replace_that_is_cut_at_any_byte_has_not_happened(tmp_path: Path) -> None:
    with descriptors(tmp_path) as fds:
        log = HiddenLogFile(*fds)
        log.replace(b"old\n")
        log.append(b"later\n", sync=True)
        before = {name: (tmp_path / name).read_bytes() for name in ("a", "b")}
        log.replace(b"new\n")
    [target] = [name for name in ("a", "b") if b"new" in (tmp_path / name).read_bytes()]
    written = (tmp_path / target).read_bytes()
    for cut in range(len(written) + 1):
        for name, content in before.items():
            (tmp_path / name).write_bytes(content)
        (tmp_path / target).write_bytes(written[:cut])
        # A seal without its line end is still valid.
        expected = ["new"] if cut >= len(written) - 1 else ["old", "later"]
        assert lines_of(tmp_path) == expected, cut


def test_a_line_with_the_text_of_a_seal_is_no_seal(tmp_path: Path) -> None:
    with descriptors(tmp_path) as fds:
        log = HiddenLogFile(*fds)
        log.replace(b"old\n")
        forged = json.dumps({"key": '\n{"seal":99}\n'}).encode() + b"\n"
        log.append(forged, sync=True)
        log.replace(b"new\n")
    assert lines_of(tmp_path) == ["new"]


def test_the_lines_of_an_older_agent_are_taken_over_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    NamedLogFile(str(run / "once.jsonl")).read()
    (run / "once.jsonl").write_bytes(b"before\n")
    with descriptors(tmp_path) as fds:
        open_log_file(str(run), "once.jsonl", fds[0])
    (run / "once.jsonl").write_bytes(b"forged\n")
    with descriptors(tmp_path) as fds:
        open_log_file(str(run), "once.jsonl", fds[0])
    assert lines_of(tmp_path) == ["before"]


@pytest.mark.promise("P7")
def test_the_lines_of_an_older_agent_are_not_forgotten_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_log: HiddenLogFile, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "full")

    NamedLogFile(str(tmp_path / "once.jsonl")).append(b"1\n", sync=True)
    with descriptors(tmp_path) as fds:
        with monkeypatch.context() as patch:
            patch.setattr(HiddenLogFile, "replace", fail)
            assert open_log_file(str(tmp_path), "once.jsonl", fds[0]).read() == b"1\n"
        later = open_log_file(str(tmp_path), "once.jsonl", fds[0])
        assert isinstance(later, HiddenLogFile)
        assert later.read().startswith(b"1\n")


def test_commands_do_not_inherit_the_descriptors(tmp_path: Path) -> None:
    with descriptors(tmp_path) as fds:
        open_log_file(str(tmp_path), "once.jsonl", fds[0])
        assert not any(os.get_inheritable(fd) for fd in fds)


@pytest.mark.parametrize("flags", [os.O_RDWR | os.O_CREAT, os.O_RDONLY | os.O_CREAT])
def test_other_descriptors_are_not_used(tmp_path: Path, flags: int) -> None:
    """An older supervisor passes none, and the numbers may mean something else."""
    with descriptors(tmp_path, flags) as fds:
        assert isinstance(open_log_file(str(tmp_path), "once.jsonl", fds[0]), NamedLogFile)
    assert isinstance(open_log_file(str(tmp_path), "once.jsonl", 900), NamedLogFile)


async def test_the_reserve_lets_a_line_be_written_to_a_full_disk(tmp_path: Path) -> None:
    class FullDisk(HiddenLogFile):
        """Full while the reserve exists."""

        def append(self, data: bytes, *, sync: bool) -> None:
            if (tmp_path / "b").stat().st_size:
                raise OSError(28, "No space left on device")
            super().append(data, sync=sync)

    with descriptors(tmp_path) as fds:
        log = JsonLog(FullDisk(*fds))
        log.load()
        assert (tmp_path / "b").stat().st_size
        await log.append({"key": "k"}, sync=True)
        log.close()
    assert lines_of(tmp_path)[-1] == '{"key":"k"}'


@pytest.mark.promise("P7")
async def test_a_journal_behind_descriptors_repeats_no_effect(tmp_path: Path) -> None:
    runs: list[int] = []

    async def effect() -> dict[str, object]:
        runs.append(1)
        return {"n": len(runs)}

    for first in (0, 33):  # then after a restart
        with descriptors(tmp_path) as fds:
            file = open_log_file(str(tmp_path / "run"), "once.jsonl", fds[0])
            journal = IdempotencyJournal(file, max_keys=8)
            for number in range(first, 40):
                assert await journal.run_once(f"k{number}", "test", effect) == {"n": number + 1}
            await journal.close()
    assert len(runs) == 40
