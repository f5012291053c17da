"""The whole output of a command in a file of the workspace."""

import os
import threading
from pathlib import Path

import pytest

from chatd.agent.processes import process_table
from chatd.agent.processes.process_output import (
    FILED_ABOVE_BYTES,
    MAX_OUTPUT_FILE_BYTES,
    MAX_RESULT_FILES,
    MAX_UNWRITTEN_BYTES,
    OutputFile,
    prune_results,
)
from tests.agent.processes.agent_fixture import AgentFixture, boot_agent
from tests.support.outcomes import present


def content_of(path: Path) -> bytes:
    return path.read_bytes()


async def test_long_output_is_whole_in_a_file_and_short_output_has_none(
    agent: AgentFixture,
) -> None:
    done = await agent.run("yes 0123456789 | head -n 20000; exit 3")
    assert (done["exit_code"], done["truncated"] is not None) == (3, True)
    [path] = (agent.home / ".chatd" / "results").iterdir()
    assert (done["file"], content_of(path)) == (str(path), b"0123456789\n" * 20_000)
    assert "file" not in await agent.run("echo short")


async def test_a_file_that_cannot_be_written_does_not_fail_the_command(agent: AgentFixture) -> None:
    (agent.home / ".chatd").write_text("no directory")
    done = await agent.run("yes 0123456789 | head -n 20000")
    assert (done["exit_code"], "file" in done) == (0, False)


def test_the_file_of_an_output_is_bounded(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path), "feed")
    piece = b"x" * MAX_UNWRITTEN_BYTES
    for _ in range(MAX_OUTPUT_FILE_BYTES // MAX_UNWRITTEN_BYTES + 2):
        file.feed(piece)
        if file.is_due:
            file.write(file.take())
    path = Path(present(file.path))
    assert path.stat().st_size == MAX_OUTPUT_FILE_BYTES


def test_a_disk_that_is_slower_than_the_command_costs_the_file_only(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path), "feed")
    file.feed(b"x" * (MAX_UNWRITTEN_BYTES + 1))
    assert (file.is_due, file.path, file.take()) == (False, None, b"")


def test_a_file_that_was_removed_meanwhile_is_not_called_whole(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path), "feed")
    file.feed(b"x" * 10_000)
    file.write(file.take())
    Path(present(file.path)).unlink()
    file.feed(b"the rest")
    file.write(file.take())
    assert file.path is None
    assert os.listdir(tmp_path / ".chatd" / "results") == []


def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path), "feed")
    file.feed(b"x" * 10_000)
    file.write(file.take())
    path = Path(present(file.path))
    path.unlink()
    os.mkfifo(path)
    file.feed(b"the rest")
    file.write(file.take())
    assert file.path is None


def test_the_oldest_results_of_a_workspace_are_removed(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(b"x" * 10)
        os.utime(path, (number, number))
    prune_results(str(tmp_path), max_files=4, max_bytes=1000)
    assert sorted(os.listdir(tmp_path)) == ["2.txt", "3.txt", "4.txt", "5.txt"]
    prune_results(str(tmp_path), max_files=4, max_bytes=25)
    assert sorted(os.listdir(tmp_path)) == ["4.txt", "5.txt"]


async def test_a_workspace_keeps_a_bounded_number_of_results(agent: AgentFixture) -> None:
    results = agent.home / ".chatd" / "results"
    results.mkdir(parents=True)
    for number in range(MAX_RESULT_FILES + 5):
        (results / f"old-{number}.txt").write_text("old")
    await agent.run("yes 0123456789 | head -n 2000")
    assert len(os.listdir(results)) == MAX_RESULT_FILES


async def test_commands_start_and_end_while_no_output_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()

    def hang(*_: object) -> None:
        disk.wait()

    monkeypatch.setattr(OutputFile, "write", hang)
    monkeypatch.setattr(process_table, "FILE_WAIT_S", 0.01)
    async with boot_agent(tmp_path) as agent:
        try:
            long = f"head -c {2 * FILED_ABOVE_BYTES} /dev/zero"
            for _ in range(6):
                assert (await agent.run(long))["exit_code"] == 0
            assert (await agent.run("echo done"))["output"] == "done\n"
        finally:
            disk.set()
