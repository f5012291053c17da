"""Telling a listener what has changed in the repositories of a chat."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import Struct, convert

from chatd.agent import git_paths
from chatd.agent.git import POLL_S, RESCAN_S, GitWatch
from chatd.agent.git_paths import PathStore
from chatd.agent.git_run import Git
from tests.agent.git_rig import HOME, run
from tests.support.clock import FakeClock

T = TypeVar("T")
ENOUGH_S = 30


@pytest.mark.covers("files-10")
def test_paths_are_kept_for_a_chat_and_those_above_it() -> None:
    store = PathStore()
    store.add(["child", "parent", "child"], ["/b", "/a//x/../c", "/b", "relative", ""])
    assert store.paths("child") == store.paths("parent") == ("/a/c", "/b")
    assert store.paths("sibling") == ()
    store.add([], ["/z"])
    store.add(["nothing"], [])
    assert store.paths("nothing") == ()


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_paths, "MAX_PATHS", 2)
    monkeypatch.setattr(git_paths, "MAX_CHATS", 2)
    store = PathStore()
    store.add(["a"], ["/1", "/2"])
    store.add(["a"], ["/1", "/3"])
    assert store.paths("a") == ("/1", "/3")
    store.add(["b"], ["/1"])
    store.add(["a"], ["/1"])
    store.add(["c"], ["/1"])
    assert (store.paths("b"), bool(store.paths("a"))) == ((), True)


async def test_whoever_watches_is_woken_and_may_leave() -> None:
    store = PathStore()
    with store.watching("a") as first, store.watching("a") as second, store.watching("b") as other:
        store.add(["a"], ["/x"])
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
        store.notify(["b"])
        assert other.is_set()
    first.clear()
    store.notify(["a"])
    assert not first.is_set()


class Here:
    async def run(self, work: Callable[[], T]) -> T:
        return work()


class Bench:
    def __init__(self, root: Path, touched: asyncio.Event, store: PathStore) -> None:
        self.root = root
        self.store = store
        self.clock = FakeClock()
        self.git = Git(base={"PATH": os.defpath, "HOME": HOME}, timeout_s=30)
        self.watch = GitWatch(
            store,
            "chat",
            touched,
            git=self.git,
            threads=Here(),
            clock=self.clock,
            now=lambda: "now",
        )

    def touch(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text)
        self.store.add(["chat"], [str(self.root / name)])

    async def next(self) -> list[tuple[str, bool, str]]:
        """Name, whether it was removed, and the added lines, of each repository told of."""
        async with asyncio.timeout(ENOUGH_S):
            message = await self.watch.changes()
        assert (message["type"], message["scanned_at"]) == ("changes", "now")
        return [_short(each) for each in convert(message["repositories"], list[Told])]


class Told(Struct):
    repo_root: str
    branch: str
    remote_origin: str
    unified_diff: str
    removed: bool = False


def _short(told: Told) -> tuple[str, bool, str]:
    lines = told.unified_diff.split("\n")
    added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    return os.path.basename(told.repo_root), told.removed, " ".join(added)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run(tmp_path / name, "init", "-q")
    store = PathStore()
    with store.watching("chat") as touched:
        yield Bench(tmp_path, touched, store)


async def test_first_everything_then_what_differs(bench: Bench) -> None:
    bench.touch("one/f", "a\n")
    bench.touch("two/f", "b\n")
    assert await bench.next() == [("one", False, "a"), ("two", False, "b")]
    bench.touch("two/f", "c\n")
    bench.clock.advance(RESCAN_S)
    assert await bench.next() == [("two", False, "c")]


async def test_two_looks_are_at_least_a_second_apart(bench: Bench) -> None:
    bench.touch("one/f", "a\n")
    await bench.next()
    bench.clock.advance(0.25)
    bench.touch("one/f", "b\n")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(bench.next())
        assert await bench.clock.pass_over("git rescan") == RESCAN_S - 0.25
    assert waiting.result() == [("one", False, "b")]


async def test_without_a_touch_it_looks_every_few_seconds_and_when_asked(bench: Bench) -> None:
    bench.touch("one/f", "a\n")
    await bench.next()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(bench.next())
        assert await bench.clock.pass_over("git poll") == POLL_S
        await bench.clock.asleep_on("git poll")  # nothing new: nothing said
        (bench.root / "one/f").write_text("b\n")
        await bench.clock.pass_over("git poll")
    assert waiting.result() == [("one", False, "b")]
    (bench.root / "one/f").write_text("c\n")
    bench.watch.refresh()
    bench.clock.advance(RESCAN_S)
    assert await bench.next() == [("one", False, "c")]


async def test_a_touch_ends_the_wait_for_the_poll(bench: Bench) -> None:
    bench.touch("one/f", "a\n")
    await bench.next()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(bench.next())
        await bench.clock.asleep_on("git poll")
        bench.touch("two/f", "b\n")
        await bench.clock.pass_over("git rescan")
    assert waiting.result() == [("two", False, "b")]


async def test_a_repository_that_is_gone_is_told_once(bench: Bench) -> None:
    bench.touch("one/f", "a\n")
    await bench.next()
    shutil.rmtree(bench.root / "one")
    bench.touch("two/f", "b\n")
    bench.clock.advance(RESCAN_S)
    assert await bench.next() == [("one", True, ""), ("two", False, "b")]
    bench.touch("two/f", "c\n")
    bench.clock.advance(RESCAN_S)
    assert await bench.next() == [("two", False, "c")]


async def test_a_git_that_fails_for_a_while_removes_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.touch("one/f", "a\n")
    await bench.next()
    (bench.root / "one/.git/HEAD").rename(tmp_path / "HEAD")
    bench.touch("two/f", "b\n")
    bench.clock.advance(RESCAN_S)
    assert await bench.next() == [("two", False, "b")]
    (tmp_path / "HEAD").rename(bench.root / "one/.git/HEAD")
    bench.touch("one/f", "c\n")
    bench.clock.advance(RESCAN_S)
    assert await bench.next() == [("one", False, "c")]


async def test_a_watch_that_is_given_up_leaves_nothing_behind(bench: Bench) -> None:
    bench.touch("one/f", "a\n")
    await bench.next()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(bench.next())
        await bench.clock.asleep_on("git poll")
        waiting.cancel()
    assert waiting.cancelled()
    assert bench.clock.sleeping("git poll") == []
