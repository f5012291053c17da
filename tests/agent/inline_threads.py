"""Blocking work without threads."""

from collections.abc import Callable
from typing import TypeVar

from chatd.agent.errors import AgentError

T = TypeVar("T")


class InlineThreads:
    """Runs blocking work at once; fails while `is_broken`."""

    def __init__(self) -> None:
        self.is_broken = False

    async def run(self, work: Callable[[], T]) -> T:
        if self.is_broken:
            raise AgentError(504, "the disk does not answer")
        return work()
