"""One read for all who want the same thing at once.

What was read before somebody came may be too old for them. So whoever comes while a read is under
way shares the next one, and a crowd costs two. Owns who reads: the first in line does, in their
own time; if they give up, the next one does. There is no task that could be left behind, and no
read of another that is waited for long: its session may be dead.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from chatd.domain.errors import ChatdError

T = TypeVar("T")

PATIENCE_S: Final = 2.0


class Stuck(Exception):
    """Somebody else's read does not end."""


class Shared(Generic[T]):
    """`wanted` is how many are waiting for it."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._begun = 0
        self._ended = 0  # the number of the read that this is the outcome of
        self._outcome: T | ChatdError | None = None
        self.wanted = 0

    async def get(self, patience_s: float) -> T:
        """By a read that begins later than now. One that fails has failed for all. Raises Stuck if
        it is nobody's turn for so long."""
        came = self._begun
        self.wanted += 1
        try:
            await self._my_turn(patience_s)
            try:
                outcome = await self._after(came)
            finally:
                self._turn.release()
        finally:
            self.wanted -= 1
        if isinstance(outcome, ChatdError):
            raise outcome
        return outcome

    async def _my_turn(self, patience_s: float) -> None:
        try:
            async with asyncio.timeout(patience_s):
                await self._turn.acquire()
        except TimeoutError:
            raise Stuck from None

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


class SharedByVersion(Generic[T]):
    """For those who want the same from different versions on. Keeps nothing that nobody wants."""

    def __init__(
        self, read: Callable[[int], Awaitable[T]], *, patience_s: float = PATIENCE_S
    ) -> None:
        self._read = read
        self._patience_s = patience_s
        self._wanted: dict[int, Shared[T]] = {}

    async def get(self, version: int) -> T:
        patience_s = self._patience_s
        while True:
            shared = self._wanted.get(version)
            if shared is None:
                shared = self._wanted[version] = Shared(lambda: self._read(version))
            try:
                return await shared.get(patience_s)
            except Stuck:
                # All who give up share the next one. If that is slow too, it is not the session.
                self._forget(version, shared)
                patience_s *= 2
            finally:
                if not shared.wanted:
                    self._forget(version, shared)

    def _forget(self, version: int, shared: Shared[T]) -> None:
        if self._wanted.get(version) is shared:
            del self._wanted[version]
