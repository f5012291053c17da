"""One read for all who want the same thing at once.

What was read before somebody came may be too old for them. So whoever comes while a read is under
way shares the next one, and a crowd costs two. Owns who reads: the first in line does, in their
own time; if they give up, the next one does. There is no task that could be left behind, and
nobody waits for long for a read that is not their own: it may be on a session that is dead.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from chatd.domain.errors import ChatdError

T = TypeVar("T")


class Shared(Generic[T]):
    """`wanted` is how many are waiting for it."""

    def __init__(self, read: Callable[[], Awaitable[T]], *, patience_s: float = 2.0) -> None:
        self._read = read
        self._patience_s = patience_s
        self._turn = asyncio.Lock()
        self._begun = 0
        self._ended = 0  # the number of the read that this is the outcome of
        self._outcome: T | ChatdError | None = None
        self.wanted = 0

    async def get(self) -> T:
        """By a read that begins later than now. One that fails has failed for all."""
        came = self._begun
        self.wanted += 1
        try:
            if not await self._is_my_turn():
                return await self._read()
            try:
                outcome = await self._after(came)
            finally:
                self._turn.release()
        finally:
            self.wanted -= 1
        if isinstance(outcome, ChatdError):
            raise outcome
        return outcome

    async def _is_my_turn(self) -> bool:
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._turn.acquire()
        except TimeoutError:
            return False

    async def _after(self, came: int) -> T | ChatdError:
        if self._outcome is not None and self._ended > came:
            return self._outcome
        self._begun += 1
        self._outcome = None
        try:
            self._outcome = outcome = await self._read()
        except ChatdError as error:
            self._outcome = outcome = error
        self._ended = self._begun
        return outcome
