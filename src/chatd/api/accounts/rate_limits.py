"""How often a user, or an address without a valid secret, may ask this replica. In memory: the
limits keep one client from taking all of a replica, and need not hold over several of them.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, Literal

from msgspec import Struct

from chatd.api.auth import ApiCaller
from chatd.api.errors import RateLimited
from chatd.domain.account.buckets import Bucket, is_full, take
from chatd.domain.ports import Clock

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
