"""The secrets of this host: the keys of the secrets at rest, and the secret of workspaces. Read
from the environment and from files, created with the deployment, received from a running server by
a host that joins it, and refreshed while the process runs.

The database knows the keys by id and check value. A process without a fitting key runs; only what
needs a secret fails there.
"""

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
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
from chatd.services.operation.secret_exchange import (
    REPLY_WAIT_S,
    ReceivedSecrets,
    SecretExchange,
    SharedSecrets,
)
from chatd.store.database import sealed_columns
from chatd.store.database.conn import Conn, DatabaseSession
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import KeyRecord
from chatd.workspaces.agents.agent_session import SECRET_FILE, server_secret

KEY_FILE: Final = "secret-keys"
KEY_VARIABLES: Final = ("CHATD_SECRET_KEYS", "CHATD_SECRET_KEY")
KEYS_REFRESH_INTERVAL_S: Final = 10.0
ASK_INTERVAL_S: Final = 60.0
"""Between two requests for a key that this host lacks and that no running server has sent."""


class WrongSecretKey(ChatdError):
    """The keys of this process are none of those that the database knows."""

    code = "wrong_secret_key"


class OtherWorkspaceSecret(ChatdError):
    """The running servers of this database have another secret of workspaces than this one."""

    code = "other_workspace_secret"


WORKSPACE_SECRET: Final = "CHATD_SECRET"
"""Among the digests of settings: that of the secret from which the keys of agents and of the
connections between replicas derive."""
_TRACES_OF_A_SERVER: Final = (KEY_FILE, "pg", "ws", "ws-supervisor", "admin-token")


def workspace_secret_digest(secret: bytes) -> str:
    """The database keeps it, so it is slow to compute for a secret that a person may have chosen,
    and quick, at every start, for a random one as chatd makes it."""
    if re.fullmatch(rb"[0-9a-f]{64}", secret):
        return hashlib.sha256(b"chatd workspaces:" + secret).hexdigest()[:32]
    return hashlib.scrypt(secret, salt=b"chatd workspaces", n=1 << 14, r=8, p=1, dklen=16).hex()


class WorkspaceSecret(Struct, frozen=True, kw_only=True):
    """Where this process has the secret of workspaces from: the environment, else the file."""

    data_dir: Path
    given: str | None = None

    @property
    def path(self) -> Path:
        return self.data_dir / SECRET_FILE

    def read(self) -> bytes | None:
        """None if there is none yet. Raises ChatdError for an unreadable or short one."""
        if self.given is None and not self.path.exists():
            return None
        return server_secret(self.given, self.data_dir)

    def create(self) -> bytes:
        return server_secret(self.given, self.data_dir)

    def is_unused(self) -> bool:
        """The file was left by a server that was refused at its first start: no server that ran
        here left anything else."""
        return self.given is None and not any(
            (self.data_dir / name).exists() for name in _TRACES_OF_A_SERVER
        )

    def replace(self, text: str) -> None:
        """The secret of before, if any, stays beside it."""
        try:
            if (old := sealed_secrets.read(self.path)) is not None and old != text:
                sealed_secrets.replace(self.path.with_name(f"{SECRET_FILE}.replaced"), old)
            sealed_secrets.replace(self.path, text)
        except OSError as error:
            raise ChatdError(f"cannot write {self.path}: {error.strerror}") from error


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


class HostFindings(Struct, frozen=True, kw_only=True):
    """What a process finds at its start. `secret` is the digest of its own secret of workspaces:
    None without a file, empty without workspaces."""

    known: Sequence[KeyRecord]
    held: Sequence[SecretKey]
    running: Sequence[ReplicaReport]
    secret: str | None = ""

    @property
    def other(self) -> ReplicaReport | None:
        """A running server with another secret of workspaces. One without the current key does
        not count: it started while no server that has the secrets was there."""
        current = current_key(self.known)
        for one in self.running:
            theirs = one.settings.get(WORKSPACE_SECRET)
            is_member = current is None or current in one.key_ids
            if theirs and is_member and self.secret not in {"", theirs}:
                return one
        return None

    @property
    def lacks_key(self) -> bool:
        """Whether a running server has the current key, and this process has not."""
        current = current_key(self.known)
        return decide_start(self.known, self.held) in {"missing", "outdated"} and any(
            current in one.key_ids for one in self.running
        )


