"""What `chatd doctor` concludes from its measurements: a verdict for each check, and what to do.

The probes are elsewhere (`services.diagnosis`, `client.probes`, `cli.operator`); every rule is
here, over plain values.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import Struct

from chatd.domain.description import describe
from chatd.domain.workspace.runners import Runner, explain_version_gap, is_connected

Verdict = Literal["ok", "warning", "failed", "skipped"]

MAX_CLOCK_OFFSET_S: Final = 2.0
"""chatd takes its times from the database; an offset shows in logs and in the times of a page."""
BAD_CLOCK_OFFSET_S: Final = 30.0
"""Beyond this, tokens of OpenID and signed requests are refused."""
MIN_FREE_BYTES: Final = 256 * 1024 * 1024
LOW_FREE_BYTES: Final = 2 * 1024 * 1024 * 1024
LOW_FREE_PERCENT: Final = 5
MIN_POSTGRES_MAJOR: Final = 15
BUSY_CONNECTIONS_PERCENT: Final = 90
FIRST_EVENT_WITHIN_S: Final = 5.0
"""The first event of a stream is sent at once: what takes longer was held back on the way."""
LONG_PENDING_S: Final = 60.0
STRONG_LEVELS: Final = frozenset({"bwrap+uid", "bwrap"})
_SHOWN: Final = 5


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    check: Annotated[str, describe("The name of the check.", "migrations")]
    verdict: Annotated[
        Verdict,
        describe("`skipped`: it could not be made, for the reason that `text` gives.", "failed"),
    ]
    text: Annotated[str, describe("What was found.", "2 migrations are pending.")]
    remedy: Annotated[
        str, describe("What to do about it; empty if nothing is wrong.", "Run chatd migrate up.")
    ] = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, verdict="ok", text=text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, verdict="warning", text=text, remedy=remedy)


def failed(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, verdict="failed", text=text, remedy=remedy)


def skipped(check: str, text: str) -> Finding:
    return Finding(check=check, verdict="skipped", text=text)


def exit_code(findings: Iterable[Finding]) -> int:
    """A warning is no failure: a monitoring job that calls the doctor stays green."""
    return 1 if any(one.verdict == "failed" for one in findings) else 0


class ReplicaReport(Struct, frozen=True, kw_only=True):
    """A running process. `settings` are digests by the setting's name, empty if it is too old to
    say."""

    name: str
    version: str = ""
    key_ids: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}


# The database


class DatabaseFacts(Struct, frozen=True, kw_only=True):
    """What the server says of itself. `unsafe` are settings by which it may lose confirmed commits.
    `server_offset_s`: its clock minus that of the process that asked."""

    version: int
    is_standby: bool
    connections: int
    max_connections: int
    bytes: int
    server_offset_s: float
    unsafe: Mapping[str, str] = {}
    oldest_pending_s: float = 0.0


def judge_database(facts: DatabaseFacts) -> list[Finding]:
    major = facts.version // 10_000
    if major < MIN_POSTGRES_MAJOR:
        return [
            failed(
                "database",
                f"PostgreSQL {major} is too old.",
                f"Upgrade the server to PostgreSQL {MIN_POSTGRES_MAJOR} or newer.",
            )
        ]
    if facts.is_standby:
        return [
            failed(
                "database",
                "This is a standby, which takes no writes.",
                "Name the primary in database.url; with several hosts add"
                " target_session_attrs=read-write to the address.",
            )
        ]
    size = f"{facts.bytes / 2**20:,.0f} MiB"
    found = [ok("database", f"PostgreSQL {major} answers; the database has {size}.")]
    found.append(_judge_safety(facts.unsafe))
    found.append(_judge_connections(facts))
    return found


def _judge_safety(unsafe: Mapping[str, str]) -> Finding:
    if unsafe:
        named = ", ".join(f"{name} = {value}" for name, value in sorted(unsafe.items()))
        return failed(
            "database settings",
            f"{named}: a crash or a failover may lose messages that chatd has confirmed.",
            f"Set {' and '.join(sorted(unsafe))} to on in postgresql.conf, and reload it.",
        )
    return ok("database settings", "The server keeps what it has confirmed.")


def _judge_connections(facts: DatabaseFacts) -> Finding:
    used = f"{facts.connections} of {facts.max_connections} connections are in use."
    if facts.connections * 100 >= facts.max_connections * BUSY_CONNECTIONS_PERCENT:
        return warning(
            "connections",
            used,
            "Raise max_connections of PostgreSQL, or lower database.pool_size of the replicas.",
        )
    return ok("connections", used)


def judge_backlog(oldest_pending_s: float, workers: int) -> Finding:
    if oldest_pending_s < LONG_PENDING_S:
        return ok("waiting chats", "No chat waits for a worker for long.")
    waited = f"A chat has waited {oldest_pending_s:.0f} s for a worker."
    if workers == 0:
        return failed(
            "waiting chats", waited, "No worker runs: start chatd serve without --no-worker."
        )
    return warning(
        "waiting chats", waited, "Start another replica or worker, or raise worker.slots."
    )


def judge_migrations(pending: Sequence[str], ahead: Sequence[str]) -> Finding:
    if pending:
        return failed(
            "migrations",
            f"{_count(len(pending), 'migration is', 'migrations are')} pending: {_some(pending)}.",
            "Restart one replica of this version, which applies them, or run chatd migrate up.",
        )
    if ahead:
        return warning(
            "migrations",
            f"The database is of a newer version of chatd: {_some(ahead)}.",
            "Upgrade this replica. To go back instead, restore the backup from before the upgrade.",
        )
    return ok("migrations", "The schema is that of this version.")


def judge_restore(made_at: datetime) -> Finding:
    """Of a restored deployment that nobody has confirmed."""
    return warning(
        "restore",
        f"This deployment was restored from a backup of {made_at:%Y-%m-%d %H:%M} UTC. Chats,"
        " schedules, webhooks and backups wait until that is confirmed.",
        "If it replaces the original: chatd admin confirm-restore. Never confirm a copy that runs"
        " beside it.",
    )


def judge_backups(every_hours: float, age_s: float | None, error: str | None) -> Finding:
    """`age_s`: of the newest scheduled backup. `error`: of the last attempt."""
    if not every_hours:
        if age_s is None:
            return skipped("backups", "None is scheduled on this host (backup.every_hours).")
        return ok("backups", f"The newest one is {_hours(age_s)} old; this host makes none.")
    if error is not None:
        return failed("backups", f"The last one failed: {error}", "Repair that; docs/backup.md.")
    if age_s is None or age_s > 2 * 3600 * every_hours:
        age = "There is none" if age_s is None else f"The newest one is {_hours(age_s)} old"
        return warning(
            "backups",
            f"{age}, and one is due every {every_hours:g} hours.",
            "A new server makes its first one within minutes. Later: look into its log.",
        )
    return ok("backups", f"The newest one is {_hours(age_s)} old.")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours"


def judge_upgrade(
    pending: Sequence[str],
    ahead: Sequence[str],
    replicas: Sequence[ReplicaReport],
    version: str,
) -> list[Finding]:
    """What a start of this version would do to the database."""
    others = sorted({one.version or "older" for one in replicas} - {version})
    if ahead:
        return [
            failed(
                "schema",
                f"The database is of a newer version of chatd: {_some(ahead)}.",
                "Install that version or a newer one. To go back instead, restore the backup from"
                " before the upgrade.",
            )
        ]
    if not pending:
        found = [ok("schema", f"chatd {version} changes nothing in this database.")]
    else:
        text = f"chatd {version} applies {_count(len(pending), 'migration', 'migrations')}"
        found = [
            warning(
                "schema",
                f"{text}: {_some(pending)}. There is no way back but a backup.",
                "Make a backup first. Running replicas of the version before go on meanwhile.",
            )
        ]
    if others:
        text = f"Replicas of other versions run: {', '.join(others)}."
        remedy = "Restart them with the new version, one after the other."
        return [*found, warning("replicas", text, remedy)]
    running = _count(len(replicas), "process runs", "processes run")
    return [*found, ok("replicas", f"{running}, none of another version.")]


def judge_clock(check: str, offset_s: float, *, ours: str, theirs: str) -> Finding:
    """`offset_s`: their clock minus ours."""
    size = abs(offset_s)
    if size < MAX_CLOCK_OFFSET_S:
        return ok(check, f"{theirs} and {ours} agree within {MAX_CLOCK_OFFSET_S:g} s.")
    text = f"{theirs} is {size:.1f} s {'ahead of' if offset_s > 0 else 'behind'} {ours}."
    remedy = "Synchronize both clocks: timedatectl set-ntp true, or chrony."
    return (failed if size >= BAD_CLOCK_OFFSET_S else warning)(check, text, remedy)


def judge_listener(delay_s: float | None) -> Finding:
    if delay_s is None:
        return failed(
            "listener",
            "A notification that was sent through the database did not arrive.",
            "Name the PostgreSQL server itself in database.url, not a connection pooler.",
        )
    return ok("listener", f"Notifications arrive, after {delay_s * 1000:.0f} ms.")


def judge_nats(measured: Mapping[str, float | str]) -> Finding:
    """By server: the seconds until a message came back, or why it did not."""
    reasons = [f"{server}: {why}" for server, why in measured.items() if isinstance(why, str)]
    if not reasons:
        slowest = max((s for s in measured.values() if isinstance(s, float)), default=0.0)
        return ok("notifications", f"NATS takes them, within {slowest * 1000:.0f} ms.")
    remedy = "Check the address and the user in server.notifications, and what that user may do."
    judge = failed if len(reasons) == len(measured) else warning
    return judge("notifications", " ".join(reasons), remedy)


# The host


def judge_disk(check: str, path: str, free: int, total: int) -> Finding:
    text = f"{free / 2**30:,.1f} of {total / 2**30:,.1f} GiB are free at {path}."
    remedy = "Free space there, or enlarge the file system; chatd debug bundle lists table sizes."
    if free < MIN_FREE_BYTES:
        return failed(check, text, remedy)
    if free < LOW_FREE_BYTES or free * 100 < total * LOW_FREE_PERCENT:
        return warning(check, text, remedy)
    return ok(check, text)


class SandboxFacts(Struct, frozen=True, kw_only=True):
    """`level` is None if the host can run no workspaces. `obstacles`: why better levels failed."""

    level: str | None
    obstacles: Sequence[tuple[str, str]] = ()
    advice: str = ""


def judge_sandbox(facts: SandboxFacts | None) -> Finding:
    """None: workspaces are off in the settings."""
    if facts is None:
        return skipped("sandbox", "Workspaces on this host are off (workspaces.enabled).")
    why = "; ".join(f"{level}: {reason}" for level, reason in facts.obstacles)
    remedy = facts.advice or "Install bubblewrap: apt install bubblewrap."
    if facts.level is None:
        return failed("sandbox", f"This host can run no workspaces. {why}", remedy)
    if facts.level not in STRONG_LEVELS:
        return warning("sandbox", f"Workspaces run at the level {facts.level}. {why}", remedy)
    return ok("sandbox", f"Workspaces run at the level {facts.level}.")


def judge_page(*, is_built: bool) -> Finding:
    if is_built:
        return ok("page", "The page is built.")
    return warning(
        "page",
        "The page is not built; browsers get the small one.",
        "Install the wheel of a release, or Node 20.19 or newer and run make page.",
    )


def judge_port(host: str, port: int, *, own: str | None, problem: str | None) -> Finding:
    """`own` is the address of the server that runs in this data directory."""
    if own is not None:
        return ok("port", f"The server of this data directory listens at {own}.")
    if problem is None:
        return ok("port", f"No server runs here, and {host}:{port} is free.")
    return failed(
        "port",
        f"chatd serve could not listen at {host}:{port}: {problem}",
        "End the program that listens there (ss -ltnp shows it), or set server.port or --port.",
    )


class KeyFacts(Struct, frozen=True, kw_only=True):
    """`start` is what a process decides at its start (`services.secret_keys.decide_start`);
    `sealed` counts the stored secrets, `unreadable` those that this process cannot open."""

    start: str
    current: str | None
    sealed: int = 0
    unreadable: int = 0


def judge_keys(facts: KeyFacts, remedy: str) -> Finding:
    lost = " If the key is lost: chatd admin rotate-keys --lost."
    match facts.start:
        case "wrong":
            text = f"The stored secrets need key {facts.current}; the keys here are others."
            return failed("keys", text, remedy + lost)
        case "missing":
            text = f"The stored secrets need key {facts.current}, and no key is here."
            return failed("keys", text, remedy + lost)
        case "outdated":
            text = f"The key was rotated: {facts.current} is not here."
            return failed("keys", text, remedy)
        case "create" | "register":
            return ok("keys", "No secret is stored yet; the first start makes a key.")
        case _ if facts.unreadable:
            text = f"{facts.unreadable} of {facts.sealed} stored secrets cannot be opened."
            return failed("keys", text, remedy + " Enter the secrets again that stay unreadable.")
        case _:
            return ok("keys", f"All {facts.sealed} stored secrets can be opened.")


# The deployment


def judge_replicas(replicas: Sequence[ReplicaReport], current_key: str | None) -> list[Finding]:
    """Three findings: their number and versions, their keys, their settings."""
    if not replicas:
        return [skipped("replicas", "No process runs on this database.")]
    return [
        _judge_versions(replicas),
        _judge_replica_keys(replicas, current_key),
        _judge_settings(replicas),
    ]


def _judge_versions(replicas: Sequence[ReplicaReport]) -> Finding:
    by_version: dict[str, list[str]] = {}
    for one in replicas:
        by_version.setdefault(one.version or "an older version", []).append(one.name)
    if len(by_version) == 1:
        count = _count(len(replicas), "process runs", "processes run")
        return ok("replicas", f"{count}, all of {next(iter(by_version))}.")
    named = "; ".join(f"{version}: {_some(names)}" for version, names in sorted(by_version.items()))
    return warning(
        "replicas",
        f"Processes of different versions run: {named}.",
        "Finish the upgrade: restart the older ones with the new version.",
    )


def _judge_replica_keys(replicas: Sequence[ReplicaReport], current: str | None) -> Finding:
    without = [one.name for one in replicas if current is not None and current not in one.key_ids]
    if without:
        return failed(
            "replica keys",
            f"These processes do not hold the current key {current}: {_some(without)}.",
            "A running server that has it sends it within a minute, unless server.join is off,"
            " CHATD_SECRET_KEYS is set or they have another secret of workspaces. Else copy the"
            " files secret and secret-keys of a host that has them into their data directories"
            " (mode 600), or set CHATD_SECRET_KEYS to the same value everywhere.",
        )
    return ok("replica keys", "All processes hold the current key.")


def _judge_settings(replicas: Sequence[ReplicaReport]) -> Finding:
    told = [one for one in replicas if one.settings]
    names = sorted({name for one in told for name in one.settings})
    different = [name for name in names if len({one.settings.get(name) for one in told}) > 1]
    if not different:
        return ok("replica settings", "All processes have the same settings.")
    return warning(
        "replica settings",
        f"Processes have different settings: {_some(different)}.",
        "Give all replicas the same chatd.toml and the same CHATD_* variables; chatd debug bundle"
        " lists whose differ.",
    )


def judge_runners(runners: Sequence[Runner], now: datetime, version: str) -> Finding:
    """Of those that an operator started: one inside a server goes with it, and that of a user is
    often away."""
    started = [one for one in runners if not one.builtin and one.owner_id is None]
    if not started:
        return ok("runners", "There is no runner beside those of servers and of users.")
    gone = sorted(one.name for one in started if not is_connected(one, now))
    gaps = [gap for one in started if (gap := explain_version_gap(one.version, version))]
    if gaps:
        return failed("runners", gaps[0], "Install the same version of chatd on that machine.")
    if gone:
        return warning(
            "runners",
            f"{_count(len(gone), 'runner is', 'runners are')} not connected: {_some(gone)}.",
            "Start chatd runner there, or remove it: chatd admin runners remove NAME.",
        )
    return ok("runners", f"{_count(len(started), 'runner is', 'runners are')} connected.")


# The way from a client


class StreamFacts(Struct, frozen=True, kw_only=True):
    """An event stream through the public address. `first_event_s` is None if no event came while
    the probe waited. Without a status and an error not even the headers came."""

    status: int | None
    media_type: str = ""
    first_event_s: float | None = None
    error: str = ""


def judge_stream(facts: StreamFacts, url: str) -> Finding:
    if facts.status is None and facts.error:
        return failed(
            "event stream",
            f"{url} did not answer: {facts.error}",
            "Check the address, its name in DNS and its certificate, and that the proxy runs.",
        )
    if facts.status not in (None, 200):
        return failed(
            "event stream",
            f"{url} answered {facts.status} to an event stream.",
            "Let the proxy pass /api/v1/events and the Authorization header on unchanged.",
        )
    if facts.status is not None and not facts.media_type.startswith("text/event-stream"):
        return failed(
            "event stream",
            f"What answers at {url} is not chatd: it sent {facts.media_type or 'no type'}.",
            "Let the proxy pass /api/v1 on to chatd.",
        )
    if facts.first_event_s is None or facts.first_event_s > FIRST_EVENT_WITHIN_S:
        return failed(
            "event stream",
            f"No event arrived through {url} within {FIRST_EVENT_WITHIN_S:g} s: something on the"
            " way buffers event streams, and answers appear all at once.",
            "Switch buffering off in the proxy: nginx proxy_buffering off, and no gzip for"
            " text/event-stream; Apache flushpackets=on; Caddy flush_interval -1.",
        )
    return ok("event stream", f"Events arrive at once through {url}.")


def judge_socket(status: int | None, error: str, url: str) -> Finding:
    """`status` is 101 for an open WebSocket whose first frame was answered."""
    if status == 101 and not error:
        return ok("websocket", f"A WebSocket works through {url}.")
    said = f"answered {status}" if status is not None and status != 101 else error
    return failed(
        "websocket",
        f"No WebSocket through {url}: {said}",
        "Let the proxy upgrade /api/v1/ws: nginx needs proxy_http_version 1.1 and the headers"
        ' Upgrade $http_upgrade and Connection "upgrade".',
    )


def judge_client_version(client: str, server: str) -> Finding:
    if client == server:
        return ok("version", f"This program and the server are chatd {server}.")
    return warning(
        "version",
        f"This program is chatd {client}, the server {server}.",
        "Use the same version of both; commands of one may be unknown to the other.",
    )


def judge_provider(name: str, *, is_ok: bool, text: str) -> Finding:
    check = f"provider {name}"
    if is_ok:
        return ok(check, text)
    remedy = f"Check its key and address: chatd providers test {name}; docs/models.md."
    return failed(check, text, remedy)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
