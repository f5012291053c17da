"""The end of an agent and the next boot: what is killed, what is known, what is never run twice."""

import asyncio
import os
import select
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.finished import Finished
from tests.agent.command_bench import PATIENCE_S, bench


class Gated(Mapping[str, str]):
    """An environment that takes its time: whoever starts a command with it stands still."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        self._reached.set()
        assert self._opened.wait(PATIENCE_S)
        return iter(())

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, PATIENCE_S)

    def open(self) -> None:
        self._opened.set()


async def test_closing_kills_whole_groups_and_refuses_new_commands(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        stubborn = await desk.start("trap '' TERM; sleep 600 & echo $!; wait; sleep 600")
        child = os.pidfd_open(int(str((await desk.news(stubborn))["output"])))
        await desk.processes.close()
        output = await desk.processes.output(stubborn)
        assert (output["running"], output["exit_code"]) == (False, -1)
        assert await asyncio.to_thread(select.select, [child], [], [], PATIENCE_S) != ([], [], [])
        os.close(child)
        with pytest.raises(AgentError) as refusal:
            await desk.start("true")
        assert refusal.value.status == 503
        await desk.processes.close()


async def test_closing_also_kills_what_commands_have_left_in_the_background(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        output = await desk.run("sleep 600 >/dev/null 2>&1 & echo $!")
        orphan = os.pidfd_open(int(str(output["output"])))
        await desk.processes.close()
        assert await asyncio.to_thread(select.select, [orphan], [], [], PATIENCE_S) != ([], [], [])
        os.close(orphan)


async def test_closing_does_not_wait_for_who_has_left_the_group(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        process_id = await desk.start("setsid sh -c 'echo $$; exec sleep 600' & wait")
        escaped = int(str((await desk.news(process_id))["output"]))
        try:
            await desk.processes.close()
            assert (await desk.processes.output(process_id))["running"] is False
        finally:
            os.kill(escaped, 9)


async def test_a_command_that_was_being_started_does_not_survive_the_close(tmp_path: Path) -> None:
    gated = Gated()
    async with bench(tmp_path, template=gated) as desk, asyncio.TaskGroup() as group:
        starting = group.create_task(refused(desk.start("sleep 600")))
        await gated.reached()
        closing = group.create_task(desk.processes.close())
        gated.open()
        await closing
        assert "killed" in (await starting).message
        assert [process["running"] for process in desk.processes.list()] == [False]


async def test_a_caller_who_leaves_does_not_undo_the_start(tmp_path: Path) -> None:
    gated = Gated()
    async with bench(tmp_path, template=gated) as desk, asyncio.TaskGroup() as group:
        starting = group.create_task(desk.start("echo ready; sleep 600", key="k"))
        await gated.reached()
        starting.cancel()
        gated.open()
        again = await desk.processes.start("echo ready; sleep 600", chat_id="chat", key="k")
        assert again["again"] is True
        assert [process["id"] for process in desk.processes.list("chat")] == [again["id"]]


async def test_a_repeated_key_finds_the_command_that_is_running(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        first = await desk.processes.start("echo x >>runs; sleep 600", chat_id="chat", key="k")
        again = await desk.processes.start("echo x >>runs; sleep 600", chat_id="chat", key="k")
        assert again == {**first, "again": True}
        assert len(desk.processes.list("chat")) == 1


async def test_after_a_restart_the_result_of_a_finished_command_can_be_had(tmp_path: Path) -> None:
    async with bench(tmp_path) as before:
        process_id = await before.start("echo x >>runs; echo said; exit 3", key="k")
        output = await before.end_of(process_id)
    async with bench(tmp_path) as after:
        again = await after.processes.start("echo x >>runs", chat_id="chat", key="k")
        assert again == {"id": process_id, "started": True, "again": True}
        assert await after.processes.output(process_id, chat_id="chat", wait_s=5) == output
        assert after.processes.list("chat") == []
    assert (tmp_path / "runs").read_text() == "x\n"


async def test_a_command_that_ran_when_the_agent_died_is_unknown_and_not_run_again(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as died:
        running = await died.start("echo x >>runs; echo ready; sleep 600", key="k")
        await died.news(running)
        async with bench(tmp_path) as after:
            with pytest.raises(AgentError) as refusal:
                await after.start("echo x >>runs", key="k")
            assert (refusal.value.status, refusal.value.code) == (409, "outcome_unknown")
            with pytest.raises(AgentError) as lost:
                await after.processes.output(running, chat_id="chat")
            assert lost.value.status == 404
    assert (tmp_path / "runs").read_text() == "x\n"


async def test_a_command_that_could_not_start_is_refused_again(tmp_path: Path) -> None:
    for _ in range(2):
        async with bench(tmp_path) as desk:
            with pytest.raises(AgentError) as refusal:
                await desk.processes.start("true", chat_id="chat", key="k", workdir="/missing")
            assert refusal.value.code == "no_such_workdir"


def test_last_words_are_read_with_care(tmp_path: Path) -> None:
    finished = Finished(str(tmp_path), now=lambda: 1000)
    finished.save("feed0001", {"output": "x"})
    assert finished.load("feed0001") == {"output": "x", "saved_at": 1000}
    os.mkfifo(tmp_path / "finished" / "feed0002.json")
    (tmp_path / "finished" / "feed0003.json").write_bytes(b"[1]")
    (tmp_path / "finished" / "feed0004.json").symlink_to(tmp_path / "finished" / "feed0001.json")
    (tmp_path / "finished" / "feed0005.json").write_bytes(b'{"saved_at":"now"}')
    for name in ("feed0002", "feed0003", "feed0004", "feed0005", "feed0006"):
        assert finished.load(name) is None
    assert finished.load("../finished/feed0001") is None


def test_only_so_many_last_words_are_kept_and_for_an_hour(tmp_path: Path) -> None:
    time = [1000.0]
    finished = Finished(str(tmp_path), now=lambda: time[0], max_files=8)
    for number in range(11):
        time[0] += 1
        finished.save(f"{number:08x}", {})
    assert len(os.listdir(tmp_path / "finished")) == 8
    assert finished.load(f"{2:08x}") is None
    assert finished.load(f"{3:08x}") is not None
    time[0] += 7200
    finished.save("feedfeed", {})
    assert os.listdir(tmp_path / "finished") == ["feedfeed.json"]


async def refused(start: object) -> AgentError:
    assert asyncio.iscoroutine(start)
    with pytest.raises(AgentError) as refusal:
        await start
    return refusal.value
