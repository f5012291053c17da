"""`chatd doctor` on a real database: what is wrong with it, with keys and with replicas."""

from itertools import count
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from chatd.clock import SystemClock
from chatd.domain.deployment.diagnosis import Finding, ReplicaReport, SandboxFacts
from chatd.domain.ports import Env
from chatd.sealed_secrets import new_key, seal_context
from chatd.services.operation.diagnosis import Doctor, HostFacts
from chatd.services.operation.secret_keys import KeySource, SecretKeys, key_source
from chatd.store.database import sealed_columns
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from chatd.store.deployment import diagnosis
from tests.support.clock import FakeClock
from tests.support.factories import OWNER
from tests.support.proxy import Proxy
from tests.support.runners import insert_runner, insert_runner_token, runner, token_id
from tests.support.store import session_to

VERSION = "0.1.0"
REPORT = ReplicaReport(name="a", version=VERSION, settings={"server.url": "x"})


NUMBERS = count(1)


def new_id() -> UUID:
    return UUID(int=next(NUMBERS))


def ignore(event: str, **fields: object) -> None:
    del event, fields


async def no_sandbox() -> SandboxFacts | None:
    return None


def doctor(pool: Pool, dsn: str, source: KeySource) -> Doctor:
    host = HostFacts(
        data_dir=source.path.parent, version=VERSION, is_page_built=True, sandbox=no_sandbox
    )
    connect = ConnectConfig(dsn=dsn, connect_timeout_s=2)
    return Doctor(pool, connect, source, host, SystemClock())


def by_check(found: list[Finding]) -> dict[str, Finding]:
    return {one.check: one for one in found}


def troubles(found: list[Finding]) -> dict[str, str]:
    return {one.check: one.verdict for one in found if one.verdict in ("warning", "failed")}


@pytest.fixture
def source(tmp_path: Path) -> KeySource:
    return key_source(tmp_path, {})


@pytest.fixture
async def keys(pool: Pool, source: KeySource, clock: FakeClock) -> SecretKeys:
    """The keys of a running replica."""
    env = Env(
        clock=clock,
        emit=ignore,
        new_id=new_id,
        new_change_id=lambda: pytest.fail("none"),
    )
    keys = SecretKeys(source, env, "a", version=VERSION, settings=REPORT.settings)
    await keys.start(pool)
    return keys


async def test_a_sound_deployment_has_no_findings(
    pool: Pool, dsn: str, source: KeySource, keys: SecretKeys
) -> None:
    found = await doctor(pool, dsn, source).examine()
    # The servers of tests lose confirmed commits to be fast, which is found.
    assert troubles(found).keys() <= {"database settings", "disk"}
    checks = by_check(found)
    assert checks["replicas"].text == "1 process runs, all of 0.1.0."
    assert checks["listener"].verdict == "ok"
    assert checks["sandbox"].verdict == "skipped"


async def test_a_database_that_does_not_answer_is_one_finding_and_the_host_is_examined(
    pool: Pool, proxy: Proxy, source: KeySource
) -> None:
    proxy.disconnect()
    found = await doctor(pool, proxy.dsn, source).examine()
    assert [one.check for one in found] == ["database", "disk", "sandbox", "page"]
    assert found[0].verdict == "failed"
    assert "Check that PostgreSQL runs" in found[0].remedy


async def test_a_missing_migration_is_found_and_what_needs_the_tables_is_not_asked(
    empty_dsn: str, source: KeySource
) -> None:
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=empty_dsn)))
    try:
        found = by_check(await doctor(pool, empty_dsn, source).examine())
    finally:
        await pool.close()
    assert found["migrations"].verdict == "failed"
    assert "0001_schema.sql" in found["migrations"].text
    assert "keys" not in found


async def test_a_key_that_does_not_open_the_secrets_is_found(
    pool: Pool, dsn: str, tmp_path: Path, keys: SecretKeys
) -> None:
    other = key_source(tmp_path / "other", {"CHATD_SECRET_KEYS": new_key().encode()})
    found = by_check(await doctor(pool, dsn, other).examine())
    assert found["keys"].verdict == "failed"
    assert "the keys here are others" in found["keys"].text
    assert "rotate-keys --lost" in found["keys"].remedy
    without = by_check(await doctor(pool, dsn, key_source(tmp_path / "none", {})).examine())
    assert "no key is here" in without["keys"].text


async def test_a_secret_that_cannot_be_opened_is_counted(
    pool: Pool, dsn: str, source: KeySource, keys: SecretKeys
) -> None:
    good, bad = new_id(), new_id()
    for one, at in ((good, good), (bad, good)):
        sealed = keys.ring.seal("key", seal_context("webhooks", "secret", at))
        await pool.execute(
            """INSERT INTO webhooks (id, owner_id, url, events, secret)
               VALUES ($1, $2, 'https://example.com', '{chat.idle}', $3)""",
            *(one, OWNER, sealed),
        )
    found = by_check(await doctor(pool, dsn, source).examine())
    assert found["keys"].text == "1 of 2 stored secrets cannot be opened."


async def test_a_file_of_keys_that_cannot_be_read_is_a_finding(
    pool: Pool, dsn: str, source: KeySource, keys: SecretKeys
) -> None:
    source.path.write_text("no key")
    found = by_check(await doctor(pool, dsn, source).examine())
    assert found["keys"].verdict == "failed"
    assert str(source.path) in found["keys"].text


async def test_replicas_with_other_keys_settings_and_versions_are_named(
    pool: Pool, dsn: str, source: KeySource, keys: SecretKeys
) -> None:
    other = ReplicaReport(name="b", version="0.0.9", key_ids=("k",), settings={"server.url": "y"})
    await sealed_columns.renew_holder(pool, new_id(), other)
    found = by_check(await doctor(pool, dsn, source).examine())
    assert "0.0.9: b" in found["replicas"].text
    assert found["replica keys"].text.endswith(": b.")
    assert found["replica settings"].text == "Processes have different settings: server.url."


async def test_a_runner_that_is_gone_is_named(
    pool: Pool, dsn: str, source: KeySource, keys: SecretKeys
) -> None:
    await insert_runner_token(pool)
    north = runner("r-1", name="north", version=VERSION, token_id=token_id())
    await insert_runner(pool, north, connected=False)
    found = by_check(await doctor(pool, dsn, source).examine())
    assert "not connected: north" in found["runners"].text


async def test_an_account_without_privileges_may_ask_all_that_is_needed(dsn: str) -> None:
    async with session_to(dsn) as session:
        await session.execute("CREATE ROLE plain_reader LOGIN")
        try:
            parts = urlsplit(dsn)
            mine = f"plain_reader@{parts.netloc.rpartition('@')[2]}"
            config = ConnectConfig(dsn=parts._replace(netloc=mine).geturl())
            facts = await diagnosis.read_facts(config, SystemClock().now)
            assert facts.connections >= 2
            assert abs(facts.server_offset_s) < 2
        finally:
            await session.execute("DROP ROLE plain_reader")
