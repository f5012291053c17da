"""Watches of the repositories that a chat has touched."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec import Struct, convert

from chatd.agent.git import git_repositories
from chatd.agent.git.git_command import GitCommand
from chatd.agent.git.git_repositories import (
    MIN_RESCAN_INTERVAL_S,
    RESCAN_INTERVAL_S,
    GitWatch,
    TouchedPaths,
)
from tests.agent.git.git_fixture import HOME, run_git
from tests.agent.inline_threads import InlineThreads
from tests.support.clock import FakeClock

TIMEOUT_S = 30


@pytest.mark.covers("files-10")
def test_paths_are_stored_for_a_chat_and_its_ancestors() -> None:
    store = TouchedPaths()
    store.add(["child", "parent", "child"], ["/b", "/a//x/../c", "/b", "relative", ""])
    assert store.paths("child") == store.paths("parent") == ("/a/c", "/b")
    assert store.paths("sibling") == ()
    store.add([], ["/z"])
    store.add(["nothing"], [])
    assert store.paths("nothing") == ()


def test_the_oldest_paths_and_chats_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_repositories, "MAX_PATHS_PER_CHAT", 2)
    monkeypatch.setattr(git_repositories, "MAX_TOUCHING_CHATS", 2)
    store = TouchedPaths()
    store.add(["a"], ["/1", "/2"])
    store.add(["a"], ["/1", "/3"])
    assert store.paths("a") == ("/1", "/3")
    store.add(["b"], ["/1"])
    store.add(["a"], ["/1"])
    store.add(["c"], ["/1"])
    assert (store.paths("b"), bool(store.paths("a"))) == ((), True)


async def test_subscribers_are_notified_until_they_leave() -> None:
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
        """Name, whether it was removed, and the added lines of each repository in the message."""
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


def _short(sent: SentRepository) -> tuple[str, bool, str]:
    lines = sent.unified_diff.split("\n")
    added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    return os.path.basename(sent.repo_root), sent.removed, " ".join(added)


@pytest.fixture
async def fixture(tmp_path: Path) -> AsyncGenerator[WatchFixture]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run_git(tmp_path / name, "init", "-q")
    store = TouchedPaths()
    with store.subscribe("chat") as touched:
        yield WatchFixture(tmp_path, touched, store)


async def test_a_watch_sends_all_repositories_then_the_changed_ones(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    fixture.touch("two/f", "b\n")
    assert await fixture.next() == [("one", False, "a"), ("two", False, "b")]
    fixture.touch("two/f", "c\n")
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("two", False, "c")]


async def test_two_scans_are_at_least_a_second_apart(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    fixture.clock.advance(0.25)
    fixture.touch("one/f", "b\n")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fixture.next())
        assert await fixture.clock.advance_past("git rescan") == MIN_RESCAN_INTERVAL_S - 0.25
    assert waiting.result() == [("one", False, "b")]


async def test_a_watch_rescans_at_the_interval_and_on_request(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fixture.next())
        assert await fixture.clock.advance_past("git poll") == RESCAN_INTERVAL_S
        await fixture.clock.wait_for_sleeper("git poll")  # no change, so no message
        (fixture.root / "one/f").write_text("b\n")
        await fixture.clock.advance_past("git poll")
    assert waiting.result() == [("one", False, "b")]
    (fixture.root / "one/f").write_text("c\n")
    fixture.store.notify(["chat"])
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("one", False, "c")]


async def test_a_touch_ends_the_wait_for_the_interval(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fixture.next())
        await fixture.clock.wait_for_sleeper("git poll")
        fixture.touch("two/f", "b\n")
        await fixture.clock.advance_past("git rescan")
    assert waiting.result() == [("two", False, "b")]


async def test_a_removed_repository_is_sent_once(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    shutil.rmtree(fixture.root / "one")
    fixture.touch("two/f", "b\n")
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("one", True, ""), ("two", False, "b")]
    fixture.touch("two/f", "c\n")
    fixture.clock.advance(MIN_RESCAN_INTERVAL_S)
    assert await fixture.next() == [("two", False, "c")]


async def test_a_failing_git_does_not_remove_a_repository(
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


async def test_a_cancelled_watch_leaves_no_sleeper(fixture: WatchFixture) -> None:
    fixture.touch("one/f", "a\n")
    await fixture.next()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fixture.next())
        await fixture.clock.wait_for_sleeper("git poll")
        waiting.cancel()
    assert waiting.cancelled()
    assert fixture.clock.sleeping("git poll") == []
