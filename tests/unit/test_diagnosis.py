"""What `chatd doctor` concludes from its measurements: each provoked fault with its remedy."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from chatd.domain.deployment.diagnosis import (
    DatabaseFacts,
    Finding,
    KeyFacts,
    ReplicaReport,
    SandboxFacts,
    StreamFacts,
    exit_code,
    failed,
    judge_backlog,
    judge_backups,
    judge_client_version,
    judge_clock,
    judge_database,
    judge_disk,
    judge_keys,
    judge_listener,
    judge_migrations,
    judge_nats,
    judge_page,
    judge_port,
    judge_provider,
    judge_replicas,
    judge_restore,
    judge_runners,
    judge_sandbox,
    judge_socket,
    judge_stream,
    judge_upgrade,
    ok,
    skipped,
    warning,
)
from tests.support.factories import AT
from tests.support.runners import own_runner, runner

GIB = 2**30
URL = "https://chat.example.com"
DATABASE = DatabaseFacts(
    version=180001,
    is_standby=False,
    connections=20,
    max_connections=100,
    bytes=10 * 2**20,
    server_offset_s=0.0,
)
READY = KeyFacts(start="ready", current="k2", sealed=3)
FLOWING = StreamFacts(status=200, media_type="text/event-stream", first_event_s=0.1)
ONE = ReplicaReport(name="a", version="0.2.0", key_ids=("k1", "k2"), settings={"server.url": "x"})
CONNECTED = runner("north", connected_at=AT, version="0.2.0")


def clock(offset_s: float) -> Finding:
    return judge_clock("clock", offset_s, ours="this host", theirs="The database")


def key_finding(start: str, unreadable: int = 0) -> Finding:
    return judge_keys(replace(READY, start=start, unreadable=unreadable), "Copy the file.")


FAULTS: dict[str, tuple[Finding | Sequence[Finding], str, str, str, str]] = {
    "an old database": (
        judge_database(replace(DATABASE, version=140009)),
        *("database", "failed", "PostgreSQL 14 is too old", "PostgreSQL 15 or newer"),
    ),
    "a standby": (
        judge_database(replace(DATABASE, is_standby=True)),
        *("database", "failed", "standby", "target_session_attrs=read-write"),
    ),
    "a database that forgets commits": (
        judge_database(replace(DATABASE, unsafe={"fsync": "off"})),
        *("database settings", "failed", "fsync = off", "Set fsync to on"),
    ),
    "no connections left": (
        judge_database(replace(DATABASE, connections=90)),
        *("connections", "warning", "90 of 100", "max_connections"),
    ),
    "chats wait and no worker runs": (
        judge_backlog(61, workers=0),
        *("waiting chats", "failed", "61 s", "without --no-worker"),
    ),
    "chats wait for busy workers": (
        judge_backlog(61, workers=2),
        *("waiting chats", "warning", "61 s", "worker.slots"),
    ),
    "a migration is missing": (
        judge_migrations(["0003_process_reports.sql"], []),
        *("migrations", "failed", "1 migration is pending: 0003", "chatd migrate up"),
    ),
    "a newer database": (
        judge_migrations([], ["0009_later"]),
        *("migrations", "warning", "0009_later", "Upgrade this replica"),
    ),
    "a restored copy": (
        judge_restore(AT),
        *("restore", "warning", "backup of 2026-03-27 09:00", "chatd admin confirm-restore"),
    ),
    "no backup yet": (
        judge_backups(24, None, None),
        *("backups", "warning", "There is none", "within minutes"),
    ),
    "an old backup": (
        judge_backups(24, 49 * 3600, None),
        *("backups", "warning", "49.0 hours old", "log"),
    ),
    "a failed backup": (
        judge_backups(24, 3600, "cannot write /mnt: No space left"),
        *("backups", "failed", "No space left", "docs/backup.md"),
    ),
    "a clock that is a little late": (
        clock(-3),
        *("clock", "warning", "3.0 s behind this host", "set-ntp"),
    ),
    "a clock that is far ahead": (
        clock(30),
        *("clock", "failed", "30.0 s ahead of this host", "set-ntp"),
    ),
    "notifications that a pooler swallows": (
        judge_listener(None),
        *("listener", "failed", "did not arrive", "not a connection pooler"),
    ),
    "no NATS": (
        judge_nats({"nats://a:4222": "No answer within 5 s."}),
        *("notifications", "failed", "nats://a:4222: No answer", "server.notifications"),
    ),
    "one of two NATS servers": (
        judge_nats({"nats://a:4222": 0.001, "nats://b:4222": "refused"}),
        *("notifications", "warning", "nats://b:4222: refused", "server.notifications"),
    ),
    "a full disk": (
        judge_disk("disk", "/data", 100 * 2**20, 100 * GIB),
        *("disk", "failed", "0.1 of 100.0 GiB are free at /data", "Free space"),
    ),
    "a disk that fills up": (
        judge_disk("disk", "/data", 3 * GIB, 100 * GIB),
        *("disk", "warning", "3.0 of 100.0 GiB", "enlarge"),
    ),
    "no sandbox": (
        judge_sandbox(SandboxFacts(level=None, obstacles=[("bwrap", "not installed")])),
        *("sandbox", "failed", "bwrap: not installed", "apt install bubblewrap"),
    ),
    "a weak sandbox": (
        judge_sandbox(SandboxFacts(level="unsafe", advice="Allow user namespaces.")),
        *("sandbox", "warning", "level unsafe", "Allow user namespaces."),
    ),
    "no page": (
        judge_page(is_built=False),
        *("page", "warning", "not built", "make page"),
    ),
    "a port that is taken": (
        judge_port("127.0.0.1", 7870, own=None, problem="address already in use"),
        *("port", "failed", "127.0.0.1:7870: address already in use", "--port"),
    ),
    "a wrong key": (key_finding("wrong"), "keys", "failed", "need key k2", "--lost"),
    "no key": (key_finding("missing"), "keys", "failed", "no key is here", "--lost"),
    "an older key": (key_finding("outdated"), "keys", "failed", "was rotated", "Copy the file."),
    "unreadable secrets": (
        key_finding("ready", unreadable=2),
        *("keys", "failed", "2 of 3 stored secrets", "Enter the secrets again"),
    ),
    "replicas of two versions": (
        judge_replicas([ONE, replace(ONE, name="b", version="")], "k2"),
        *("replicas", "warning", "0.2.0: a; an older version: b", "restart the older"),
    ),
    "a replica without the current key": (
        judge_replicas([ONE, replace(ONE, name="b", key_ids=("k1",))], "k2"),
        *("replica keys", "failed", "current key k2: b", "secret-keys"),
    ),
    "replicas with different settings": (
        judge_replicas([ONE, replace(ONE, name="b", settings={"server.url": "y"})], "k2"),
        *("replica settings", "warning", "different settings: server.url", "chatd.toml"),
    ),
    "a replica that lacks a setting": (
        judge_replicas([ONE, replace(ONE, name="b", settings={"oidc.name": "z"})], "k2"),
        *("replica settings", "warning", "oidc.name, server.url", "chatd.toml"),
    ),
    "a runner that is gone": (
        judge_runners([CONNECTED], AT + timedelta(minutes=5), "0.2.0"),
        *("runners", "warning", "1 runner is not connected: north", "chatd runner"),
    ),
    "a runner of another version": (
        judge_runners([replace(CONNECTED, version="0.9.0")], AT, "0.2.0"),
        *("runners", "failed", "0.9", "same version"),
    ),
    "an address that does not answer": (
        judge_stream(StreamFacts(status=None, error="connection refused"), URL),
        *("event stream", "failed", "connection refused", "certificate"),
    ),
    "a proxy that drops the stream": (
        judge_stream(StreamFacts(status=502), URL),
        *("event stream", "failed", "answered 502", "Authorization"),
    ),
    "a proxy that leads elsewhere": (
        judge_stream(StreamFacts(status=200, media_type="text/html"), URL),
        *("event stream", "failed", "is not chatd", "/api/v1"),
    ),
    "a proxy that buffers all": (
        judge_stream(StreamFacts(status=None), URL),
        *("event stream", "failed", "buffers", "proxy_buffering off"),
    ),
    "a proxy that buffers events": (
        judge_stream(replace(FLOWING, first_event_s=None), URL),
        *("event stream", "failed", "buffers", "proxy_buffering off"),
    ),
    "a proxy that holds events back": (
        judge_stream(replace(FLOWING, first_event_s=5.1), URL),
        *("event stream", "failed", "buffers", "flush_interval -1"),
    ),
    "a proxy without WebSockets": (
        judge_socket(400, "the upgrade was refused", URL),
        *("websocket", "failed", "answered 400", "Upgrade $http_upgrade"),
    ),
    "a WebSocket that is closed": (
        judge_socket(101, "it was closed at once", URL),
        *("websocket", "failed", "closed at once", "Upgrade"),
    ),
    "a client of another version": (
        judge_client_version("0.1.0", "0.2.0"),
        *("version", "warning", "chatd 0.1.0, the server 0.2.0", "same version"),
    ),
    "a provider that refuses": (
        judge_provider("main", is_ok=False, text="The key is not valid."),
        *("provider main", "failed", "not valid", "chatd providers test main"),
    ),
    "an upgrade with migrations": (
        judge_upgrade(["0003_a.sql"], [], [], "0.2.0"),
        *("schema", "warning", "applies 1 migration: 0003_a.sql", "backup"),
    ),
    "an upgrade to an older version": (
        judge_upgrade([], ["0009_later"], [], "0.2.0"),
        *("schema", "failed", "0009_later", "newer one"),
    ),
    "an upgrade beside older replicas": (
        judge_upgrade([], [], [replace(ONE, version="0.1.0")], "0.2.0"),
        *("replicas", "warning", "0.1.0", "one after the other"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_and_says_what_to_do(fault: str) -> None:
    found, check, verdict, text, remedy = FAULTS[fault]
    findings = [found] if isinstance(found, Finding) else found
    wrong = [one for one in findings if one.verdict != "ok"]
    assert [(one.check, one.verdict) for one in wrong] == [(check, verdict)]
    assert text in wrong[0].text
    assert remedy in wrong[0].remedy


SOUND: dict[str, Finding | Sequence[Finding]] = {
    "database": judge_database(DATABASE),
    "backlog": judge_backlog(59, workers=0),
    "migrations": judge_migrations([], []),
    "backups": judge_backups(24, 47 * 3600, None),
    "backups of another host": judge_backups(0, 3600, None),
    "clock": clock(1.9),
    "listener": judge_listener(0.001),
    "NATS": judge_nats({"nats://a:4222": 0.001, "nats://b:4222": 0.002}),
    "disk": judge_disk("disk", "/data", 20 * GIB, 100 * GIB),
    "sandbox": judge_sandbox(SandboxFacts(level="bwrap")),
    "page": judge_page(is_built=True),
    "free port": judge_port("127.0.0.1", 7870, own=None, problem=None),
    "own port": judge_port("127.0.0.1", 7870, own="http://127.0.0.1:7871", problem=None),
    "first key": key_finding("create"),
    "given key": key_finding("register"),
    "keys": key_finding("ready"),
    "replicas": judge_replicas([ONE, replace(ONE, name="b")], "k2"),
    "a replica that tells no settings": judge_replicas([ONE, replace(ONE, settings={})], "k2"),
    "no key yet": judge_replicas([replace(ONE, key_ids=())], None),
    "runners": judge_runners([CONNECTED], AT, "0.2.0"),
    "a server's own runner": judge_runners([runner(builtin=True)], AT, "0.2.0"),
    "a user's own runner": judge_runners([own_runner("desk")], AT + timedelta(days=1), "0.2.0"),
    "stream": judge_stream(FLOWING, URL),
    "socket": judge_socket(101, "", URL),
    "version": judge_client_version("0.1.0", "0.1.0"),
    "provider": judge_provider("main", is_ok=True, text="It answered."),
    "upgrade": judge_upgrade([], [], [ONE], "0.2.0"),
}


@pytest.mark.parametrize("case", SOUND)
def test_what_is_sound_has_no_remedy(case: str) -> None:
    found = SOUND[case]
    findings = [found] if isinstance(found, Finding) else found
    assert {(one.verdict, one.remedy) for one in findings} == {("ok", "")}


def test_only_a_failed_check_changes_the_exit_code() -> None:
    fine = [ok("a", ""), warning("b", "", ""), skipped("c", "")]
    assert exit_code(fine) == 0
    assert exit_code([*fine, failed("d", "", "")]) == 1


def test_a_check_that_cannot_be_made_is_skipped() -> None:
    assert [one.verdict for one in judge_replicas([], "k2")] == ["skipped"]
    assert judge_sandbox(None).verdict == "skipped"
