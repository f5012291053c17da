"""Keys of sealed secrets: which process has which, and how they are rotated."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path
from typing import Final, LiteralString
from uuid import UUID

import pytest

from chatd.domain.chat.lease import LEASE_TTL_S
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env
from chatd.sealed_secrets import KeyRing, SecretKey, SecretKeyMissing, check_value, new_key
from chatd.services.operation.key_rotation import HOLDERS_WAIT_S, KeyRotation, RotationIncomplete
from chatd.services.operation.secret_keys import (
    KEY_FILE,
    KEYS_REFRESH_INTERVAL_S,
    KeySource,
    KeyStart,
    SecretKeys,
    WrongSecretKey,
    decide_start,
    key_source,
)
from chatd.store.database import migrator, sealed_columns
from chatd.store.database.conn import Conn, ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from chatd.store.database.sealed_columns import SEALED_COLUMNS, KeyRecord, SealedColumn
from tests.support.clock import FakeClock

ONE, TWO, THREE = (new_key() for _ in range(3))
CURRENT = KeyRecord(id=ONE.id, check_value=check_value(ONE), state="current")
RETIRED = KeyRecord(id=TWO.id, check_value=check_value(TWO), state="retired")
FORGED = KeyRecord(id=ONE.id, check_value=check_value(TWO), state="current")


@pytest.mark.parametrize(
    ("known", "held", "start"),
    [
        ([], [], "create"),
        ([], [ONE], "register"),
        ([CURRENT], [], "missing"),
        ([CURRENT], [ONE], "ready"),
        ([CURRENT], [TWO, ONE], "ready"),
        ([CURRENT], [TWO], "wrong"),
        ([RETIRED, CURRENT], [TWO], "outdated"),
        ([RETIRED, CURRENT], [THREE], "wrong"),
        ([FORGED], [ONE], "wrong"),
    ],
)
def test_what_a_process_does_with_the_keys_that_it_holds(
    known: list[KeyRecord], held: list[SecretKey], start: KeyStart
) -> None:
    assert decide_start(known, held) == start


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: str, **fields: object) -> None:
        self.seen.append((event, fields))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]


NUMBERS = count(1)


def new_id() -> UUID:
    return UUID(int=next(NUMBERS))


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def env(clock: FakeClock, events: Events) -> Env:
    return Env(clock=clock, emit=events, new_id=new_id, new_change_id=lambda: pytest.fail("none"))


def host(path: Path, name: str) -> KeySource:
    return key_source(path / name, {})


async def test_the_first_start_makes_a_key_file_that_only_this_account_reads(
    pool: Pool, env: Env, events: Events, tmp_path: Path
) -> None:
    keys = SecretKeys(host(tmp_path, "a"), env, "a")
    await keys.start(pool)
    file = tmp_path / "a" / KEY_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert events.names == ["secret_key_created"]
    sealed = keys.ring.seal("secret", "here")

    again = SecretKeys(host(tmp_path, "a"), env, "a")
    await again.start(pool)
    assert again.ring.open(sealed, "here") == "secret"
    assert file.read_text().strip() not in repr(events.seen)


async def test_a_host_without_the_key_file_starts_and_reads_it_once_it_is_copied(
    pool: Pool, env: Env, events: Events, tmp_path: Path, clock: FakeClock
) -> None:
    first, second = (SecretKeys(host(tmp_path, name), env, name) for name in "ab")
    await first.start(pool)
    await second.start(pool)
    copy = tmp_path / "b" / KEY_FILE
    assert events.seen[-1] == (
        "secret_key_missing",
        {"key": first.ring.current, "file": str(copy)},
    )
    assert not copy.exists()
    sealed = first.ring.seal("secret", "here")
    with pytest.raises(SecretKeyMissing, match=str(copy)):
        second.ring.open(sealed, "here")
    with pytest.raises(SecretKeyMissing, match="CHATD_SECRET_KEYS"):
        second.ring.seal("secret", "here")

    copy.parent.mkdir()
    copy.write_bytes((tmp_path / "a" / KEY_FILE).read_bytes())
    async with asyncio.TaskGroup() as group:
        run = group.create_task(second.run(pool))
        assert await clock.advance_past("secret_keys") == KEYS_REFRESH_INTERVAL_S
        await clock.wait_for_sleeper("secret_keys")
        run.cancel()
    assert second.ring.open(sealed, "here") == "secret"


async def test_hosts_that_start_together_on_an_empty_database_agree_on_one_key(
    pool: Pool, env: Env, tmp_path: Path
) -> None:
    hosts = [SecretKeys(host(tmp_path, name), env, name) for name in "abcd"]
    await asyncio.gather(*(one.start(pool) for one in hosts))
    made = [name for name in "abcd" if (tmp_path / name / KEY_FILE).exists()]
    assert len(made) == 1
    assert len(await sealed_columns.list_keys(pool)) == 1


async def test_a_key_file_of_another_database_ends_the_start_with_what_to_do(
    pool: Pool, env: Env, tmp_path: Path
) -> None:
    await SecretKeys(host(tmp_path, "a"), env, "a").start(pool)
    stray = new_key()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / KEY_FILE).write_text(stray.encode())
    with pytest.raises(WrongSecretKey) as refused:
        await SecretKeys(host(tmp_path, "b"), env, "b").start(pool)
    text = refused.value.message
    assert f"this server holds {stray.id}. Copy {KEY_FILE} from" in text
    assert "rotate-keys --lost" in text
    assert stray.encode() not in text


async def test_a_damaged_key_file_is_named(pool: Pool, env: Env, tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text("hunter2")
    with pytest.raises(ChatdError, match=f"{KEY_FILE}: a key is 32 bytes in base64") as refused:
        await SecretKeys(key_source(tmp_path, {}), env, "a").start(pool)
    assert "hunter2" not in refused.value.message


async def test_keys_of_the_environment_need_no_file(pool: Pool, env: Env, tmp_path: Path) -> None:
    given = {"CHATD_SECRET_KEY": ONE.encode()}
    keys = SecretKeys(key_source(tmp_path, given), env, "a")
    await keys.start(pool)
    assert keys.ring.current == ONE.id
    assert not (tmp_path / KEY_FILE).exists()


def test_an_invalid_variable_is_named_without_its_value(tmp_path: Path) -> None:
    with pytest.raises(ChatdError, match="CHATD_SECRET_KEYS: a key is 32 bytes") as refused:
        key_source(tmp_path, {"CHATD_SECRET_KEYS": "hunter2"})
    assert "hunter2" not in refused.value.message


# Rotation

NOTES: Final = SealedColumn(table="notes", column="sealed_text")
CREATE_NOTES: Final = """
    CREATE TABLE notes (id uuid PRIMARY KEY, sealed_text text, sealed_text_key_id text
        GENERATED ALWAYS AS (split_part(sealed_text, '.', 2)) STORED REFERENCES secret_keys (id))"""
INSERT_NOTE: Final[LiteralString] = "INSERT INTO notes VALUES ($1, $2)"


@pytest.fixture
async def notes(empty_dsn: str) -> AsyncGenerator[Pool]:
    """A migrated database with a table that has a sealed column."""
    await migrator.up(empty_dsn)
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=empty_dsn)))
    await pool.execute(CREATE_NOTES)
    yield pool
    await pool.close()


async def write_notes(conn: Conn, ring: KeyRing, number: int) -> list[UUID]:
    ids = [new_id() for _ in range(number)]
    for one in ids:
        await conn.execute(INSERT_NOTE, one, ring.seal(str(one), NOTES.context(one)))
    return ids


async def read_notes(conn: Conn, ring: KeyRing) -> set[str]:
    rows = await conn.fetch("SELECT id, sealed_text FROM notes")
    return {ring.open(row["sealed_text"], NOTES.context(row["id"])) for row in rows}


def rotation(pool: Pool, source: KeySource, clock: FakeClock, said: list[str]) -> KeyRotation:
    return KeyRotation(pool, source, clock, said.append, [NOTES])


async def test_a_rotation_seals_every_value_again_and_the_old_key_can_go(
    notes: Pool, env: Env, clock: FakeClock, tmp_path: Path
) -> None:
    source, said = host(tmp_path, "a"), list[str]()
    keys = SecretKeys(source, env, "a")
    await keys.start(notes)
    old = keys.ring.current
    assert old is not None
    number = sealed_columns.RESEAL_BATCH * 2 + 1
    ids = await write_notes(notes, keys.ring, number)
    await keys.stop(notes)

    work = rotation(notes, source, clock, said)
    result = await work.rotate()
    assert (result.resealed, result.unreadable, result.unused) == (number, 0, (old,))
    await keys.refresh(notes)
    assert keys.ring.current == result.key_id != old
    assert await read_notes(notes, keys.ring) == {str(one) for one in ids}

    assert await work.remove_unused() == (old,)
    await keys.refresh(notes)
    assert list(keys.ring.key_ids) == [result.key_id]
    assert await read_notes(notes, keys.ring) == {str(one) for one in ids}
    assert (tmp_path / "a" / KEY_FILE).stat().st_mode & 0o777 == 0o600


async def test_a_key_becomes_current_only_when_every_running_process_has_it(
    notes: Pool, env: Env, clock: FakeClock, tmp_path: Path
) -> None:
    source, said = host(tmp_path, "a"), list[str]()
    first = SecretKeys(source, env, "host a")
    await first.start(notes)
    (tmp_path / "b").mkdir()
    file, copy = tmp_path / "a" / KEY_FILE, tmp_path / "b" / KEY_FILE
    copy.write_bytes(file.read_bytes())
    second = SecretKeys(host(tmp_path, "b"), env, "host b")
    await second.start(notes)
    old = second.ring.current
    ids = await write_notes(notes, first.ring, 3)

    async with asyncio.TaskGroup() as group:
        rotating = group.create_task(refused(rotation(notes, source, clock, said)))
        for _ in range(HOLDERS_WAIT_S):
            await clock.wait_for_sleeper("key_holders")
            await first.refresh(notes)
            await second.refresh(notes)
            clock.advance(1)
        text = await rotating
    assert "do not have key" in text
    assert "yet: host b. Copy" in text
    assert second.ring.current == old
    assert await read_notes(notes, second.ring) == {str(one) for one in ids}

    copy.write_bytes(file.read_bytes())
    await second.refresh(notes)
    result = await rotation(notes, source, clock, said).rotate()
    assert result.resealed == 3
    assert file.read_text().count("\n") == 2, "the second run goes on with the key of the first"
    # A process that has not read the database since opens the new values, seals with the old key.
    assert second.ring.current == old
    assert await read_notes(notes, second.ring) == {str(one) for one in ids}


AGE_HOLDERS: Final[LiteralString] = """
    UPDATE secret_key_holders SET renewed_at = now() - $1::float8 * interval '1 s'"""


async def test_a_process_counts_as_dead_for_a_rotation_when_its_lease_would_have_ended(
    notes: Pool, env: Env, tmp_path: Path
) -> None:
    assert LEASE_TTL_S + KEYS_REFRESH_INTERVAL_S <= HOLDERS_WAIT_S, "one run outwaits a death"
    await SecretKeys(host(tmp_path, "a"), env, "killed").start(notes)
    await notes.execute(AGE_HOLDERS, LEASE_TTL_S - 5)
    assert await sealed_columns.list_without(notes, "new", LEASE_TTL_S) == ["killed"]
    await notes.execute(AGE_HOLDERS, LEASE_TTL_S + 1)
    assert await sealed_columns.list_without(notes, "new", LEASE_TTL_S) == []


async def refused(work: KeyRotation) -> str:
    with pytest.raises(RotationIncomplete) as refused:
        await work.rotate()
    return refused.value.message


async def test_a_value_that_a_late_process_seals_with_the_old_key_is_sealed_by_the_next_run(
    notes: Pool, env: Env, clock: FakeClock, tmp_path: Path
) -> None:
    source, said = host(tmp_path, "a"), list[str]()
    late = SecretKeys(source, env, "a")
    await late.start(notes)
    await late.stop(notes)
    work = rotation(notes, source, clock, said)
    result = await work.rotate()
    await write_notes(notes, late.ring, 1)
    assert await work.remove_unused() == ()
    again = await work.rotate()
    assert (again.key_id, again.resealed) == (result.key_id, 1)

    await work.remove_unused()
    with pytest.raises(ChatdError):
        await write_notes(notes, late.ring, 1)


async def test_a_rotation_that_died_in_the_middle_goes_on(
    notes: Pool, env: Env, clock: FakeClock, tmp_path: Path
) -> None:
    """The key is in the file only; then it is staged; then some values are sealed again."""
    source, said = host(tmp_path, "a"), list[str]()
    keys = SecretKeys(source, env, "a")
    await keys.start(notes)
    ids = await write_notes(notes, keys.ring, 5)
    await keys.stop(notes)
    new = new_key()
    source.write([*source.read(), new])
    await keys.refresh(notes)
    assert await read_notes(notes, keys.ring) == {str(one) for one in ids}
    await keys.stop(notes)
    staged = KeyRecord(id=new.id, check_value=check_value(new), state="staged")
    await sealed_columns.insert_key(notes, staged)
    async with notes.transaction() as session:
        await sealed_columns.make_current(session, new.id)
    await keys.refresh(notes)
    await write_notes(notes, keys.ring, 1)
    await keys.stop(notes)

    result = await rotation(notes, source, clock, said).rotate()
    assert (result.key_id, result.resealed) == (new.id, 5)


async def test_after_the_loss_of_the_key_new_values_can_be_sealed(
    notes: Pool, env: Env, clock: FakeClock, tmp_path: Path
) -> None:
    said = list[str]()
    lost = SecretKeys(host(tmp_path, "a"), env, "a")
    await lost.start(notes)
    await write_notes(notes, lost.ring, 2)
    await lost.stop(notes)
    source = host(tmp_path, "b")
    work = rotation(notes, source, clock, said)
    assert "use --lost" in await refused(work)
    result = await work.rotate(lost=True)
    assert (result.resealed, result.unreadable, result.unused) == (0, 2, ())
    keys = SecretKeys(source, env, "b")
    await keys.start(notes)
    assert keys.ring.open(keys.ring.seal("new", "here"), "here") == "new"


async def test_keys_of_the_environment_are_rotated_by_a_new_one_at_the_end(
    notes: Pool, env: Env, clock: FakeClock, tmp_path: Path
) -> None:
    said = list[str]()
    old = key_source(tmp_path, {"CHATD_SECRET_KEYS": ONE.encode()})
    keys = SecretKeys(old, env, "a")
    await keys.start(notes)
    await write_notes(notes, keys.ring, 1)
    await keys.stop(notes)
    assert "has no new key" in await refused(rotation(notes, old, clock, said))
    both = key_source(tmp_path, {"CHATD_SECRET_KEYS": f"{ONE.encode()}, {TWO.encode()}"})
    result = await rotation(notes, both, clock, said).rotate()
    assert (result.key_id, result.resealed) == (TWO.id, 1)
    assert not (tmp_path / KEY_FILE).exists()


async def test_every_sealed_column_of_the_schema_is_listed(pool: Pool) -> None:
    """A rotation would leave the values of another column behind."""
    rows = await pool.fetch(
        """SELECT table_name, column_name FROM information_schema.columns
           WHERE table_schema = 'public' AND column_name LIKE '%\\_key\\_id'
             AND is_generated = 'ALWAYS'"""
    )
    found = {(row["table_name"], row["column_name"].removesuffix("_key_id")) for row in rows}
    assert found == {(one.table, one.column) for one in SEALED_COLUMNS}
    for column in SEALED_COLUMNS:
        await sealed_columns.count_by_key(pool, [column])
        await sealed_columns.reseal_batch(pool, column, "none", lambda _sealed, _context: None)