class SecretKeys:
    """Keeps the key ring of this process in step with the file and the database. Other processes
    read which keys it holds, its version and the digests of its `settings`.

    `workspaces`: where the secret of workspaces is; None without workspaces. `joins`: ask running
    servers for secrets that this host lacks, and answer other hosts."""

    def __init__(
        self,
        source: KeySource,
        env: Env,
        process_name: str,
        *,
        version: str = "",
        settings: Mapping[str, str] = MappingProxyType({}),
        workspaces: WorkspaceSecret | None = None,
        host_id: str = "",
        joins: bool = False,
    ) -> None:
        self.source = source
        self._env = env
        self._shown_report = ReplicaReport(name=process_name, version=version, settings=settings)
        self._process_id: UUID = env.new_id()
        self._pause = InterruptibleSleep(env.clock)
        self._workspaces = workspaces
        self._joins = joins
        self._exchange = SecretExchange(env, process_name, host_id)
        self._asks_again_at = 0.0
        self.ring = KeyRing(remedy=source.remedy)
        self.workspace_secret: bytes | None = None
        """After `start`, if this process has workspaces."""

    def on_config_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind == "secret_key":
            self._pause.wake()

    async def start(self, pool: Pool) -> None:
        """Create and register the secrets if the database knows none; get those that a running
        server has and this host lacks. Raises WrongSecretKey, and OtherWorkspaceSecret.

        Files are created under the lock: of two hosts that start on an empty database, one creates
        the secrets, and the other one asks for them."""
        needs = await self._take_part(pool, may_ask=self._joins)
        if needs is not None:
            received = await self._exchange.ask(
                pool,
                current_key(needs.known) or "",
                with_workspaces=needs.other is not None,
            )
            if received is not None:
                await self._store(pool, received)
            await self._take_part(pool, may_ask=False)

    async def _take_part(self, pool: Pool, *, may_ask: bool) -> HostFindings | None:
        """Returns what was found if this host must ask for secrets first."""
        async with pool.transaction() as session:
            await sealed_columns.lock(session)
            found = await self._find(session)
            start, other = decide_start(found.known, found.held), found.other
            if may_ask and start in {"ready", "missing", "outdated"}:
                lacks_key = found.lacks_key and not self.source.given
                if self._may_replace(found) if other else lacks_key:
                    return found
            known, held = found.known, found.held
            if start != "wrong" and other is not None:
                raise OtherWorkspaceSecret(self._other_secret_text(found, other))
            if start in {"create", "register"}:
                if start == "create":
                    held = await asyncio.to_thread(self.source.create)
                newest = held[-1]
                record = KeyRecord(id=newest.id, check_value=check_value(newest), state="current")
                await sealed_columns.insert_key(session, record)
                known = [record]
            self._report(start, known, held)
            if self._workspaces is not None:
                self.workspace_secret = await asyncio.to_thread(self._workspaces.create)
                digest = workspace_secret_digest(self.workspace_secret)
                shown = {**self._shown_report.settings, WORKSPACE_SECRET: digest}
                self._shown_report = replace(self._shown_report, settings=shown)
            self.ring.replace(held, current_key(known))
            await self._renew(session)
        return None

    def _may_replace(self, found: HostFindings) -> bool:
        # A server with its keys from the environment leaves no key file.
        return self._workspaces is not None and (
            found.secret is None or (not self.source.given and self._workspaces.is_unused())
        )

    async def _find(self, session: DatabaseSession) -> HostFindings:
        known = await sealed_columns.list_keys(session)
        running = await sealed_columns.list_processes(session, LEASE_TTL_S)
        held = await asyncio.to_thread(self.source.read)
        digest: str | None = ""
        if self._workspaces is not None:
            secret = await asyncio.to_thread(self._workspaces.read)
            digest = None if secret is None else workspace_secret_digest(secret)
        return HostFindings(known=known, held=held, running=running, secret=digest)

    def _other_secret_text(self, found: HostFindings, other: ReplicaReport) -> str:
        """Without this check replicas would refuse each other, and workspaces of the other host,
        only when a chat needs one."""
        here = self.source.path.parent
        if not self._joins:
            reason = "This server does not ask for it, because server.join is off."
        elif self._may_replace(found):
            reason = (
                f"It was asked for its own and did not send it within {REPLY_WAIT_S:g} seconds: it"
                " has server.join off, or is of an older version."
            )
        else:
            reason = "The one of this host may be in use, so it is not replaced."
        return (
            f"The server on {other.name} runs on this database with another secret of workspaces,"
            f" so neither would reach the workspaces of the other. {reason} Copy its files secret"
            f" and secret-keys to {here}: scp -p <its host>:<its data directory>/secret* {here}/"
            f" (or set {WORKSPACE_SECRET} there and here), then start again. If it no longer runs,"
            f" wait for {LEASE_TTL_S:g} seconds."
        )

    async def _store(self, pool: Pool, received: ReceivedSecrets) -> None:
        """Check what a server has sent against what the database knows, and store it. Of a process
        that is killed in between, the next start asks for what is still missing."""
        secrets = received.secrets
        async with pool.transaction() as session:
            await sealed_columns.lock(session)
            found = await self._find(session)
            sent = {key.id: key for text in secrets.keys for key in parse_keys(text)}
            fitting = [
                sent[one.id]
                for one in found.known
                if one.id in sent and fits_check_value(sent[one.id], one.check_value)
            ]
            text, other = secrets.workspaces, found.other
            is_sound = bool(fitting)
            if text is not None and other is not None:  # None: it has stopped since
                digest = workspace_secret_digest(text.encode())
                is_sound &= digest == other.settings[WORKSPACE_SECRET]
            if is_sound:
                if self._workspaces and text is not None and self._may_replace(found):
                    await asyncio.to_thread(self._workspaces.replace, text)
                if not self.source.given:
                    kept = {key.id: key for key in (*fitting, *found.held)}
                    await asyncio.to_thread(self.source.write, list(kept.values()))
                await self._exchange.finish(session, received)
            else:
                await sealed_columns.delete_request(session, received.request_id)
        if is_sound:
            self._env.emit("secrets_received", sent_by=received.sent_by)
        else:
            self._env.emit("secrets_not_received", reason="wrong secrets")

    def _report(
        self, start: KeyStart, known: Sequence[KeyRecord], held: Sequence[SecretKey]
    ) -> None:
        current, file = current_key(known), str(self.source.path)
        if start == "wrong":
            ids = ", ".join(key.id for key in held)
            raise WrongSecretKey(
                f"The secrets of this database are sealed with key {current}, and this server holds"
                f" {ids}. {self.source.remedy} To start without the secrets, move the file away."
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
        """Answers hosts that ask, and asks for a key of a rotation that this host lacks."""
        held = await asyncio.to_thread(self.source.read)
        known = await sealed_columns.list_keys(pool)
        self.ring.replace(held, current_key(known))
        is_asked = await self._renew(pool)
        if not self._joins:
            return
        if is_asked and self.ring.current in self.ring.key_ids:
            secret, ids = self.workspace_secret, {one.id for one in known}
            secrets = SharedSecrets(
                # A file may have keys of another deployment, which is nobody's business here.
                keys=tuple(key.encode() for key in held if key.id in ids),
                workspaces=None if secret is None else secret.decode(),
            )
            await self._exchange.answer(pool, self.ring.key_ids, secrets)
        if not self.source.given:
            await self._ask_for_new_key(pool, known)

    async def _ask_for_new_key(self, pool: Pool, known: Sequence[KeyRecord]) -> None:
        used = (one.id for one in known if one.state != "retired")
        lacking = next((one for one in used if one not in self.ring.key_ids), None)
        now = self._env.clock.monotonic()
        if lacking is None or now < self._asks_again_at:
            return
        running = await sealed_columns.list_processes(pool, LEASE_TTL_S)
        having = [one for one in running if lacking in one.key_ids]
        if not having:
            return
        self._asks_again_at = now + ASK_INTERVAL_S
        # With the key, this process would keep those that have the secrets from starting again.
        own = self._shown_report.settings.get(WORKSPACE_SECRET)
        if own and any(one.settings.get(WORKSPACE_SECRET) not in {None, own} for one in having):
            reason = "another secret of workspaces"
            self._env.emit("secrets_not_received", key=lacking, reason=reason)
            return
        received = await self._exchange.ask(
            pool, lacking, with_workspaces=False, wait_s=KEYS_REFRESH_INTERVAL_S
        )
        if received is not None:
            await self._store(pool, received)
            self.ring.replace(await asyncio.to_thread(self.source.read), current_key(known))
            await self._renew(pool)

    async def stop(self, pool: Pool) -> None:
        """At exit: a rotation need not wait until this process counts as dead."""
        with suppress(Unavailable):
            await sealed_columns.remove_holder(pool, self._process_id)

    async def _renew(self, conn: Conn) -> bool:
        report = replace(self._shown_report, key_ids=tuple(self.ring.key_ids))
        return await sealed_columns.renew_holder(conn, self._process_id, report)
