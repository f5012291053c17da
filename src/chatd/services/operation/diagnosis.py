"""The checks of `chatd doctor` that need the database or the host of a server, judged by
`domain.deployment.diagnosis`. A server makes them for its administrators, the command for the
deployment of this host. A probe that fails is a finding, not an error.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.access.permissions import SystemActor
from chatd.domain.chat.lease import LEASE_TTL_S
from chatd.domain.deployment.diagnosis import (
    Finding,
    KeyFacts,
    SandboxFacts,
    failed,
    judge_backlog,
    judge_backups,
    judge_clock,
    judge_database,
    judge_disk,
    judge_keys,
    judge_listener,
    judge_migrations,
    judge_nats,
    judge_page,
    judge_replicas,
    judge_restore,
    judge_runners,
    judge_sandbox,
)
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.sealed_secrets import KeyRing, SecretUnreadable
from chatd.services.operation.secret_keys import KeySource, current_key, decide_start
from chatd.settings.schema import Settings
from chatd.store.chat import workers
from chatd.store.database import migrator, sealed_columns
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.nats import NatsConfig, measure_nats
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import SEALED_COLUMNS
from chatd.store.deployment import backups, diagnosis
from chatd.store.workspace import runners
from chatd.workspaces.local.isolation import IsolationReport
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.local_backend import LocalBackend, LocalConfig
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks

MAX_OPENED_SECRETS: Final = 1000
"""Of each column: enough to tell whether the key fits."""
MAX_LISTED_RUNNERS: Final = 1000
PROBE_TIMEOUT_S: Final = 20.0
_ACTOR: Final = SystemActor(reason="chatd doctor")


class HostFacts(Struct, frozen=True, kw_only=True):
    """What the checks need to know of the process or the settings. `sandbox` is called for the
    isolation of workspaces; it returns None if they are off."""

    data_dir: Path
    version: str
    is_page_built: bool
    backup_every_hours: float = 0.0
    nats: NatsConfig | None = None
    sandbox: Callable[[], Awaitable[SandboxFacts | None]]


class Doctor:
    def __init__(
        self, pool: Pool, connect: ConnectConfig, keys: KeySource, host: HostFacts, clock: Clock
    ) -> None:
        self._pool = pool
        self._connect = connect.named("doctor")
        self._keys = keys
        self._host = host
        self._clock = clock
        self._turn = asyncio.Lock()

    async def examine(self) -> list[Finding]:
        """In the order in which an operator reads them. What needs the tables is left out if the
        database does not answer or lacks some: it would fail for the same reason. One examination
        at a time: each opens sessions of its own."""
        async with self._turn:
            return await self._examine()

    async def _examine(self) -> list[Finding]:
        found = await self._examine_database()
        if not _has_failed(found, "database"):
            found += await _guarded("migrations", self._migrations)
            found += await _guarded("listener", self._listener)
        if not (_has_failed(found, "database") or _has_failed(found, "migrations")):
            for check, probe in (
                ("waiting chats", self._backlog),
                ("restore", self._restore),
                ("backups", self._backups),
                ("keys", self._secret_keys),
                ("replicas", self._replicas),
                ("runners", self._runners),
            ):
                found += await _guarded(check, probe)
        return found + await examine_host(self._host)

    async def _examine_database(self) -> list[Finding]:
        async def probe() -> list[Finding]:
            facts = await diagnosis.read_facts(self._connect, self._clock.now)
            clock = judge_clock(
                "clock", facts.server_offset_s, ours="this host", theirs="The database"
            )
            return [*judge_database(facts), clock]

        return await _guarded("database", probe)

    async def _migrations(self) -> list[Finding]:
        plan = await migrator.check(self._connect.dsn)
        pending = [one.file for one in plan.pending]
        return [judge_migrations(pending, [f"{one.version:04d}_{one.name}" for one in plan.ahead])]

    async def _restore(self) -> list[Finding]:
        record = await backups.read_restore(self._pool)
        if record is None or record.confirmed_at is not None:
            return []
        return [judge_restore(record.made_at)]

    async def _backups(self) -> list[Finding]:
        latest = await backups.read_latest(self._pool)
        age = None if latest.made_at is None else (latest.now - latest.made_at).total_seconds()
        return [judge_backups(self._host.backup_every_hours, age, latest.error)]

    async def _listener(self) -> list[Finding]:
        return [judge_listener(await diagnosis.measure_notification(self._connect))]

    async def _backlog(self) -> list[Finding]:
        backlog = await workers.read_backlog(self._pool)
        running = await workers.count_living(self._pool)
        return [judge_backlog(backlog.oldest_pending_s or 0.0, running)]

    async def _secret_keys(self) -> list[Finding]:
        held = await asyncio.to_thread(self._keys.read)
        known = await sealed_columns.list_keys(self._pool)
        ring = KeyRing(held, current_key(known))
        facts = KeyFacts(start=decide_start(known, held), current=current_key(known))
        for column in SEALED_COLUMNS:
            values = await sealed_columns.read_sealed(self._pool, column, MAX_OPENED_SECRETS)
            lost = sum(not _opens(ring, sealed, context) for sealed, context in values)
            facts = replace(
                facts, sealed=facts.sealed + len(values), unreadable=facts.unreadable + lost
            )
        return [judge_keys(facts, self._keys.remedy)]

    async def _replicas(self) -> list[Finding]:
        running = await sealed_columns.list_processes(self._pool, LEASE_TTL_S)
        known = await sealed_columns.list_keys(self._pool)
        return judge_replicas(running, current_key(known))

    async def _runners(self) -> list[Finding]:
        found = await runners.list_page(self._pool, _ACTOR, after=None, limit=MAX_LISTED_RUNNERS)
        now = found[0].now if found else self._clock.now()
        return [judge_runners([one.runner for one in found], now, self._host.version)]


async def examine_host(host: HostFacts) -> list[Finding]:
    """The checks that need no database."""

    async def measure_disk() -> list[Finding]:
        usage = await asyncio.to_thread(shutil.disk_usage, host.data_dir)
        return [judge_disk("disk", str(host.data_dir), usage.free, usage.total)]

    async def try_sandbox() -> list[Finding]:
        return [judge_sandbox(await host.sandbox())]

    async def try_nats() -> list[Finding]:
        return [] if host.nats is None else [judge_nats(await measure_nats(host.nats))]

    return [
        *await _guarded("notifications", try_nats),
        *await _guarded("disk", measure_disk),
        *await _guarded("sandbox", try_sandbox),
        judge_page(is_built=host.is_page_built),
    ]


async def _guarded(check: str, probe: Callable[[], Awaitable[Sequence[Finding]]]) -> list[Finding]:
    """What a probe found, or why it could not be made."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return list(await probe())
    except ChatdError as error:
        return [failed(check, error.message, _REMEDIES.get(check, _OTHER_REMEDY))]
    except TimeoutError:
        text = f"No answer within {PROBE_TIMEOUT_S:g} s."
        return [failed(check, text, _REMEDIES.get(check, _OTHER_REMEDY))]
    except OSError as error:
        return [failed(check, str(error), _REMEDIES.get(check, _OTHER_REMEDY))]


