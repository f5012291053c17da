"""Replacing the key of the secrets at rest, while replicas run.

The order makes it safe to stop anywhere and to run it again: the new key goes to every running
process, then it becomes the current one, then all values are sealed again in small batches. The
old key stays until no value uses it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.chat.lease import LEASE_TTL_S
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.sealed_secrets import KeyRing, SecretKey, SecretUnreadable, check_value, new_key
from chatd.services.operation.secret_keys import KEY_VARIABLES, KeySource, current_key, decide_start
from chatd.store.database import sealed_columns
from chatd.store.database.notifications import publish
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import SEALED_COLUMNS, KeyRecord, SealedColumn

HOLDERS_WAIT_S: Final = 45
"""Running processes read the key file at shorter intervals, and the lease of one that was killed
just before has ended by then."""


class RotationIncomplete(ChatdError):
    """An operator must act before the rotation can go on."""

    code = "rotation_incomplete"


class RotationResult(Struct, frozen=True, kw_only=True):
    """`unused`: keys that can be removed."""

    key_id: str
    resealed: int
    unreadable: int
    unused: tuple[str, ...]


class KeyRotation:
    """`columns`: where sealed values are. `report` is told each stage that has ended."""

    def __init__(
        self,
        pool: Pool,
        source: KeySource,
        clock: Clock,
        report: Callable[[str], None],
        columns: Sequence[SealedColumn] = SEALED_COLUMNS,
    ) -> None:
        self._pool = pool
        self._source = source
        self._clock = clock
        self._report = report
        self._columns = columns

    async def rotate(self, *, lost: bool = False) -> RotationResult:
        """Continues an unfinished rotation. `lost`: no host has the current key any more; what it
        has sealed stays unreadable. Raises RotationIncomplete."""
        key, staged = await self._stage(lost=lost)
        if staged:
            await self._wait_for_holders(key.id)
            async with self._pool.transaction() as session:
                await sealed_columns.lock(session)
                await sealed_columns.make_current(session, key.id)
                await publish(session, ConfigChange(kind="secret_key", id=key.id))
            self._report(f"key {key.id} is the current key")
        return await self._reseal(key)

    async def _stage(self, *, lost: bool) -> tuple[SecretKey, bool]:
        """The key to seal with, and whether it is not the current one yet."""
        async with self._pool.transaction() as session:
            await sealed_columns.lock(session)
            known = await sealed_columns.list_keys(session)
            held = await asyncio.to_thread(self._source.read)
            self._check(known, held, lost=lost)
            if (unfinished := await self._unfinished(known, held)) is not None:
                return unfinished
            key = await self._new_key(known, held)
            record = KeyRecord(id=key.id, check_value=check_value(key), state="staged")
            await sealed_columns.insert_key(session, record)
        self._report(f"key {key.id} is new, in {self._source.path}")
        return key, True

    def _check(self, known: Sequence[KeyRecord], held: Sequence[SecretKey], *, lost: bool) -> None:
        start = decide_start(known, held)
        if start not in {"create", "register", "ready"} and not lost:
            raise RotationIncomplete(
                f"This host does not hold the current key {current_key(known)}."
                f" {self._source.remedy} If no host has it any more, use --lost: the values that it"
                " has sealed must then be entered again."
            )

    async def _unfinished(
        self, known: Sequence[KeyRecord], held: Sequence[SecretKey]
    ) -> tuple[SecretKey, bool] | None:
        """The key of a rotation that has begun: staged, or current while older values exist."""
        keys = {key.id: key for key in held}
        for record in known:
            if record.state == "staged" and record.id in keys:
                return keys[record.id], True
        current = keys.get(current_key(known) or "")
        counts = await sealed_columns.count_by_key(self._pool, self._columns)
        is_behind = current is not None and any(
            record.state == "retired" and counts.get(record.id) and record.id in keys
            for record in known
        )
        return (current, False) if current is not None and is_behind else None

    async def _new_key(self, known: Sequence[KeyRecord], held: Sequence[SecretKey]) -> SecretKey:
        """The last held key if the database does not know it; else a new one in the file."""
        if held and held[-1].id not in {record.id for record in known}:
            return held[-1]
        if self._source.given:
            raise RotationIncomplete(
                f"{KEY_VARIABLES[0]} has no new key. Put one at its end on every replica, separated"
                " by a comma, restart them, and run this again. openssl rand -base64 32 prints one."
            )
        key = new_key()
        await asyncio.to_thread(self._source.write, [*held, key])
        return key

    async def _wait_for_holders(self, key_id: str) -> None:
        waited_s = 0
        while without := await sealed_columns.list_without(self._pool, key_id, LEASE_TTL_S):
            if waited_s == HOLDERS_WAIT_S:
                break
            await self._clock.sleep(1, "key_holders")
            waited_s += 1
        else:
            return
        raise RotationIncomplete(
            f"These running processes do not have key {key_id} yet: {', '.join(without)}."
            f" {self._source.remedy} Then run this again. Nothing has changed for them."
        )

    async def _reseal(self, key: SecretKey) -> RotationResult:
        ring = KeyRing(await asyncio.to_thread(self._source.read), key.id)

        def reseal(sealed: str, context: str) -> str | None:
            try:
                return ring.seal(ring.open(sealed, context), context)
            except SecretUnreadable:
                return None

        resealed = unreadable = 0
        for column in self._columns:
            last_id = None
            while True:
                batch = await sealed_columns.reseal_batch(
                    self._pool, column, key.id, reseal, last_id
                )
                resealed += batch.resealed
                unreadable += batch.unreadable
                last_id = batch.last_id
                if last_id is None:
                    break
        return RotationResult(
            key_id=key.id, resealed=resealed, unreadable=unreadable, unused=await self._unused()
        )

    async def _unused(self) -> tuple[str, ...]:
        counts = await sealed_columns.count_by_key(self._pool, self._columns)
        known = await sealed_columns.list_keys(self._pool)
        return tuple(one.id for one in known if one.state == "retired" and not counts.get(one.id))

    async def remove_unused(self) -> tuple[str, ...]:
        """Remove old keys that no value uses from the database and from this host's file."""
        unused = await self._unused()
        for key_id in unused:
            await sealed_columns.delete_retired(self._pool, key_id)
        held = await asyncio.to_thread(self._source.read)
        kept = [key for key in held if key.id not in unused]
        if len(kept) < len(held):
            await asyncio.to_thread(self._source.write, kept)
        return unused
