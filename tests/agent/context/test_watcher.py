"""Noticing that a workspace's context has changed. Time passes only when the tests say so."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from chatd.agent.context.sources import ContextSources
from chatd.agent.context.watcher import CONTEXT_POLL_S, DEBOUNCE_S, MAX_DEBOUNCES, ContextWatcher
from chatd.agent.errors import AgentError
from tests.support.clock import FakeClock

T = TypeVar("T")
TIMEOUT_S = 20


class InlineThreads:
    """Blocking work is done here and now, and can be made to fail."""

    def __init__(self) -> None:
        self.broken = False

    async def run(self, work: Callable[[], T]) -> T:
        if self.broken:
            raise AgentError(504, "the disk does not answer")
        return work()


class WatcherFixture:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.threads = InlineThreads()
        self.now_ms = 5000
        self.watcher = ContextWatcher(
            ContextSources(home=str(directory / "home"), directory=str(directory)),
            threads=self.threads,
            clock=self.clock,
            now_ms=lambda: self.now_ms,
        )

    def write(self, text: str) -> None:
        (self.directory / "AGENTS.md").write_text(text)

    async def poll(self) -> None:
        assert await self.clock.pass_over("context poll") == CONTEXT_POLL_S

    async def debounce(self) -> None:
        assert await self.clock.pass_over("context debounce") == DEBOUNCE_S

    async def texts(self) -> list[str]:
        await self.clock.asleep_on("context poll")
        return [each.content for each in (await self.watcher.wait(0, 0)).resources]


@pytest.fixture
async def fixture(tmp_path: Path) -> AsyncGenerator[WatcherFixture]:
    """Watches a directory in which there is one file."""
    fixture = WatcherFixture(tmp_path)
    fixture.write("one")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(fixture.watcher.run())
        yield fixture
        running.cancel()


async def test_there_is_nothing_before_the_first_look(tmp_path: Path) -> None:
    watcher = WatcherFixture(tmp_path).watcher
    with pytest.raises(AgentError) as refused:
        await watcher.wait(0, 0)
    assert (refused.value.status, refused.value.code) == (503, "context_not_ready")
    with pytest.raises(AgentError):
        await watcher.wait(0, 0.01)


async def test_the_first_snapshot_comes_at_once_and_wakes_who_waits(
    fixture: WatcherFixture,
) -> None:
    context = await fixture.watcher.wait(0, TIMEOUT_S)
    assert context.version == 5000
    assert [each.content for each in context.resources] == ["one"]


async def test_a_change_is_a_newer_version_once_it_has_settled(fixture: WatcherFixture) -> None:
    first = await fixture.watcher.wait(0, TIMEOUT_S)
    async with asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(fixture.watcher.wait(first.version, TIMEOUT_S)) for _ in range(3)
        ]
        await fixture.clock.asleep_on("context poll")
        fixture.write("t")
        await fixture.poll()
        await fixture.clock.asleep_on("context debounce")
        fixture.write("tw")
        await fixture.debounce()
        await fixture.clock.asleep_on("context debounce")
        assert not any(each.done() for each in waiting)
        fixture.write("two")
        await fixture.debounce()
        await fixture.debounce()
    for each in waiting:
        assert each.result().version == first.version + 1
        assert [resource.content for resource in each.result().resources] == ["two"]


async def test_somebody_who_writes_without_end_does_not_keep_the_news_back(
    fixture: WatcherFixture,
) -> None:
    assert await fixture.texts() == ["one"]
    fixture.write("x")
    await fixture.poll()
    for number in range(MAX_DEBOUNCES):
        await fixture.clock.asleep_on("context debounce")
        fixture.write("x" * (number + 2))
        await fixture.debounce()
    assert await fixture.texts() == ["x" * (MAX_DEBOUNCES + 1)]


async def test_a_look_that_finds_nothing_new_makes_no_version(fixture: WatcherFixture) -> None:
    first = await fixture.watcher.wait(0, TIMEOUT_S)
    await fixture.poll()
    assert await fixture.texts() == ["one"]
    fixture.write("one")  # another time, the same content
    await fixture.poll()
    await fixture.debounce()
    assert await fixture.texts() == ["one"]
    assert (await fixture.watcher.wait(first.version, 0)).version == first.version


async def test_who_waits_in_vain_gets_what_there_is(fixture: WatcherFixture) -> None:
    first = await fixture.watcher.wait(0, TIMEOUT_S)
    assert await fixture.watcher.wait(first.version, 0.01) == first


async def test_versions_follow_the_clock_and_never_go_back(fixture: WatcherFixture) -> None:
    await fixture.watcher.wait(0, TIMEOUT_S)
    versions: list[int] = []
    for text, now_ms in (("a", 9000), ("b", 100)):
        fixture.now_ms = now_ms
        await fixture.clock.asleep_on("context poll")
        fixture.write(text)
        await fixture.poll()
        await fixture.debounce()
        assert await fixture.texts() == [text]
        versions.append((await fixture.watcher.wait(0, 0)).version)
    assert versions == [9000, 9001]


async def test_a_disk_that_fails_for_a_while_leaves_the_last_snapshot(
    fixture: WatcherFixture,
) -> None:
    assert await fixture.texts() == ["one"]
    fixture.threads.broken = True
    await fixture.poll()
    assert await fixture.texts() == ["one"]
    fixture.write("two")
    fixture.threads.broken = False
    await fixture.poll()
    await fixture.debounce()
    assert await fixture.texts() == ["two"]