_OTHER_REMEDY: Final = "Run this again; if it stays so, the log of the server says more."
_REMEDIES: Final = {
    "database": "Check that PostgreSQL runs, that this host reaches its port, and user, password"
    " and name of the database in database.url.",
    "migrations": "docs/operating.md, section Upgrade.",
    "keys": "Make the key file readable for the account of the server (mode 600).",
    "disk": "Create the data directory, and give it to the account of the server.",
}


def sandbox_facts(report: IsolationReport) -> SandboxFacts:
    return SandboxFacts(level=report.level, obstacles=report.failed, advice=report.advice)


async def probe_sandbox(settings: Settings, clock: Clock) -> SandboxFacts | None:
    """Try the levels of isolation on this host, in a directory that is removed again. None if
    workspaces are off. Raises ChatdError, OSError."""
    if not settings.workspaces.enabled:
        return None
    with tempfile.TemporaryDirectory(prefix="chatd-doctor-") as directory:
        config = LocalConfig(
            data_dir=Path(directory),
            host_id="doctor",
            allow_unsafe=settings.workspaces.allow_unsafe,
        )
        networks = WorkspaceNetworks(config.data_dir, clock)
        backend = LocalBackend(config, agent=agent_zip(), clock=clock, networks=networks)
        return sandbox_facts(await backend.prepare())


def _has_failed(found: Sequence[Finding], check: str) -> bool:
    return any(one.check == check and one.verdict == "failed" for one in found)


def _opens(ring: KeyRing, sealed: str, context: str) -> bool:
    try:
        ring.open(sealed, context)
    except SecretUnreadable:
        return False
    return True
