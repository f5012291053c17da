"""Threads for blocking calls, all of them there from the start.

A pool that makes its threads when they are needed cannot make them when a command has used up
the workspace's processes; and what it was asked to do then is refused, yet stays in its queue and
happens later.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

_START_S = 30.0


def start_pool(workers: int, name: str) -> ThreadPoolExecutor:
    """Raises RuntimeError if so many threads cannot be had."""
    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)
    # Each stays until all have come, so that none does the work of another.
    all_there = threading.Barrier(workers + 1)
    for _ in range(workers):
        pool.submit(all_there.wait, _START_S)
    all_there.wait(_START_S)
    return pool
