"""How often a user, or an address without a valid secret, may ask this replica. In memory: the
limits keep one client from taking all of a replica, and need not hold over several of them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, Literal

from msgspec import Struct

from chatd.api.errors import RateLimited
from chatd.api.request import ApiCaller
from chatd.domain.access.accounts import Bucket, is_full, take
from chatd.domain.access.secret_text import digest
from chatd.domain.ids import UserId
from chatd.domain.ports import Clock, Env
from chatd.store.account import credentials
from chatd.store.database.conn import Conn

PasswordLane = Literal["known", "usual", "slow"]
"""`known`: of users in browsers that they have used before; one hash at once is theirs alone.
`slow`: of addresses with many failures; one at once of the usual ones."""

MAX_BUCKETS: Final = 50_000
TESTS_PER_MINUTE: Final = 6
"""Test deliveries that a user, also an administrator, may ask for: each is a request to another
server."""
IPV6_GROUP_BITS: Final = 64
"""One subscriber has this prefix, and all addresses in it."""

RouteGroup = Literal["requests", "chats", "files"]


class RequestLimits(Struct, frozen=True, kw_only=True):
    """For each user, per minute and group of routes; 0: no limit. Administrators have none."""

    requests: int = 0
    chats: int = 0
    files: int = 0


class Buckets:
    """A bounded number of buckets. The one that was unused for longest is forgotten first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: OrderedDict[object, Bucket] = OrderedDict()

    def take(self, key: object, per_minute: int) -> None:
        """Raises RateLimited."""
        bucket, wait_s = take(self._buckets.get(key), per_minute, self._clock.monotonic())
        self._buckets[key] = bucket
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if wait_s > 0:
            raise RateLimited(wait_s)

    def is_empty(self, key: object, per_minute: int) -> bool:
        """Whether `take` would raise. Takes nothing."""
        now = self._clock.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            return False
        if is_full(bucket, per_minute, now):
            del self._buckets[key]
            return False
        return take(bucket, per_minute, now)[1] > 0


class RateLimits:
    def __init__(self, limits: RequestLimits, clock: Clock) -> None:
        self._limits = {
            "requests": limits.requests,
            "chats": limits.chats,
            "files": limits.files,
        }
        self._buckets = Buckets(clock)

    def take(self, caller: ApiCaller, group: RouteGroup) -> None:
        """Raises RateLimited."""
        per_minute = self._limits[group]
        if per_minute and caller.actor.role != "admin":
            self._buckets.take((caller.user_id, group), per_minute)

    def take_test(self, caller: ApiCaller) -> None:
        """Before a test delivery to a webhook or a browser. Raises RateLimited."""
        self._buckets.take((caller.user_id, "test"), TESTS_PER_MINUTE)


def address_group(address: str | None) -> str | None:
    """What counts as one address: a subscriber can use every address of an IPv6 prefix."""
    try:
        parsed = None if address is None else ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ip_network((parsed, IPV6_GROUP_BITS), strict=False))
    return address


def route_group(method: str, path: str) -> RouteGroup:
    """`path` is the template of the route, below the prefix."""
    if path.startswith("/files") and method != "GET":
        return "files"
    return "chats" if (method, path) == ("POST", "/chats") else "requests"


# How often a password may be tried. Only failures count: a success gives back what it took.
#
# A known browser of the user is counted by itself, so attempts of others never keep it out. Another
# browser is counted by account and address; beyond that limit it must wait. An account that is
# attacked from many addresses, and an address with many failures, get slower and are not refused:
# the right user may be among them. The counts are in the database and hold over all replicas.

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
        is_usual = await credentials.take_attempt(self._conn, f"address:{group}", per_minute=limit)
        level = await credentials.take_attempt_below(
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
        await credentials.clear_attempts(conn, attempt.own)
        for bucket, per_minute in attempt.shared:
            await credentials.give_back_attempt(conn, bucket, per_minute=per_minute)

    async def admit_change(self, user_id: UserId) -> Attempt:
        """Before a signed-in user's present password is checked. Raises RateLimited."""
        own = f"change:{user_id.hex}"
        await self._take_own(own, None)
        return Attempt(own=own, lane="known")

    async def _take_own(self, bucket: str, ip: str | None) -> None:
        limit = BROWSER_ATTEMPTS_PER_MINUTE
        if not await credentials.take_attempt(self._conn, bucket, per_minute=limit):
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


# How many look-ups of unknown secrets this replica makes at once.
#
# An address whose secrets were wrong too often is not refused: other users may share it, behind a
# proxy that this server does not trust. Its look-ups take a slow lane, one at a time, and a bounded
# number waits. A secret that was valid here before never takes it.

WRONG_SECRETS_PER_MINUTE: Final = 60
"""Of one address. Only the first request with each secret is looked up."""
MAX_LOOKUPS_AT_ONCE: Final = 4
"""Of secrets: the other connections of the pool stay free for callers that are known."""
MAX_SLOW_LOOKUPS_WAITING: Final = 64
SLOW_LOOKUP_RETRY_S: Final = 2.0


class LookUpLanes:
    def __init__(self, clock: Clock) -> None:
        self._wrong = Buckets(clock)
        self._usual = asyncio.Semaphore(MAX_LOOKUPS_AT_ONCE)
        self._slow = asyncio.Semaphore(1)
        self._waiting = 0

    @asynccontextmanager
    async def lane(self, address: str | None, *, is_known: bool = False) -> AsyncGenerator[None]:
        """Hold it during the look-up. Raises RateLimited if too many wait in the slow lane."""
        group = address_group(address)
        if is_known or not self._wrong.is_empty(group, WRONG_SECRETS_PER_MINUTE):
            async with self._usual:
                yield
            return
        if self._waiting >= MAX_SLOW_LOOKUPS_WAITING:
            raise RateLimited(SLOW_LOOKUP_RETRY_S)
        self._waiting += 1
        try:
            async with self._slow:
                yield
        finally:
            self._waiting -= 1

    def count_wrong(self, address: str | None) -> None:
        with suppress(RateLimited):
            self._wrong.take(address_group(address), WRONG_SECRETS_PER_MINUTE)
