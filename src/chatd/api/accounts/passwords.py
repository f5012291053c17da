"""Hashes of passwords, by argon2id.

A hash takes a tenth of a second of one core and 64 MiB on purpose, so it runs in a thread, a few
at once, and a bounded number waits.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Literal, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from chatd.api.errors import RateLimited

T = TypeVar("T")

MAX_HASHES_AT_ONCE: Final = 2
MAX_WAITING_HASHES: Final = 32
"""More sign-ins at once than this, in each lane, are told to come again."""
MAX_WAITING_SLOW_HASHES: Final = 16
PasswordLane = Literal["known", "usual", "slow"]
"""`known`: of users in browsers that they have used before; one hash at once is theirs alone.
`slow`: of addresses with many failures; one at once of the usual ones."""
_NO_PASSWORD: Final = "a text that is no user's password"


class Passwords:
    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        """`hasher` is given by tests, which need no slow one."""
        self._hasher = hasher or PasswordHasher()
        self._slots = asyncio.Semaphore(MAX_HASHES_AT_ONCE)
        self._known_slot = asyncio.Semaphore(1)
        self._slow_slot = asyncio.Semaphore(1)
        self._pending: Counter[PasswordLane] = Counter()
        self._unused_hash: str | None = None

    async def make_hash(self, password: str) -> str:
        return await self._run(partial(self._hasher.hash, password), "known")

    async def is_correct(
        self, password: str, password_hash: str | None, lane: PasswordLane = "usual"
    ) -> bool:
        """Takes as long without a hash, so that the time does not tell whether a user exists."""
        return await self._run(partial(self._verify, password, password_hash), lane)

    def needs_new_hash(self, password_hash: str) -> bool:
        """It was made with other parameters than those of today."""
        return self._hasher.check_needs_rehash(password_hash)

    def _verify(self, password: str, password_hash: str | None) -> bool:
        if self._unused_hash is None:
            self._unused_hash = self._hasher.hash(_NO_PASSWORD)
        try:
            self._hasher.verify(password_hash or self._unused_hash, password)
        except (VerificationError, InvalidHashError):
            return False
        return password_hash is not None

    def is_full(self, lane: PasswordLane) -> bool:
        most = MAX_WAITING_SLOW_HASHES if lane == "slow" else MAX_WAITING_HASHES
        return self._pending[lane] >= most

    async def _run(self, work: Callable[[], T], lane: PasswordLane) -> T:
        if self.is_full(lane):
            raise RateLimited(1.0)
        self._pending[lane] += 1
        try:
            async with AsyncExitStack() as held:
                if lane == "slow":
                    await held.enter_async_context(self._slow_slot)
                slots = self._known_slot if lane == "known" else self._slots
                await held.enter_async_context(slots)
                return await asyncio.to_thread(work)
        finally:
            self._pending[lane] -= 1
