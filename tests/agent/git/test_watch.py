"""Telling a listener what has changed in the repositories of a chat."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import Struct, convert

from chatd.agent.git import touched_paths
from chatd.agent.git.command import GitCommand
from chatd.agent.git.repositories import MIN_RESCAN_INTERVAL_S, RESCAN_INTERVAL_S, GitWatch
from chatd.agent.git.touched_paths import TouchedPaths
from tests.agent.git.git_fixture import HOME, run_git
from tests.support.clock import FakeClock

T = TypeVar("T")
TIMEOUT_S = 30


@pytest.mark.covers("files-10")
def test_paths_are_kept_for_a_chat_and_those_above_it() -> None:
    store = TouchedPaths()
    store.add(["child", "parent", "child"], ["/b", "/a//x/../c", "/b", "relative", ""])
    assert store.paths("child") == store.paths("parent") == ("/a/c", "/b")
    assert store.paths("sibling") == ()
    store.add([], ["/z"])
    store.add(["nothing"], [])
    assert store.paths("nothing") == ()


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched_paths, "MAX_PATHS_PER_CHAT", 2)
    monkeypatch.setattr(touched_paths, "MAX_TOUCHING_CHATS", 2)
    store = TouchedPaths()
    store.add(["a"], ["/1", "/2"])
    store.add(["a"], ["/1", "/3"])
    assert store.paths("a") == ("/1", "/3")
    store.add(["b"], ["/1"])
    store.add(["a"], ["/1"])
    store.add(["c"], ["/1"])
    assert (store.paths("b"), bool(store.paths("a"))) == ((), True)


async def test_whoever_watches_is_woken_and_may_leave() -> None:
    store = TouchedPaths()
    with (
        store.subscribe("a") as first,
        store.subscribe("a") as second,
        store.subscribe("b") as other,
    ):
        store.add(["a"], ["/x"])
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
        store.notify(["b"])
        assert other.is_set()
    first.clear()
    store.notify(["a"])
    assert not first.is_set()


class InlineThreads:
    async def run(self, work: Callable[[], T]) -> T:
        return work()


class WatchFixture:
    def __init__(self, root: Path, touched: asyncio.Event, store: TouchedPaths) -> None:
        self.root = root
        self.store = store
        self.clock = FakeClock()
        self.git = GitCommand(base={"PATH": os.defpath, "HOME": HOME}, timeout_s=30)
        self.watch = GitWatch(
            store,
            "chat",
            touched,
            git=self.git,
            threads=InlineThreads(),
            clock=self.clock,
            now=lambda: "now",
        )

    def touch(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text)
        self.store.add(["chat"], [str(self.root / name)])

    async def next(self) -> list[tuple[str, bool, str]]:
        """Name, whether it was removed, and the added lines, of each repository told of."""
        async with asyncio.timeout(TIMEOUT_S):
            message = await self.watch.changes()
        assert (message["type"], message["scanned_at"]) == ("changes", "now")
        return [_short(each) for each in convert(message["repositories"], list[SentRepository])]


class SentRepository(Struct):
    repo_root: str
    branch: str
    remote_origin: str
    unified_diff: str
    removed: bool = False


def _short(told: SentRepository) -> tuple[str, bool, str]:
    lines = told.unified_diff.split("\n")
    added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    return os.path.basename(told.repo_root), told.removed, " ".join(added)


@pytest.fixture
async def fixture(tmp_path: Path) -> AsyncGenerator[WatchFixture]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run_git(tmp_path / name, "init", "-q")
    store = TouchedPaths()
    with store.subscribe("chat") as touched:
        yield WatchFixture(tmp_path, touched, store)


async def test_first_everything_then_what_differs(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    fixture.touch("two/f", "b\n")
    assert await fixture.next() == [("one", False, "a"), ("two", False, "b")]
    fixture.touch("two/f", "c\n")
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("two", False, "c")]


async def test_two_looks_are_at_least_a_second_apart(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    fixture.clock.advance(0.25)
    fixture.touch("one/f", "b\n")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fixture.next())
        assert await fixture.clock.pass_over("git rescan") == MIN_RESCAN_INTERVAL_S - 0.25
    assert waiting.result() == [("one", False, "b")]


async def test_without_a_touch_it_looks_every_few_seconds_and_when_asked(
    fixture: WatchFixture,
) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fixture.next())
        assert await fixture.clock.pass_over("git poll") == RESCAN_INTERVAL_S
        await fixture.clock.asleep_on("git poll")  # nothing new: nothing said
        (fixture.root / "one/f").write_text("b\n")
        await fixture.clock.pass_over("git poll")
    assert waiting.result() == [("one", False, "b")]
    (fixture.root / "one/f").write_text("c\n")
    fixture.store.notify(["chat"])
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("one", False, "c")]


async def test_a_touch_ends_the_wait_for_the_poll(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fixture.next())
        await fixture.clock.asleep_on("git poll")
        fixture.touch("two/f", "b\n")
        await fixture.clock.pass_over("git rescan")
    assert waiting.result() == [("two", False, "b")]


async def test_a_repository_that_is_gone_is_told_once(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    shutil.rmtree(fixture.root / "one")
    fixture.touch("two/f", "b\n")
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("one", True, ""), ("two", False, "b")]
    fixture.touch("two/f", "c\n")
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("two", False, "c")]


async def test_a_git_that_fails_for_a_while_removes_nothing(
    fixture: WatchFixture, tmp_path: Path
) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    (fixture.root / "one/.git/HEAD").rename(tmp_path / "HEAD")
    fixture.touch("two/f", "b\n")
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("two", False, "b")]
    (tmp_path / "HEAD").rename(fixture.root / "one/.git/HEAD")
    fixture.touch("one/f", "c\n")
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("one", False, "c")]


async def test_a_watch_that_is_given_up_leaves_nothing_behind(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fixture.next())
        await fixture.clock.asleep_on("git poll")
        waiting.cancel()
    assert waiting.cancelled()
    assert fixture.clock.sleeping("git poll") == []
