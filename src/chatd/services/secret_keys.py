"""The keys of the secrets at rest: read from the environment and the key file, registered in the
database at the first start, refreshed while the process runs, and rotated.

The database knows the keys by id and check value. A process without a fitting key runs; only what
needs a secret fails there.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from chatd import sealed_secrets
from chatd.aio import InterruptibleSleep
from chatd.domain.chat.lease import LEASE_TTL_S
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.diagnosis import ReplicaReport
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ports import Clock, Env
from chatd.sealed_secrets import (
    InvalidSecretKey,
    KeyRing,
    SecretKey,
    SecretUnreadable,
    check_value,
    fits_check_value,
    new_key,
    parse_keys,
)
from chatd.store import sealed_columns
from chatd.store.conn import Conn
from chatd.store.notifications import publish
from chatd.store.pool import Pool
from chatd.store.sealed_columns import SEALED_COLUMNS, KeyRecord, SealedColumn

KEY_FILE: Final = "secret-keys"
KEY_VARIABLES: Final = ("CHATD_SECRET_KEYS", "CHATD_SECRET_KEY")
KEYS_REFRESH_INTERVAL_S: Final = 10.0


class WrongSecretKey(ChatdError):
    """The keys of this process are none of those that the database knows."""

    code = "wrong_secret_key"


class OtherWorkspaceSecret(ChatdError):
    """The running servers of this database have another secret of workspaces than this one."""

    code = "other_workspace_secret"


WORKSPACE_SECRET: Final = "CHATD_SECRET"
"""Among the digests of settings: that of the secret from which the keys of agents and of the
connections between replicas derive."""


def workspace_secret_digest(secret: bytes) -> str:
    """The database keeps it, so it is slow to compute for a secret that a person may have chosen,
    and quick, at every start, for a random one as chatd makes it."""
    if re.fullmatch(rb"[0-9a-f]{64}", secret):
        return hashlib.sha256(b"chatd workspaces:" + secret).hexdigest()[:32]
    return hashlib.scrypt(secret, salt=b"chatd workspaces", n=1 << 14, r=8, p=1, dklen=16).hex()


class KeySource(Struct, frozen=True, kw_only=True):
    """Where this process has its keys from: the environment, then the key file."""

    path: Path
    given: tuple[SecretKey, ...] = ()

    def read(self) -> list[SecretKey]:
        """The newest key last. Raises ChatdError for an unreadable file."""
        try:
            text = sealed_secrets.read(self.path)
        except OSError as error:
            raise ChatdError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            stored = [] if text is None else parse_keys(text)
        except InvalidSecretKey as error:
            raise InvalidSecretKey(f"{self.path}: {error.message}.") from None
        return list({key.id: key for key in (*stored, *self.given)}.values())

    def create(self) -> list[SecretKey]:
        try:
            sealed_secrets.load_or_create(self.path, lambda: new_key().encode())
        except OSError as error:
            raise ChatdError(f"cannot store a key in {self.path}: {error.strerror}") from error
        return self.read()

    def write(self, keys: Sequence[SecretKey]) -> None:
        """Replace the keys of the file; keys of the environment are not written to it."""
        given = {key.id for key in self.given}
        lines = [key.encode() for key in keys if key.id not in given]
        try:
            sealed_secrets.replace(self.path, "\n".join(lines))
        except OSError as error:
            raise ChatdError(f"cannot write {self.path}: {error.strerror}") from error

    @property
    def remedy(self) -> str:
        return (
            f"Copy {self.path.name} from the data directory of a host that has it to {self.path}"
            f" (mode 600), or set {KEY_VARIABLES[0]} there and here."
        )


def key_source(data_dir: Path, env: Mapping[str, str]) -> KeySource:
    """Raises InvalidSecretKey that names the variable. An empty variable counts as not set."""
    for variable in KEY_VARIABLES:
        if given := env.get(variable, "").strip():
            try:
                return KeySource(path=data_dir / KEY_FILE, given=tuple(parse_keys(given)))
            except InvalidSecretKey as error:
                raise InvalidSecretKey(f"{variable}: {error.message}.") from None
    return KeySource(path=data_dir / KEY_FILE)


KeyStart = Literal["create", "register", "ready", "outdated", "missing", "wrong"]


def decide_start(known: Sequence[KeyRecord], held: Sequence[SecretKey]) -> KeyStart:
    """What a process does at start with the keys that the database knows and those it holds.

    `outdated`: it holds an older key only. `missing`: it holds none, and another host has one.
    `wrong`: none of its keys is one of the database's.
    """
    if not known:
        return "register" if held else "create"
    if not held:
        return "missing"
    keys = {key.id: key for key in held}
    fitting = [
        one for one in known if one.id in keys and fits_check_value(keys[one.id], one.check_value)
    ]
    if not fitting:
        return "wrong"
    return "ready" if any(one.state == "current" for one in fitting) else "outdated"


def current_key(known: Sequence[KeyRecord]) -> str | None:
    return next((one.id for one in known if one.state == "current"), None)


class SecretKeys:
    """Keeps the key ring of this process in step with the file and the database. Other processes
    read which keys it holds, its version and the digests of its `settings`."""

    def __init__(
        self,
        source: KeySource,
        env: Env,
        process_name: str,
        *,
        version: str = "",
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._source = source
        self._env = env
        self._shown_report = ReplicaReport(name=process_name, version=version, settings=settings)
        self._process_id: UUID = env.new_id()
        self._pause = InterruptibleSleep(env.clock)
        self.ring = KeyRing(remedy=source.remedy)

    def on_config_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind == "secret_key":
            self._pause.wake()

    async def start(self, pool: Pool) -> None:
        """Create and register a key if the database knows none. Raises WrongSecretKey, and
        OtherWorkspaceSecret.

        The key file is created under the lock: of two hosts that start on an empty database, one
        creates a key, and the other starts without."""
        async with pool.transaction() as session:
            await sealed_columns.lock(session)
            known = await sealed_columns.list_keys(session)
            held = await asyncio.to_thread(self._source.read)
            start = decide_start(known, held)
            if start in {"create", "register"}:
                if start == "create":
                    held = await asyncio.to_thread(self._source.create)
                newest = held[-1]
                record = KeyRecord(id=newest.id, check_value=check_value(newest), state="current")
                await sealed_columns.insert_key(session, record)
                known = [record]
        self._report(start, known, held)
        self.ring.replace(held, current_key(known))
        async with pool.transaction() as session:  # Of two that start together one is refused.
            await sealed_columns.lock(session)
            self._check_workspace_secret(await sealed_columns.list_processes(session, LEASE_TTL_S))
            await self._renew(session)

    def _check_workspace_secret(self, running: Sequence[ReplicaReport]) -> None:
        """Without this check replicas would refuse each other, and workspaces of the other host,
        only when a chat needs one."""
        own = self._shown_report.settings.get(WORKSPACE_SECRET)
        for other in running:
            if own and other.settings.get(WORKSPACE_SECRET, own) != own:
                here = self._source.path.parent
                raise OtherWorkspaceSecret(
                    f"The server on {other.name} runs on this database with another secret of"
                    " workspaces, so neither would reach the workspaces of the other. Copy its"
                    f" files secret and secret-keys to {here}: scp -p"
                    f" <its host>:<its data directory>/secret* {here}/ (or set {WORKSPACE_SECRET}"
                    f" there and here), then start again. If it no longer runs, wait for"
                    f" {LEASE_TTL_S:g} seconds."
                )

    def _report(
        self, start: KeyStart, known: Sequence[KeyRecord], held: Sequence[SecretKey]
    ) -> None:
        current, file = current_key(known), str(self._source.path)
        if start == "wrong":
            ids = ", ".join(key.id for key in held)
            raise WrongSecretKey(
                f"The secrets of this database are sealed with key {current}, and this server holds"
                f" {ids}. {self._source.remedy} To start without the secrets, move the file away."
                " If the key is lost: chatd admin rotate-keys --lost."
            )
        if start == "missing":
            self._env.emit("secret_key_missing", key=current, file=file)
        elif start == "outdated":
            self._env.emit("secret_key_outdated", key=current, file=file)
        elif start == "create":
            self._env.emit("secret_key_created", key=held[-1].id, file=file)

    async def run(self, pool: Pool) -> None:
        """Read the file and the database's keys again at intervals, and after a rotation."""
        failures = 0
        while True:
            await self._pause.sleep(KEYS_REFRESH_INTERVAL_S, "secret_keys")
            try:
                await self.refresh(pool)
                failures = 0
            except ChatdError as error:
                failures += 1
                self._env.emit("secret_keys_unread", error_kind=error.code, failures=failures)

    async def refresh(self, pool: Pool) -> None:
        held = await asyncio.to_thread(self._source.read)
        known = await sealed_columns.list_keys(pool)
        self.ring.replace(held, current_key(known))
        await self._renew(pool)

    async def stop(self, pool: Pool) -> None:
        """At exit: a rotation need not wait until this process counts as dead."""
        with suppress(Unavailable):
            await sealed_columns.remove_holder(pool, self._process_id)

    async def _renew(self, conn: Conn) -> None:
        report = replace(self._shown_report, key_ids=tuple(self.ring.key_ids))
        await sealed_columns.renew_holder(conn, self._process_id, report)


# Replacing the key of the secrets at rest, while replicas run.
#
# The order makes it safe to stop anywhere and to run it again: the new key goes to every running
# process, then it becomes the current one, then all values are sealed again in small batches. The
# old key stays until no value uses it.

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
