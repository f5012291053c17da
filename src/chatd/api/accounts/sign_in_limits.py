"""How often a password may be tried. Only failures count: a success gives back what it took.

A known browser of the user is counted by itself, so attempts of others never keep it out. Another
browser is counted by account and address; beyond that limit it must wait. An account that is
attacked from many addresses, and an address with many failures, get slower and are not refused:
the right user may be among them. The counts are in the database and hold over all replicas.
"""

from typing import Final

from msgspec import Struct

from chatd.api.accounts.passwords import PasswordLane
from chatd.api.accounts.rate_limits import Buckets, address_group
from chatd.api.errors import RateLimited
from chatd.domain.account.secret_text import digest
from chatd.domain.ids import UserId
from chatd.domain.ports import Env
from chatd.store.account import sign_in_attempts
from chatd.store.conn import Conn

BROWSER_ATTEMPTS_PER_MINUTE: Final = 10
"""Wrong passwords for one user from one known browser, or else from one address."""
ADDRESS_ATTEMPTS_PER_MINUTE: Final = 60
"""Wrong passwords from one address. Further ones are checked one at a time."""
ACCOUNT_ATTEMPTS_PER_MINUTE: Final = 20
"""Wrong passwords for one user from all addresses. Further ones are checked after a delay."""
LOWEST_ACCOUNT_LEVEL: Final = -60.0
"""Of the account's count: it has recovered three minutes after the last attempt."""
FIRST_SIGN_IN_DELAY_S: Final = 0.5
ATTEMPTS_PER_DOUBLED_DELAY: Final = 10
MAX_SIGN_IN_DELAY_S: Final = 8.0
MAX_DELAYED_SIGN_INS: Final = 200
"""On one replica at once. Further ones are told to come again."""


class Attempt(Struct, frozen=True, kw_only=True):
    """What an attempt has taken, and which lane checks its password."""

    own: str
    lane: PasswordLane
    shared: tuple[tuple[str, int], ...] = ()


class SignInLimits:
    def __init__(self, conn: Conn, env: Env) -> None:
        self._conn = conn
        self._env = env
        self._addresses = Buckets(env.clock)
        self._delayed = 0

    def is_flooding(self, ip: str | None) -> bool:
        """Counts an attempt of the address on this replica alone, before anything is read."""
        try:
            self._addresses.take(address_group(ip), 2 * ADDRESS_ATTEMPTS_PER_MINUTE)
        except RateLimited:
            return True
        return False

    async def admit(
        self, ip: str | None, login: str, user_id: UserId | None, device: str | None
    ) -> Attempt:
        """Before the password is checked. Raises RateLimited."""
        account = _account(login, user_id)
        if device is not None:
            own = f"device:{account}:{device}"
            await self._take_own(own, ip)
            return Attempt(own=own, lane="known")
        group = address_group(ip)
        own = f"pair:{account}:{group}"
        await self._take_own(own, ip)
        limit = ADDRESS_ATTEMPTS_PER_MINUTE
        is_usual = await sign_in_attempts.take(self._conn, f"address:{group}", per_minute=limit)
        level = await sign_in_attempts.take_below(
            self._conn,
            f"account:{account}",
            per_minute=ACCOUNT_ATTEMPTS_PER_MINUTE,
            lowest=LOWEST_ACCOUNT_LEVEL,
        )
        await self._delay(delay_s(level), ip)
        shared = (
            (f"address:{group}", ADDRESS_ATTEMPTS_PER_MINUTE),
            (f"account:{account}", ACCOUNT_ATTEMPTS_PER_MINUTE),
        )
        return Attempt(own=own, lane="usual" if is_usual else "slow", shared=shared)

    async def settle(self, conn: Conn, attempt: Attempt) -> None:
        """After a success."""
        await sign_in_attempts.clear(conn, attempt.own)
        for bucket, per_minute in attempt.shared:
            await sign_in_attempts.give_back(conn, bucket, per_minute=per_minute)

    async def admit_change(self, user_id: UserId) -> Attempt:
        """Before a signed-in user's present password is checked. Raises RateLimited."""
        own = f"change:{user_id.hex}"
        await self._take_own(own, None)
        return Attempt(own=own, lane="known")

    async def _take_own(self, bucket: str, ip: str | None) -> None:
        limit = BROWSER_ATTEMPTS_PER_MINUTE
        if not await sign_in_attempts.take(self._conn, bucket, per_minute=limit):
            raise self.refusal(60 / limit, ip)

    async def _delay(self, seconds: float, ip: str | None) -> None:
        if seconds <= 0:
            return
        if self._delayed >= MAX_DELAYED_SIGN_INS:
            raise self.refusal(MAX_SIGN_IN_DELAY_S, ip)
        self._delayed += 1
        try:
            await self._env.clock.sleep(seconds, "sign_in_delay")
        finally:
            self._delayed -= 1

    def refusal(self, wait_s: float, ip: str | None) -> RateLimited:
        self._env.emit("sign_in_limited", ip=ip)
        seconds = RateLimited(wait_s).retry_after_s
        return RateLimited(wait_s, f"Too many sign-ins. Try again in {seconds} seconds.")


def delay_s(level: float) -> float:
    """Grows with the failures beyond the rate, to a bound."""
    if level >= 0:
        return 0.0
    return min(
        MAX_SIGN_IN_DELAY_S, FIRST_SIGN_IN_DELAY_S * 2 ** (-level / ATTEMPTS_PER_DOUBLED_DELAY)
    )


def _account(login: str, user_id: UserId | None) -> str:
    """A digest of an unknown name: it may have any length, and the table shows no names."""
    return user_id.hex if user_id is not None else digest(login.lower()).hex()[:32]
