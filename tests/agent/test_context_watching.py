"""Noticing that a workspace's context has changed. Time passes only when the tests say so."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from chatd.agent.context_places import Places
from chatd.agent.errors import AgentError
from chatd.agent.watching import DEBOUNCE_S, MAX_DEBOUNCES, POLL_S, Watcher
from tests.support.clock import FakeClock

T = TypeVar("T")
ENOUGH_S = 20


class Here:
    """Blocking work is done here and now, and can be made to fail."""

    def __init__(self) -> None:
        self.broken = False

    async def run(self, work: Callable[[], T]) -> T:
        if self.broken:
            raise AgentError(504, "the disk does not answer")
        return work()


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.threads = Here()
        self.now_ms = 5000
        self.watcher = Watcher(
            Places(home=str(directory / "home"), directory=str(directory)),
            threads=self.threads,
            clock=self.clock,
            now_ms=lambda: self.now_ms,
        )

    def write(self, text: str) -> None:
        (self.directory / "AGENTS.md").write_text(text)

    async def poll(self) -> None:
        assert await self.clock.pass_over("context poll") == POLL_S

    async def debounce(self) -> None:
        assert await self.clock.pass_over("context debounce") == DEBOUNCE_S

    async def texts(self) -> list[str]:
        await self.clock.asleep_on("context poll")
        return [each.content for each in (await self.watcher.wait(0, 0)).resources]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    """Watches a directory in which there is one file."""
    bench = Bench(tmp_path)
    bench.write("one")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(bench.watcher.run())
        yield bench
        running.cancel()


async def test_there_is_nothing_before_the_first_look(tmp_path: Path) -> None:
    watcher = Bench(tmp_path).watcher
    with pytest.raises(AgentError) as refused:
        await watcher.wait(0, 0)
    assert (refused.value.status, refused.value.code) == (503, "context_not_ready")
    with pytest.raises(AgentError):
        await watcher.wait(0, 0.01)


async def test_the_first_snapshot_comes_at_once_and_wakes_who_waits(bench: Bench) -> None:
    context = await bench.watcher.wait(0, ENOUGH_S)
    assert context.version == 5000
    assert [each.content for each in context.resources] == ["one"]


async def test_a_change_is_a_newer_version_once_it_has_settled(bench: Bench) -> None:
    first = await bench.watcher.wait(0, ENOUGH_S)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(bench.watcher.wait(first.version, ENOUGH_S)) for _ in range(3)]
        await bench.clock.asleep_on("context poll")
        bench.write("t")
        await bench.poll()
        await bench.clock.asleep_on("context debounce")
        bench.write("tw")
        await bench.debounce()
        await bench.clock.asleep_on("context debounce")
        assert not any(each.done() for each in waiting)
        bench.write("two")
        await bench.debounce()
        await bench.debounce()
    for each in waiting:
        assert each.result().version == first.version + 1
        assert [resource.content for resource in each.result().resources] == ["two"]


async def test_somebody_who_writes_without_end_does_not_keep_the_news_back(bench: Bench) -> None:
    assert await bench.texts() == ["one"]
    bench.write("x")
    await bench.poll()
    for number in range(MAX_DEBOUNCES):
        await bench.clock.asleep_on("context debounce")
        bench.write("x" * (number + 2))
        await bench.debounce()
    assert await bench.texts() == ["x" * (MAX_DEBOUNCES + 1)]


async def test_a_look_that_finds_nothing_new_makes_no_version(bench: Bench) -> None:
    first = await bench.watcher.wait(0, ENOUGH_S)
    await bench.poll()
    assert await bench.texts() == ["one"]
    bench.write("one")  # another time, the same content
    await bench.poll()
    await bench.debounce()
    assert await bench.texts() == ["one"]
    assert (await bench.watcher.wait(first.version, 0)).version == first.version


async def test_who_waits_in_vain_gets_what_there_is(bench: Bench) -> None:
    first = await bench.watcher.wait(0, ENOUGH_S)
    assert await bench.watcher.wait(first.version, 0.01) == first


async def test_versions_follow_the_clock_and_never_go_back(bench: Bench) -> None:
    await bench.watcher.wait(0, ENOUGH_S)
    versions: list[int] = []
    for text, now_ms in (("a", 9000), ("b", 100)):
        bench.now_ms = now_ms
        await bench.clock.asleep_on("context poll")
        bench.write(text)
        await bench.poll()
        await bench.debounce()
        assert await bench.texts() == [text]
        versions.append((await bench.watcher.wait(0, 0)).version)
    assert versions == [9000, 9001]


async def test_a_disk_that_fails_for_a_while_leaves_the_last_snapshot(bench: Bench) -> None:
    assert await bench.texts() == ["one"]
    bench.threads.broken = True
    await bench.poll()
    assert await bench.texts() == ["one"]
    bench.write("two")
    bench.threads.broken = False
    await bench.poll()
    await bench.debounce()
    assert await bench.texts() == ["two"]
