"""The credentials that this replica has read lately, so that a request costs no look-up.

Used only while this replica hears of changes. A change of a credential or a user drops what is
cached of it, and a look-up that began before the change stores nothing.
"""

from collections import OrderedDict
from typing import Final

from msgspec import Struct

from chatd.api.auth import ApiCaller
from chatd.domain.config_change import ConfigChange
from chatd.domain.ports import Clock
from chatd.store.config_changes import ConfigChanges
from chatd.store.runtime_settings import DEPLOYMENT

MAX_CACHED_CREDENTIALS: Final = 20_000
MAX_CACHED_REFUSALS: Final = 2_000
"""Of secrets that are not valid. They take no place of valid ones."""
MAX_KNOWN_SECRETS: Final = 50_000
"""Digests of secrets that were valid at their last look-up here."""
CREDENTIAL_CACHE_S: Final = 60.0
"""After this time a credential is read again, which also marks its use."""


class CachedCredential(Struct, frozen=True, kw_only=True):
    """`caller` is None for a secret that is not valid. `until` is a time of the monotonic clock."""

    caller: ApiCaller | None
    until: float


class CredentialCache:
    def __init__(self, changes: ConfigChanges, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._entries: OrderedDict[bytes, CachedCredential] = OrderedDict()
        self._refusals: OrderedDict[bytes, CachedCredential] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self.generation = 0
        changes.subscribe(self._on_change)

    def get(self, digest: bytes) -> CachedCredential | None:
        for entries in (self._entries, self._refusals):
            entry = entries.get(digest)
            if entry is None or not self._changes.is_current:
                continue
            if entry.until <= self._clock.monotonic():
                del entries[digest]
                continue
            entries.move_to_end(digest)
            return entry
        return None

    def was_valid(self, digest: bytes) -> bool:
        """At its last look-up here, however long ago. Only a hint."""
        return digest in self._known

    def put(
        self, digest: bytes, caller: ApiCaller | None, valid_for_s: float | None, generation: int
    ) -> None:
        """`generation` is that before the look-up."""
        self._remember(digest, is_valid=caller is not None)
        if generation != self.generation or not self._changes.is_current:
            return
        seconds = min(
            CREDENTIAL_CACHE_S, CREDENTIAL_CACHE_S if valid_for_s is None else valid_for_s
        )
        until = self._clock.monotonic() + seconds
        entries = self._refusals if caller is None else self._entries
        entries[digest] = CachedCredential(caller=caller, until=until)
        while len(entries) > (MAX_CACHED_REFUSALS if caller is None else MAX_CACHED_CREDENTIALS):
            entries.popitem(last=False)

    def _remember(self, digest: bytes, *, is_valid: bool) -> None:
        self._known.pop(digest, None)
        if is_valid:
            self._known[digest] = None
            if len(self._known) > MAX_KNOWN_SECRETS:
                self._known.popitem(last=False)

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or _concerns_all(change):
            self.generation += 1
            self._entries.clear()
            self._refusals.clear()
        elif change.kind in ("user", "credential"):
            self.generation += 1
            for digest in [key for key, one in self._entries.items() if _is_of(one, change)]:
                del self._entries[digest]
            if change.kind == "user":
                # A secret that was refused may belong to the user who was changed.
                self._refusals.clear()


def _concerns_all(change: ConfigChange) -> bool:
    """An actor carries a switch of the deployment's settings."""
    if change.kind == "settings":
        return change.id in ("", DEPLOYMENT)
    return change.kind in ("user", "credential") and not change.id


def _is_of(entry: CachedCredential, change: ConfigChange) -> bool:
    caller = entry.caller
    if caller is None:
        return False
    return change.id == str(caller.user_id if change.kind == "user" else caller.credential_id)
