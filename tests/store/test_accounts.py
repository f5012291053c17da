"""Users, credentials, groups, sign-in attempts and the audit log, on a real database."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID, uuid5

import pytest

from chatd.domain.access.accounts import AuditEntry, Credential, CredentialKind, User
from chatd.domain.access.audit_text import actor_text, summary
from chatd.domain.access.permissions import ADMIN_USER_ID, Actor, Role, SystemActor, UserActor
from chatd.domain.chat.states import State
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError, Conflict, Forbidden, InvalidInput, NotFound
from chatd.domain.ids import CredentialId, GroupId, UserId
from chatd.domain.tool_policy.rules import ToolPolicy, ToolRule
from chatd.store.account import audit, credentials, groups, skills, users
from chatd.store.account.audit import AuditFilter, AuditPosition
from chatd.store.account.credentials import NewCredential
from chatd.store.account.skills import SkillPatch
from chatd.store.account.users import NewUser, UserChanges
from chatd.store.database import sealed_columns
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.notifications import CONFIG_CHANNEL
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import KeyRecord
from chatd.store.deployment import tool_policies, webhooks
from chatd.store.model import providers
from chatd.store.model.providers import StoredKey
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import insert_seed, plan_of, session_to

T = TypeVar("T")

ADMIN = UserActor(user_id=ADMIN_USER_ID, role="admin")
SYSTEM = SystemActor(reason="test")
NUMBERS = itertools.count(1000)


def user_id(name: str) -> UserId:
    return UserId(uuid5(UUID(int=0), name))


def actor(name: str, role: Role = "member", *scopes: str) -> UserActor:
    limit = frozenset(scopes) if scopes else None
    return UserActor(user_id=user_id(name), role=role, scopes=limit)


async def commit(pool: Pool, work: Callable[[DatabaseSession], Awaitable[T]]) -> T:
    async with pool.transaction() as session:
        return await work(session)


async def add(pool: Pool, name: str, role: Role = "member", **fields: object) -> User:
    new = NewUser(id=user_id(name), username=name, role=role, **fields)  # pyright: ignore[reportArgumentType]
    return await commit(pool, lambda session: users.create(session, ADMIN, new, ip="1.2.3.4"))


async def refused(pool: Pool, work: Callable[[DatabaseSession], Awaitable[object]]) -> str:
    with pytest.raises(ChatdError) as error:
        await commit(pool, work)
    return error.value.code


async def grant(
    pool: Pool,
    by: Actor,
    name: str,
    kind: CredentialKind = "token",
    **fields: object,
) -> Credential:
    """A credential of the user `name`, with a secret of the same name."""
    new = NewCredential(
        id=CredentialId(UUID(int=next(NUMBERS))),
        kind=kind,
        user_id=user_id(name),
        secret_sha256=f"{name} {kind}".encode(),
        **fields,  # pyright: ignore[reportArgumentType]
    )
    return await credentials.insert(pool, by, new)


@asynccontextmanager
async def heard_changes(dsn: str) -> AsyncGenerator[asyncio.Queue[str]]:
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with session_to(dsn) as session:
        await session.listen(CONFIG_CHANNEL, lambda _pid, payload: heard.put_nowait(payload))
        yield heard


async def newest_entry(pool: Pool) -> AuditEntry:
    (entry,) = await audit.list_page(pool, ADMIN, AuditFilter(), before=None, limit=1)
    return entry


# Users


async def test_a_user_is_created_read_changed_and_deleted_with_an_entry_for_each(
    pool: Pool,
) -> None:
    ada = await add(pool, "ada", email="ada@example.com", password_hash="a-hash")
    assert (ada.username, ada.role, ada.has_password) == ("ada", "member", True)
    entry = await newest_entry(pool)
    assert (entry.actor, entry.actor_id, entry.ip) == ("admin", ADMIN_USER_ID, "1.2.3.4")
    assert (entry.action, entry.object_id) == ("user.create", str(ada.id))
    assert "a-hash" not in str(entry)

    changes = UserChanges(name="Ada", role="viewer", status="suspended")
    changed = await commit(pool, lambda session: users.update(session, ADMIN, ada.id, changes))
    assert (changed.name, changed.role, changed.status, changed.email) == (
        *("Ada", "viewer", "suspended", "ada@example.com"),
    )
    entry = await newest_entry(pool)
    assert entry.action == "user.suspend"
    assert entry.detail == {
        "before": {"name": "", "role": "member", "status": "active"},
        "after": {"name": "Ada", "role": "viewer", "status": "suspended"},
    }
    await commit(pool, lambda session: users.delete(session, ADMIN, ada.id))
    assert await users.get(pool, ADMIN, ada.id) is None
    assert (await newest_entry(pool)).action == "user.delete"
    await add(pool, "ada-again", email="ada@example.com")


async def test_names_and_emails_are_unique_in_any_case(pool: Pool) -> None:
    await add(pool, "ada", email="ada@example.com")
    for new, code in (
        (NewUser(id=user_id("1"), username="ADA", role="member"), "username_taken"),
        (
            NewUser(id=user_id("2"), username="b", role="member", email="Ada@Example.com"),
            "email_taken",
        ),
    ):
        assert await refused(pool, lambda session, n=new: users.create(session, ADMIN, n)) == code
    found = present(await users.find_by_login(pool, SYSTEM, "ADA@example.COM"))
    assert found[0].username == "ada"
    assert await users.find_by_login(pool, SYSTEM, "nul\0byte@x") is None


async def test_a_member_reads_and_renames_only_the_own_account(pool: Pool) -> None:
    ada, bob = await add(pool, "ada"), await add(pool, "bob")
    me = actor("ada")
    assert present(await users.get(pool, me, ada.id)).username == "ada"
    assert await users.get(pool, me, bob.id) is None
    assert [one.username for one in await users.list_page(pool, me, after=None, limit=9)] == ["ada"]
    name, role = UserChanges(name="A."), UserChanges(role="admin")
    await commit(pool, lambda session: users.update(session, me, ada.id, name))
    assert await refused(pool, lambda s: users.update(s, me, bob.id, name)) == "not_found"
    assert await refused(pool, lambda s: users.update(s, me, ada.id, role)) == "forbidden"
    assert await refused(pool, lambda s: users.delete(s, me, ada.id)) == "forbidden"
    new = NewUser(id=user_id("c"), username="c", role="admin")
    assert await refused(pool, lambda s: users.create(s, me, new)) == "forbidden"
    assert await refused(pool, lambda s: users.set_password(s, me, bob.id, "h")) == "not_found"


async def test_users_are_listed_by_name_in_pages(pool: Pool) -> None:
    for name in ("bea", "Ada", "cyd"):
        await add(pool, name)
    seen: list[str] = []
    after = None
    while page := await users.list_page(pool, ADMIN, after=after, limit=50):
        seen += [user.username for user in page]
        after = page[-1].username.lower()
    assert [name for name in seen if not name.startswith("test-")] == ["Ada", "admin", "bea", "cyd"]


async def test_the_last_active_administrator_stays(pool: Pool) -> None:
    for changes in (UserChanges(role="member"), UserChanges(status="suspended")):
        code = await refused(pool, lambda s, c=changes: users.update(s, ADMIN, ADMIN_USER_ID, c))
        assert code == "last_administrator"
    assert await refused(pool, lambda s: users.delete(s, ADMIN, ADMIN_USER_ID)) == (
        "last_administrator"
    )
    await add(pool, "robot", "admin", is_service=True)
    assert await refused(pool, lambda s: users.delete(s, ADMIN, ADMIN_USER_ID)) == (
        "last_administrator"
    )
    await add(pool, "second", "admin")
    await commit(pool, lambda s: users.delete(s, ADMIN, ADMIN_USER_ID))


async def test_two_administrators_cannot_demote_each_other_at_once(pool: Pool) -> None:
    second = await add(pool, "second", "admin")
    demotion = UserChanges(role="member")
    results = await asyncio.gather(
        commit(pool, lambda s: users.update(s, ADMIN, second.id, demotion)),
        commit(pool, lambda s: users.update(s, actor("second", "admin"), ADMIN_USER_ID, demotion)),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "User"]


async def test_a_service_account_has_no_password(pool: Pool) -> None:
    robot = await add(pool, "robot", is_service=True)
    code = await refused(pool, lambda s: users.set_password(s, ADMIN, robot.id, "hash"))
    assert code == "service_account"


async def test_a_set_up_is_needed_until_an_administrator_can_sign_in(pool: Pool) -> None:
    assert await users.needs_setup(pool)
    await add(pool, "ada", password_hash="x")
    assert await users.needs_setup(pool)
    await commit(pool, lambda s: users.set_password(s, ADMIN, ADMIN_USER_ID, "hash"))
    assert not await users.needs_setup(pool)


# Credentials


async def test_a_token_is_valid_until_it_is_revoked(dsn: str, pool: Pool) -> None:
    await add(pool, "ada")
    me = actor("ada")
    token = await grant(pool, me, "ada", scopes=("chat:read",))
    found = present(await credentials.load(pool, b"ada token", "token"))
    assert (found.id, found.username, found.valid_for_s) == (token.id, "ada", None)
    assert found.actor == actor("ada", "member", "chat:read")
    assert await credentials.load(pool, b"ada token", "session") is None
    async with heard_changes(dsn) as heard, asyncio.timeout(10):
        await commit(pool, lambda s: credentials.revoke(s, me, token.id, ["token"]))
        assert str(token.id) in await heard.get()
    assert await credentials.load(pool, b"ada token", "token") is None
    assert (await newest_entry(pool)).action == "token.revoke"


async def test_a_suspended_or_deleted_user_has_no_valid_credential(pool: Pool) -> None:
    ada = await add(pool, "ada")
    await grant(pool, actor("ada"), "ada")
    off, on = UserChanges(status="suspended"), UserChanges(status="active")
    await commit(pool, lambda s: users.update(s, ADMIN, ada.id, off))
    assert await credentials.load(pool, b"ada token", "token") is None
    with pytest.raises(NotFound):
        await grant(pool, actor("ada"), "ada", "session", lifetime=timedelta(hours=1))
    await commit(pool, lambda s: users.update(s, ADMIN, ada.id, on))
    assert await credentials.load(pool, b"ada token", "token") is not None
    await commit(pool, lambda s: users.delete(s, ADMIN, ada.id))
    assert await credentials.load(pool, b"ada token", "token") is None
    assert await credentials.load_user(pool, ada.id) is None
    assert present(await credentials.load_user(pool, ADMIN_USER_ID)).actor == ADMIN


async def test_a_deleted_user_keeps_no_skills_and_gets_no_new_ones(pool: Pool) -> None:
    """The tool policy stays: a turn that still runs must not be allowed more."""
    ada, bob = await add(pool, "ada"), await add(pool, "bob")
    new = SkillPatch(name="notes", description="Take notes.", body="Write it down.")
    await commit(pool, lambda s: skills.insert(s, actor("ada"), UUID(int=1), new))
    await commit(pool, lambda s: skills.insert(s, actor("bob"), UUID(int=2), new))
    rules = ToolPolicy(rules=(ToolRule(tool="execute", action="deny"),))
    await tool_policies.save_user(pool, actor("ada"), rules, version=0)
    await commit(pool, lambda s: users.delete(s, ADMIN, ada.id))
    rows = await pool.fetch("SELECT owner_id FROM user_skills")
    assert [row["owner_id"] for row in rows] == [bob.id]
    assert (await tool_policies.get_user(pool, actor("ada"))).policy == rules
    late = UUID(int=3)
    assert await refused(pool, lambda s: skills.insert(s, actor("ada"), late, new)) == "not_found"


async def keep_secrets(pool: Pool, *names: str) -> None:
    """A key for a provider, and a webhook with its secret, of each user."""
    record = KeyRecord(id="k", check_value="c", state="current")
    if not await sealed_columns.list_keys(pool):
        await sealed_columns.insert_key(pool, record)
        await pool.execute(
            """INSERT INTO providers (id, name, kind, has_api_key, enabled, source)
               VALUES ($1, 'p', 'anthropic', false, true, 'database')""",
            UUID(int=1),
        )
    for name in names:
        number = next(NUMBERS)
        key = StoredKey(
            id=UUID(int=number),
            provider_id=UUID(int=1),
            name="mine",
            masked="...",
            sealed_key="v1.k.x",
            destination="",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        await commit(pool, lambda s, k=key, n=name: providers.insert_key(s, k, user_id(n)))
        hook = {"url": "https://x.example", "events": ["turn.finished"], "secret": "v1.k.x"}
        await webhooks.insert(pool, actor(name), UUID(int=number), **hook)  # pyright: ignore[reportArgumentType]


async def owners_of_secrets(pool: Pool) -> list[UUID]:
    rows = await pool.fetch(
        "SELECT user_id FROM provider_keys UNION ALL SELECT owner_id FROM webhooks"
    )
    return [row["user_id"] for row in rows]


async def test_the_secrets_of_a_deleted_user_are_removed(pool: Pool) -> None:
    ada, bob = await add(pool, "ada"), await add(pool, "bob")
    await keep_secrets(pool, "ada", "bob")
    await commit(pool, lambda s: users.delete(s, ADMIN, ada.id))
    assert await owners_of_secrets(pool) == [bob.id, bob.id]


async def test_secrets_that_a_user_stored_while_being_deleted_are_found_later(pool: Pool) -> None:
    ada, bob = await add(pool, "ada"), await add(pool, "bob")
    await commit(pool, lambda s: users.delete(s, ADMIN, ada.id))
    await keep_secrets(pool, "ada", "bob")
    await users.delete_left_secrets(pool, SYSTEM)
    assert await owners_of_secrets(pool) == [bob.id, bob.id]


async def test_a_session_is_prolonged_at_most_hourly_and_never_beyond_its_end(pool: Pool) -> None:
    await add(pool, "ada")
    life = {"lifetime": timedelta(hours=24), "ends_after": timedelta(days=30)}
    await grant(pool, SYSTEM, "ada", "session", **life)

    async def age(hours: float) -> None:
        await pool.execute(
            "UPDATE credentials SET expires_at = expires_at - $1::interval, last_used_at ="
            " last_used_at - $1::interval, ends_at = ends_at - $1::interval",
            timedelta(hours=hours),
        )

    async def hours_left() -> float:
        found = present(await credentials.load(pool, b"ada session", "session"))
        return round(present(found.valid_for_s) / 3600, 1)

    await age(0.5)
    assert await hours_left() == 23.5
    await age(1)
    assert await hours_left() == 24
    for _ in range(30):
        await age(23)
        assert await hours_left() > 0
    await age(20)
    assert await hours_left() == 8.5
    await age(8.6)
    assert await credentials.load(pool, b"ada session", "session") is None


async def test_a_link_is_used_once_even_by_two_at_the_same_time(pool: Pool) -> None:
    await add(pool, "ada")
    await grant(pool, SYSTEM, "ada", "link", lifetime=timedelta(minutes=15))
    used = await asyncio.gather(*(credentials.use(pool, b"ada link", "link") for _ in range(8)))
    assert len([one for one in used if one is not None]) == 1
    await grant(pool, SYSTEM, "ada", "link", lifetime=timedelta(seconds=-1))
    assert await credentials.use(pool, b"ada link", "link") is None


async def test_a_ticket_acts_as_the_credential_that_asked_and_ends_with_it(pool: Pool) -> None:
    await add(pool, "ada")
    me = actor("ada", "member", "chat:read")
    minute = {"lifetime": timedelta(seconds=60)}
    token = await grant(pool, actor("ada"), "ada", scopes=("chat:read",))
    await grant(pool, me, "ada", "ticket", parent_id=token.id, **minute)
    found = present(await credentials.use(pool, b"ada ticket", "ticket"))
    assert (found.id, found.kind, found.actor) == (token.id, "token", me)
    assert await credentials.use(pool, b"ada ticket", "ticket") is None
    await grant(pool, me, "ada", "ticket", parent_id=token.id, **minute)
    await commit(pool, lambda s: credentials.revoke(s, actor("ada"), token.id, ["token"]))
    assert await credentials.use(pool, b"ada ticket", "ticket") is None
    with pytest.raises(NotFound):
        await grant(pool, me, "ada", "ticket", parent_id=token.id, **minute)


async def test_a_user_reaches_only_the_own_credentials(pool: Pool) -> None:
    await add(pool, "ada")
    await add(pool, "bob")
    token = await grant(pool, actor("bob"), "bob")
    me = actor("ada")
    assert await refused(pool, lambda s: credentials.revoke(s, me, token.id, ["token"])) == (
        "not_found"
    )
    listed = await credentials.list_page(pool, me, user_id("bob"), "token", after=None, limit=5)
    assert listed == []
    with pytest.raises(NotFound):
        await grant(pool, me, "bob", "session", lifetime=timedelta(hours=1))
    with pytest.raises(Forbidden):
        await grant(pool, actor("ada", "member", "chat:read"), "ada")
    listed = await credentials.list_page(pool, ADMIN, user_id("bob"), "token", after=None, limit=5)
    assert [one.id for one in listed] == [token.id]


async def test_administrators_make_tokens_for_service_accounts_only(pool: Pool) -> None:
    await add(pool, "ada")
    await add(pool, "robot", is_service=True)
    with pytest.raises(NotFound):
        await grant(pool, ADMIN, "ada")
    with pytest.raises(NotFound):
        await grant(pool, actor("robot"), "robot")
    token = await grant(pool, ADMIN, "robot")
    assert token.created_by == ADMIN_USER_ID
    with pytest.raises(NotFound):
        await grant(pool, SYSTEM, "robot", "session", lifetime=timedelta(hours=1))


async def test_all_sessions_of_a_user_but_one_end_together(dsn: str, pool: Pool) -> None:
    await add(pool, "ada")
    made = [
        await credentials.insert(
            pool,
            SYSTEM,
            NewCredential(
                id=CredentialId(UUID(int=number)),
                kind="session",
                user_id=user_id("ada"),
                secret_sha256=bytes([number]),
                lifetime=timedelta(hours=1),
            ),
        )
        for number in range(1, 26)
    ]
    kept = made[0].id
    async with heard_changes(dsn) as heard, asyncio.timeout(10):
        gone = await commit(
            pool,
            lambda s: credentials.revoke_of_user(
                s, actor("ada"), user_id("ada"), ["session"], keep=kept
            ),
        )
        assert gone == 24
        assert await heard.get() == '{"kind":"credential","id":""}'
    left = await credentials.list_page(pool, ADMIN, user_id("ada"), "session", after=None, limit=50)
    assert [one.id for one in left] == [kept]


async def test_expired_credentials_and_old_attempts_are_removed(pool: Pool) -> None:
    await add(pool, "ada")
    await grant(pool, SYSTEM, "ada", "link", lifetime=timedelta(hours=-1))
    await grant(pool, SYSTEM, "ada", "session", lifetime=timedelta(hours=1))
    assert await credentials.delete_expired(pool, SYSTEM, limit=10) == 1
    await credentials.take_attempt(pool, "a", per_minute=10)
    await pool.execute("UPDATE sign_in_attempts SET updated_at = now() - interval '1 hour'")
    await credentials.take_attempt(pool, "b", per_minute=10)
    assert await credentials.delete_old_attempts(pool, limit=10) == 1


# Groups, attempts, audit


async def test_groups_have_members_and_every_write_is_recorded(dsn: str, pool: Pool) -> None:
    ada = await add(pool, "ada")
    crew, crowd = GroupId(UUID(int=5)), GroupId(UUID(int=6))
    async with heard_changes(dsn) as heard, asyncio.timeout(10):
        await commit(pool, lambda s: groups.create(s, ADMIN, crew, "Crew"))
        assert str(crew) in await heard.get()
    assert await refused(pool, lambda s: groups.create(s, ADMIN, crowd, "crew")) == "name_taken"
    for _ in range(2):
        await commit(pool, lambda s: groups.add_member(s, ADMIN, crew, ada.id))
    assert (await groups.get(pool, ADMIN, crew)).member_count == 1
    members = await groups.list_members(pool, ADMIN, crew, after=None, limit=5)
    assert [member.username for member in members] == ["ada"]
    assert [group.name for group in await groups.list_of_user(pool, ADMIN, ada.id)] == ["Crew"]
    await commit(pool, lambda s: groups.rename(s, ADMIN, crew, "Team"))
    assert (await newest_entry(pool)).detail == {
        "before": {"name": "Crew"},
        "after": {"name": "Team"},
    }
    stranger = user_id("nobody")
    refusals: tuple[Callable[[DatabaseSession], Awaitable[object]], ...] = (
        lambda s: groups.add_member(s, ADMIN, crew, stranger),
        lambda s: groups.add_member(s, ADMIN, crowd, ada.id),
        lambda s: groups.remove_member(s, ADMIN, crew, stranger),
        lambda s: groups.rename(s, ADMIN, crowd, "x"),
        lambda s: groups.delete(s, ADMIN, crowd),
    )
    for work in refusals:
        assert await refused(pool, work) == "not_found"
    me = actor("ada")
    assert await refused(pool, lambda s: groups.add_member(s, me, crew, ada.id)) == "forbidden"
    await commit(pool, lambda s: groups.remove_member(s, ADMIN, crew, ada.id))
    await commit(pool, lambda s: groups.delete(s, ADMIN, crew))
    assert (await newest_entry(pool)).action == "group.delete"
    assert await groups.list_page(pool, ADMIN, after=None, limit=5) == []


async def test_attempts_are_counted_for_all_replicas_and_refused_ones_cost_nothing(
    pool: Pool,
) -> None:
    async def allowed() -> list[bool]:
        tries = (credentials.take_attempt(pool, "ada", per_minute=10) for _ in range(20))
        return await asyncio.gather(*tries)

    assert sum(await allowed()) == 10
    await pool.execute("UPDATE sign_in_attempts SET updated_at = now() - interval '12 seconds'")
    assert sum(await allowed()) == 2
    await credentials.clear_attempts(pool, "ada")
    assert sum(await allowed()) == 10


async def test_the_log_is_read_by_its_filters_in_pages(pool: Pool) -> None:
    async def write(by: Actor, action: str, object_id: str) -> None:
        await audit.record(
            pool, by, action=action, object_type="thing", object_id=object_id, detail={"n": "100%"}
        )

    for number in range(5):
        await write(ADMIN, f"thing.{number}", str(number % 2))
    await write(SYSTEM, "user.suspend", "0")
    # One a day, from the first to the sixth of May.
    await pool.execute(
        """UPDATE audit_log a SET at = '2026-04-30Z'::timestamptz + n.place * interval '1 day'
           FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM audit_log) n
           WHERE n.id = a.id"""
    )

    async def actions(wanted: AuditFilter, before: AuditPosition | None = None) -> list[str]:
        page = await audit.list_page(pool, ADMIN, wanted, before=before, limit=3)
        return [entry.action for entry in page]

    assert await actions(AuditFilter()) == ["user.suspend", "thing.4", "thing.3"]
    newest = await newest_entry(pool)
    assert (newest.actor, newest.actor_id, newest.outcome) == ("test", None, "done")
    later = AuditPosition(newest.at, newest.id)
    assert await actions(AuditFilter(), later) == ["thing.4", "thing.3", "thing.2"]
    by_me = AuditFilter(actor_id=ADMIN_USER_ID)
    assert await actions(by_me) == ["thing.4", "thing.3", "thing.2"]
    of_one = AuditFilter(object_type="thing", object_id="1")
    assert await actions(of_one) == ["thing.3", "thing.1"]
    assert await actions(AuditFilter(object_type="thing")) == ["user.suspend", "thing.4", "thing.3"]
    assert await actions(AuditFilter(object_type="chat")) == []
    third, fifth = (datetime(2026, 5, day, tzinfo=UTC) for day in (3, 5))
    spring = AuditFilter(since=third, until=fifth)
    assert await actions(spring) == ["thing.3", "thing.2"]
    assert await actions(spring, later) == ["thing.3", "thing.2"]
    mine = AuditFilter(actor_id=ADMIN_USER_ID, object_type="thing", object_id="0", until=fifth)
    assert await actions(mine) == ["thing.2", "thing.0"]
    for text, found in {"SUSPENDED": 1, "thing.4": 1, "100%": 3, "_": 0, "1%0": 0}.items():
        assert len(await actions(AuditFilter(text=text))) == found, text
    with pytest.raises(Forbidden):
        await audit.list_page(pool, actor("ada"), AuditFilter(), before=None, limit=3)


async def test_an_entry_names_people_and_objects_as_they_are_today_or_were_last(pool: Pool) -> None:
    ada, group = user_id("ada"), GroupId(UUID(int=4711))
    await commit(
        pool, lambda s: users.create(s, ADMIN, NewUser(id=ada, username="ada", role="admin"))
    )
    await commit(pool, lambda s: groups.create(s, actor("ada", "admin"), group, "Readers"))
    await commit(pool, lambda s: groups.add_member(s, ADMIN, group, ada))
    await commit(pool, lambda s: users.update(s, ADMIN, ada, UserChanges(username="lovelace")))
    await commit(pool, lambda s: groups.delete(s, ADMIN, group))
    await audit.record(pool, ADMIN, action="chat.read", object_type="chat", object_id=UUID(int=8))
    await commit(pool, lambda s: users.delete(s, ADMIN, ada))

    found = await audit.list_page(pool, ADMIN, AuditFilter(), before=None, limit=20)
    assert [f"{actor_text(entry)} {summary(entry)}" for entry in reversed(found)] == [
        "admin created the user lovelace (deleted)",
        "lovelace (deleted user) created the group Readers (deleted)",
        "admin added lovelace to the group Readers (deleted)",
        "admin changed the username of the user lovelace (deleted)",
        "admin deleted the group Readers",
        f"admin read a deleted chat ({UUID(int=8)})",
        "admin deleted the user lovelace",
    ]


async def test_titles_are_named_only_to_those_who_may_read_the_chats(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    await audit.record(pool, ADMIN, action="chat.read", object_type="chat", object_id=chat.id)
    limited = UserActor(user_id=ADMIN_USER_ID, role="admin", scopes=frozenset({"admin"}))
    for who, name in ((ADMIN, chat.title), (limited, None)):
        (entry,) = await audit.list_page(pool, who, AuditFilter(), before=None, limit=1)
        assert (entry.object_name, entry.object_is_deleted) == (name, False)


async def test_an_export_is_recorded_and_bounded_and_has_what_was_there_before_it(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_EXPORTED", 5)
    monkeypatch.setattr(audit, "_EXPORT_BATCH", 2)
    for number in range(5):
        await audit.record(pool, ADMIN, action="a.b", object_type="thing", object_id=number)
    wanted = AuditFilter(text="a.b")
    start = await audit.begin_export(pool, ADMIN, wanted)
    exported = [
        entry.object_id
        async for batch in audit.read_export(pool, ADMIN, wanted, start)
        for entry in batch
    ]
    assert exported == ["4", "3", "2", "1", "0"]
    newest = await newest_entry(pool)
    assert (newest.action, newest.detail) == ("audit.export", {"entries": 5, "text": "a.b"})
    await audit.record(pool, ADMIN, action="a.b", object_type="thing", object_id=9)
    with pytest.raises(InvalidInput, match="more than 5 entries"):
        await audit.begin_export(pool, ADMIN, wanted)


@pytest.mark.stock_server
async def test_a_page_of_a_long_log_reads_about_what_it_returns(dsn: str) -> None:
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await session.execute(
            """INSERT INTO audit_log (at, actor_id, actor, action, object_type, object_id)
               SELECT '2026-01-01Z'::timestamptz + n * interval '1 minute',
                   ('00000000-0000-4000-8000-000000000' || 100 + n % 200)::uuid, 'x', 'user.update',
                   (ARRAY['user', 'chat', 'file'])[n % 3 + 1], (n % 50)::text
               FROM generate_series(1, 20000) n"""
        )
        await session.execute("ANALYZE audit_log")
        user = "00000000-0000-4000-8000-000000000103"
        start = ("2026-01-08Z", 0, "2026-01-02Z", "{}", None)
        for statement, filters in {
            audit.LIST: (None, None, None),
            audit.LIST_BY_ACTOR: (user, None, None),
            audit.LIST_BY_TYPE: (None, "user", None),
            audit.LIST_BY_OBJECT: (None, "user", "3"),
        }.items():
            page = (*start, *filters, 20, "true", "true")
            plan = await plan_of(session, statement, *page, option="ANALYZE,")
            scans = [node for node in plan if node.get("Relation Name") == "audit_log"]
            read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans)
            assert 20 <= sum(read) <= 100, filters


async def test_a_rolled_back_write_leaves_no_entry_and_no_notice(dsn: str, pool: Pool) -> None:
    new = NewUser(id=user_id("ada"), username="ada", role="member")

    async def fail(session: DatabaseSession) -> None:
        await users.create(session, ADMIN, new)
        raise Conflict("undo")

    async with heard_changes(dsn) as heard, asyncio.timeout(10):
        assert await refused(pool, fail) == "conflict"
        await commit(pool, lambda s: users.create(s, ADMIN, new))
        assert ConfigChange(kind="user", id=str(new.id)).id in await heard.get()
        assert heard.empty()
    assert await pool.fetchval("SELECT count(*) FROM audit_log") == 1
