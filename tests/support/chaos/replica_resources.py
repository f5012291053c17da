"""What a process still holds: reported by itself, and seen from outside."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

from msgspec import Struct

from chatd.app.replica import Replica
from tests.support.processes import ROOT

PAUSE: Final = "SystemClock.sleep"


class ReplicaResources(Struct, frozen=True, kw_only=True):
    """`tasks` by coroutine, `watched` chats with viewers, `left` tools that ignored
    cancellation, `episode_bytes` of live parts in memory."""

    tasks: dict[str, int]
    running: int
    watched: int
    left: int
    episode_bytes: int

    def is_no_more_than(self, before: "ReplicaResources", *, no_episodes: bool = True) -> bool:
        """Whether no chat runs and no task was added since; `no_episodes`: and no live parts,
        which are retained for a while on purpose. A pause between two polls does not count."""
        idle = (self.running, self.watched, self.left) == (0, 0, 0)
        more = {
            what
            for what, count in self.tasks.items()
            if what != PAUSE and count > before.tasks.get(what, 0)
        }
        return idle and not more and (self.episode_bytes == 0 or not no_episodes)


def measure_resources(replica: Replica) -> ReplicaResources:
    running = Counter(_task_name(task) for task in asyncio.all_tasks() if not _is_test_task(task))
    return ReplicaResources(
        tasks=dict(sorted(running.items())),
        running=replica.worker.running,
        watched=replica.feeds.watched,
        left=len(replica.task_reaper),
        episode_bytes=replica.episodes.total,
    )


def _is_test_task(task: asyncio.Task[object]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and str(ROOT / "tests") in code.co_filename


def _task_name(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", task.get_name())


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
