"""Snapshots of a changing context, on a fake clock."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from chatd.agent.context.context_sources import ContextSources
from chatd.agent.context.context_watcher import (
    CONTEXT_POLL_S,
    DEBOUNCE_S,
    MAX_DEBOUNCES,
    ContextWatcher,
)
from chatd.agent.errors import AgentError
from tests.agent.inline_threads import InlineThreads
from tests.support.clock import FakeClock
from tests.support.outcomes import raised

TIMEOUT_S = 20


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
        assert await self.clock.advance_past("context poll") == CONTEXT_POLL_S

    async def debounce(self) -> None:
        assert await self.clock.advance_past("context debounce") == DEBOUNCE_S

    async def texts(self) -> list[str]:
        await self.clock.wait_for_sleeper("context poll")
        return [each.content for each in (await self.watcher.wait(0, 0)).resources]


@pytest.fixture
async def fixture(tmp_path: Path) -> AsyncGenerator[WatcherFixture]:
    """A watcher of a directory with one file."""
    fixture = WatcherFixture(tmp_path)
    fixture.write("one")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(fixture.watcher.run())
        yield fixture
        running.cancel()


async def test_no_snapshot_exists_before_the_first_poll(tmp_path: Path) -> None:
    watcher = WatcherFixture(tmp_path).watcher
    refused = await raised(AgentError, watcher.wait(0, 0))
    assert (refused.status, refused.code) == (503, "context_not_ready")
    with pytest.raises(AgentError):
        await watcher.wait(0, 0.01)


async def test_the_first_snapshot_wakes_a_waiting_caller(fixture: WatcherFixture) -> None:
    context = await fixture.watcher.wait(0, TIMEOUT_S)
    assert context.version == 5000
    assert [each.content for each in context.resources] == ["one"]


async def test_a_refresh_reads_a_change_before_the_next_poll(fixture: WatcherFixture) -> None:
    assert await fixture.texts() == ["one"]
    fixture.write("longer")
    assert await fixture.texts() == ["one"]
    await fixture.watcher.refresh()
    assert await fixture.texts() == ["longer"]


async def test_a_change_makes_a_newer_version_after_the_debounce(fixture: WatcherFixture) -> None:
    first = await fixture.watcher.wait(0, TIMEOUT_S)
    async with asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(fixture.watcher.wait(first.version, TIMEOUT_S)) for _ in range(3)
        ]
        await fixture.clock.wait_for_sleeper("context poll")
        fixture.write("t")
        await fixture.poll()
        await fixture.clock.wait_for_sleeper("context debounce")
        fixture.write("tw")
        await fixture.debounce()
        await fixture.clock.wait_for_sleeper("context debounce")
        assert not any(each.done() for each in waiting)
        fixture.write("two")
        await fixture.debounce()
        await fixture.debounce()
    for each in waiting:
        assert each.result().version == first.version + 1
        assert [resource.content for resource in each.result().resources] == ["two"]


async def test_endless_writes_do_not_delay_a_snapshot_for_ever(fixture: WatcherFixture) -> None:
    assert await fixture.texts() == ["one"]
    fixture.write("x")
    await fixture.poll()
    for number in range(MAX_DEBOUNCES):
        await fixture.clock.wait_for_sleeper("context debounce")
        fixture.write("x" * (number + 2))
        await fixture.debounce()
    assert await fixture.texts() == ["x" * (MAX_DEBOUNCES + 1)]


async def test_an_unchanged_context_keeps_its_version(fixture: WatcherFixture) -> None:
    first = await fixture.watcher.wait(0, TIMEOUT_S)
    await fixture.poll()
    assert await fixture.texts() == ["one"]
    fixture.write("one")  # another time stamp, the same content
    await fixture.poll()
    await fixture.debounce()
    assert await fixture.texts() == ["one"]
    assert (await fixture.watcher.wait(first.version, 0)).version == first.version


async def test_a_wait_without_a_change_returns_the_current_snapshot(
    fixture: WatcherFixture,
) -> None:
    first = await fixture.watcher.wait(0, TIMEOUT_S)
    assert await fixture.watcher.wait(first.version, 0.01) == first


async def test_versions_follow_the_clock_and_never_decrease(fixture: WatcherFixture) -> None:
    await fixture.watcher.wait(0, TIMEOUT_S)
    versions: list[int] = []
    for text, now_ms in (("a", 9000), ("b", 100)):
        fixture.now_ms = now_ms
        await fixture.clock.wait_for_sleeper("context poll")
        fixture.write(text)
        await fixture.poll()
        await fixture.debounce()
        assert await fixture.texts() == [text]
        versions.append((await fixture.watcher.wait(0, 0)).version)
    assert versions == [9000, 9001]


async def test_the_last_snapshot_stays_while_the_disk_fails(fixture: WatcherFixture) -> None:
    assert await fixture.texts() == ["one"]
    fixture.threads.is_broken = True
    await fixture.poll()
    assert await fixture.texts() == ["one"]
    fixture.write("two")
    fixture.threads.is_broken = False
    await fixture.poll()
    await fixture.debounce()
    assert await fixture.texts() == ["two"]
