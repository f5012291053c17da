"""The keys of the secrets at rest: read from the environment and the key file, registered in the
database at the first start, refreshed while the process runs, and rotated.

The database knows the keys by id and check value. A process without a fitting key runs; only what
needs a secret fails there.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from chatd import secret_files
from chatd.aio import InterruptibleSleep
from chatd.domain.config_change import ConfigChange
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ports import Env
from chatd.sealed_secrets import (
    InvalidSecretKey,
    KeyRing,
    SecretKey,
    check_value,
    fits_check_value,
    new_key,
    parse_keys,
)
from chatd.store import secret_keys
from chatd.store.pool import Pool
from chatd.store.secret_keys import KeyRecord

KEY_FILE: Final = "secret-keys"
KEY_VARIABLES: Final = ("CHATD_SECRET_KEYS", "CHATD_SECRET_KEY")
KEYS_REFRESH_INTERVAL_S: Final = 10.0


class WrongSecretKey(ChatdError):
    """The keys of this process are none of those that the database knows."""

    code = "wrong_secret_key"


class KeySource(Struct, frozen=True, kw_only=True):
    """Where this process has its keys from: the environment, then the key file."""

    path: Path
    given: tuple[SecretKey, ...] = ()

    def read(self) -> list[SecretKey]:
        """The newest key last. Raises ChatdError for an unreadable file."""
        try:
            text = secret_files.read(self.path)
        except OSError as error:
            raise ChatdError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            stored = [] if text is None else parse_keys(text)
        except InvalidSecretKey as error:
            raise InvalidSecretKey(f"{self.path}: {error.message}.") from None
        return list({key.id: key for key in (*stored, *self.given)}.values())

    def create(self) -> list[SecretKey]:
        try:
            secret_files.load_or_create(self.path, lambda: new_key().encode())
        except OSError as error:
            raise ChatdError(f"cannot store a key in {self.path}: {error.strerror}") from error
        return self.read()

    def write(self, keys: Sequence[SecretKey]) -> None:
        """Replace the keys of the file; keys of the environment are not written to it."""
        given = {key.id for key in self.given}
        lines = [key.encode() for key in keys if key.id not in given]
        try:
            secret_files.replace(self.path, "\n".join(lines))
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
    """Keeps the key ring of this process in step with the file and the database."""

    def __init__(self, source: KeySource, env: Env, process_name: str) -> None:
        self._source = source
        self._env = env
        self._name = process_name
        self._process_id: UUID = env.new_id()
        self._pause = InterruptibleSleep(env.clock)
        self.ring = KeyRing(remedy=source.remedy)

    def on_config_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind == "secret_key":
            self._pause.wake()

    async def start(self, pool: Pool) -> None:
        """Create and register a key if the database knows none. Raises WrongSecretKey.

        The key file is created under the lock: of two hosts that start on an empty database, one
        creates a key, and the other starts without."""
        async with pool.transaction() as session:
            await secret_keys.lock(session)
            known = await secret_keys.list_keys(session)
            held = await asyncio.to_thread(self._source.read)
            start = decide_start(known, held)
            if start in {"create", "register"}:
                if start == "create":
                    held = await asyncio.to_thread(self._source.create)
                newest = held[-1]
                record = KeyRecord(id=newest.id, check_value=check_value(newest), state="current")
                await secret_keys.insert_key(session, record)
                known = [record]
        self._report(start, known, held)
        self.ring.replace(held, current_key(known))
        await self._renew(pool)

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
        known = await secret_keys.list_keys(pool)
        self.ring.replace(held, current_key(known))
        await self._renew(pool)

    async def stop(self, pool: Pool) -> None:
        """At exit: a rotation need not wait until this process counts as dead."""
        with suppress(Unavailable):
            await secret_keys.remove_holder(pool, self._process_id)

    async def _renew(self, pool: Pool) -> None:
        await secret_keys.renew_holder(pool, self._process_id, self._name, self.ring.key_ids)
