"""Cases of accounts: what users do with their own, and what only administrators do."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, date, datetime
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.hooks import Hook
from chatd.domain.deployment.repositories import HostEvent, RepositoryConnection
from chatd.domain.deployment.runtime_settings import DeploymentSettings
from chatd.domain.deployment.slack import SlackConnection, SlackEvent
from chatd.domain.ids import CredentialId, GroupId, UserId
from chatd.store.account import (
    audit,
    credentials,
    groups,
    host_credentials,
    runtime_settings,
    shares,
    users,
)
from chatd.store.account.credentials import NewCredential
from chatd.store.account.host_credentials import NewStoredCredential
from chatd.store.account.runtime_settings import StoredDeployment
from chatd.store.account.users import NewUser, UserChanges
from chatd.store.chat import ratings
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.pool import Pool
from chatd.store.deployment import backups, hooks, repositories, repository_work, slack, slack_work
from chatd.store.deployment.hooks import HookChanges
from chatd.store.model import costs, spend
from chatd.store.model.costs import DayRange
from chatd.store.workspace import runners
from tests.support.factories import CHAT, HARNESS, OWNER
from tests.support.runners import insert_runner_token, new_runner_token, token_id
from tests.support.workspaces import TEMPLATE

Case = Callable[[Pool, UserActor, Chat], Awaitable[object]]
SessionCase = Callable[[DatabaseSession, UserActor], Awaitable[object]]

READER: Final = UserId(UUID(int=5))
LEAVER: Final = UserId(UUID(int=9))
TOKEN: Final = CredentialId(UUID(int=31))
GROUP: Final = GroupId(UUID(int=32))
SPARE_GROUP: Final = GroupId(UUID(int=33))
DAYS: Final = DayRange(start=date(2020, 1, 1), end=date(2200, 1, 1))


def in_transaction(ask: SessionCase) -> Case:
    """A function that returns nothing counts as done if it does not raise."""

    async def call(pool: Pool, who: UserActor, _: Chat) -> object:
        async with pool.transaction() as session:
            found = await ask(session, who)
            return True if found is None else found

    return call


def _token(number: int, user_id: UserId = OWNER) -> NewCredential:
    return NewCredential(
        id=CredentialId(UUID(int=number)),
        kind="token",
        user_id=user_id,
        secret_sha256=number.to_bytes(32, "big"),
    )


async def _revoke_runner_token(session: DatabaseSession, who: UserActor) -> object:
    return await runners.revoke_token(session, who, token_id(1)) or False


async def _record_ratings_export(session: DatabaseSession, who: UserActor) -> object:
    await ratings.record_export(session, who, ratings.RatingFilter(), ip=None)
    return True


async def _is_readable(pool: Pool, who: UserActor) -> object:
    """Raises NotFound if it is not."""
    await costs.require_readable(pool, who, OWNER)
    return True


SHARED_CREDENTIAL: Final = NewStoredCredential(
    id=UUID(int=47),
    is_own=False,
    host="host.test",
    port=443,
    path="/",
    scheme="bearer",
    header="",
    username="",
    sealed_secret="v1.key.sealed",
)


async def _delete_shared_credential(session: DatabaseSession, who: UserActor) -> object:
    await host_credentials.delete_shared(session, who, SHARED_CREDENTIAL.id)
    return True


HOOK: Final = Hook(id=UUID(int=48), name="policy", url="https://a.test/", events=("before_tool",))


CONNECTION: Final = RepositoryConnection(
    id=UUID(int=49),
    name="host",
    vendor="gitea",
    url="https://git.example.com",
    repositories=("acme/*",),
    mention="chatd",
    label="",
    template_id=TEMPLATE,
    model_config_id=None,
    user_id=OWNER,
)


SPARE_CONNECTION: Final = replace(CONNECTION, id=UUID(int=50), name="spare")


async def _delete_connection(session: DatabaseSession, who: UserActor) -> object:
    await repositories.delete(session, who, SPARE_CONNECTION.id)
    return True


SLACK: Final = SlackConnection(id=UUID(int=51), name="slack")
SPARE_SLACK: Final = replace(SLACK, id=UUID(int=52), name="spare")


async def _delete_slack(session: DatabaseSession, who: UserActor) -> object:
    await slack.delete(session, who, SPARE_SLACK.id)
    return True


async def _delete_hook(session: DatabaseSession, who: UserActor) -> object:
    await hooks.delete(session, who, HOOK.id)
    return True


OWN_ACCOUNT: Final[Mapping[str, Case]] = {
    "account.users.get": lambda pool, who, _: users.get(pool, who, OWNER),
    "account.users.list_page": lambda pool, who, _: users.list_page(pool, who, after=None, limit=9),
    "account.users.update": in_transaction(
        lambda session, who: users.update(session, who, OWNER, UserChanges(name="Mine"))
    ),
    "account.users.get_password_hash": lambda pool, who, _: users.get_password_hash(
        pool, who, OWNER
    ),
    "account.users.set_password": in_transaction(
        lambda session, who: users.set_password(session, who, OWNER, "other hash")
    ),
    "account.credentials.insert": lambda pool, who, _: credentials.insert(pool, who, _token(34)),
    "account.credentials.check": lambda pool, who, _: credentials.check(pool, who, TOKEN),
    "account.credentials.list_page": lambda pool, who, _: credentials.list_page(
        pool, who, OWNER, "token", after=None, limit=9
    ),
    "account.credentials.revoke": in_transaction(
        lambda session, who: credentials.revoke(session, who, TOKEN, ["token"])
    ),
    "account.credentials.revoke_of_user": in_transaction(
        lambda session, who: credentials.revoke_of_user(session, who, OWNER, ["token"])
    ),
    "account.shares.find_readers": lambda pool, who, _: shares.find_readers(
        pool, who, "test", limit=9
    ),
    "model.costs.require_readable": lambda pool, who, _: _is_readable(pool, who),
}

ADMINISTRATION: Final[Mapping[str, Case]] = {
    "deployment.backups.confirm_restore": in_transaction(backups.confirm_restore),
    "chat.ratings.list_all": lambda pool, who, _: ratings.list_all(
        pool, who, ratings.RatingFilter(), before=None, limit=9
    ),
    "chat.ratings.record_export": in_transaction(_record_ratings_export),
    "account.audit.list_page": lambda pool, who, _: audit.list_page(
        pool, who, audit.AuditFilter(), before=None, limit=9
    ),
    "account.audit.begin_export": lambda pool, who, _: audit.begin_export(
        pool, who, audit.AuditFilter()
    ),
    "account.audit.read_export": lambda pool, who, _: anext(
        audit.read_export(
            pool, who, audit.AuditFilter(), audit.AuditPosition(datetime.max.replace(tzinfo=UTC), 0)
        )
    ),
    "account.users.create": in_transaction(
        lambda session, who: users.create(
            session, who, NewUser(id=UserId(UUID(int=998)), username="new", role="member")
        )
    ),
    "account.users.delete": in_transaction(lambda session, who: users.delete(session, who, LEAVER)),
    "account.groups.create": in_transaction(
        lambda session, who: groups.create(session, who, GroupId(UUID(int=35)), "New")
    ),
    "account.groups.get": lambda pool, who, _: groups.get(pool, who, GROUP),
    "account.groups.find": lambda pool, who, _: groups.find(pool, who, "readers"),
    "account.groups.list_page": lambda pool, who, _: groups.list_page(
        pool, who, after=None, limit=9
    ),
    "account.groups.list_of_user": lambda pool, who, _: groups.list_of_user(pool, who, OWNER),
    "account.groups.list_members": lambda pool, who, _: groups.list_members(
        pool, who, GROUP, after=None, limit=9
    ),
    "account.groups.rename": in_transaction(
        lambda session, who: groups.rename(session, who, GROUP, "Others")
    ),
    "account.groups.add_member": in_transaction(
        lambda session, who: groups.add_member(session, who, GROUP, READER)
    ),
    "account.groups.remove_member": in_transaction(
        lambda session, who: groups.remove_member(session, who, GROUP, OWNER)
    ),
    "account.groups.delete": in_transaction(
        lambda session, who: groups.delete(session, who, SPARE_GROUP)
    ),
    "deployment.hooks.list_all": lambda pool, who, _: hooks.list_all(pool, who),
    "deployment.hooks.get": lambda pool, who, _: hooks.get(pool, who, HOOK.id),
    "deployment.hooks.load_one": lambda pool, who, _: hooks.load_one(pool, who, HOOK.id),
    "deployment.hooks.insert": in_transaction(
        lambda session, who: hooks.insert(
            session,
            who,
            replace(HOOK, id=UUID(int=who.user_id.int + 500), name=who.role),
            "v1.key.sealed",
        )
    ),
    "deployment.hooks.update": in_transaction(
        lambda session, who: hooks.update(session, who, HOOK.id, HookChanges(enabled=False))
    ),
    "deployment.hooks.delete": in_transaction(_delete_hook),
    "deployment.repositories.list_all": lambda pool, who, _: repositories.list_all(pool, who),
    "deployment.repositories.get": lambda pool, who, _: repositories.get(pool, who, CONNECTION.id),
    "deployment.repositories.insert": in_transaction(
        lambda session, who: repositories.insert(
            session,
            who,
            replace(CONNECTION, id=UUID(int=who.user_id.int + 600), name=who.role),
            sealed_token="v1.key.sealed",
            sealed_secret="v1.key.sealed",
        )
    ),
    "deployment.repositories.update": in_transaction(
        lambda session, who: repositories.update(
            session,
            who,
            replace(CONNECTION, enabled=False),
        )
    ),
    "deployment.repositories.delete": in_transaction(_delete_connection),
    "deployment.repository_work.list_events": lambda pool, who, _: repository_work.list_events(
        pool, who, CONNECTION.id, before=None, limit=9
    ),
    "deployment.slack.list_all": lambda pool, who, _: slack.list_all(pool, who),
    "deployment.slack.get": lambda pool, who, _: slack.get(pool, who, SLACK.id),
    "deployment.slack.insert": in_transaction(
        lambda session, who: slack.insert(
            session,
            who,
            replace(SLACK, id=UUID(int=who.user_id.int + 700), name=who.role),
            sealed_bot_token="v1.key.sealed",
            sealed_app_token="v1.key.sealed",
        )
    ),
    "deployment.slack.update": in_transaction(
        lambda session, who: slack.update(
            session,
            who,
            replace(SLACK, enabled=False),
            sealed_bot_token=None,
            sealed_app_token=None,
        )
    ),
    "deployment.slack.delete": in_transaction(_delete_slack),
    "deployment.slack_work.list_events": lambda pool, who, _: slack_work.list_events(
        pool, who, SLACK.id, before=None, limit=9
    ),
    "account.host_credentials.list_shared": lambda pool, who, _: host_credentials.list_shared(
        pool, who
    ),
    "account.host_credentials.delete_shared": in_transaction(_delete_shared_credential),
    "model.costs.all_by_day_and_model": lambda pool, who, _: costs.all_by_day_and_model(
        pool, who, DAYS
    ),
    "model.costs.all_by_model": lambda pool, who, _: costs.all_by_model(pool, who, DAYS),
    "model.costs.by_user": lambda pool, who, _: costs.by_user(pool, who, DAYS, limit=9),
    "model.costs.export": lambda pool, who, _: costs.export(pool, who, DAYS),
    "account.runtime_settings.get_deployment": lambda pool, who, _: runtime_settings.get_deployment(
        pool, who
    ),
    "account.runtime_settings.save_deployment": in_transaction(
        lambda session, who: runtime_settings.save_deployment(
            session, who, DeploymentSettings(), before=StoredDeployment(version=1)
        )
    ),
    "model.spend.get_default": lambda pool, who, _: spend.get_default(pool, who),
    "model.spend.set_default": in_transaction(
        lambda session, who: spend.set_default(session, who, 7, "day")
    ),
    "model.spend.delete_default": in_transaction(spend.delete_default),
    "model.spend.list_users": lambda pool, who, _: spend.list_users(pool, who, limit=9),
    "model.spend.set_user": in_transaction(
        lambda session, who: spend.set_user(session, who, OWNER, 7)
    ),
    "model.spend.delete_user": in_transaction(
        lambda session, who: spend.delete_user(session, who, OWNER)
    ),
    "model.spend.list_groups": lambda pool, who, _: spend.list_groups(pool, who, limit=9),
    "model.spend.set_group": in_transaction(
        lambda session, who: spend.set_group(session, who, GROUP, 7)
    ),
    "model.spend.delete_group": in_transaction(
        lambda session, who: spend.delete_group(session, who, GROUP)
    ),
    "workspace.runners.list_tokens": lambda pool, who, _: runners.list_tokens(
        pool, who, after=None, limit=9
    ),
    "workspace.runners.insert_token": in_transaction(
        lambda session, who: runners.insert_token(session, who, new_runner_token(2))
    ),
    "workspace.runners.revoke_token": in_transaction(_revoke_runner_token),
}


async def prepare_accounts(pool: Pool) -> None:
    """A password, a token, a group, limits and a cost of the owner; settings and audited writes."""
    await pool.execute("UPDATE users SET password_hash = 'hash' WHERE id = $1", OWNER)
    await credentials.insert(pool, HARNESS, _token(TOKEN.int))
    await insert_runner_token(pool)
    await pool.execute(
        "INSERT INTO restores (backup_id, made_at, made_on) VALUES ($1, now(), 'a')", UUID(int=36)
    )
    await pool.execute(
        "INSERT INTO secret_keys (id, check_value, state) VALUES ('key', '', 'current')"
    )
    admin = UserActor(user_id=OWNER, role="admin")
    async with pool.transaction() as session:
        await groups.create(session, HARNESS, GROUP, "Readers")
        await groups.create(session, HARNESS, SPARE_GROUP, "Spare")
        await groups.add_member(session, HARNESS, GROUP, OWNER)
        await host_credentials.save(session, admin, SHARED_CREDENTIAL)
        await hooks.insert(session, admin, HOOK, "v1.key.sealed")
        for one in (CONNECTION, SPARE_CONNECTION):
            await repositories.insert(
                session, admin, one, sealed_token="v1.key.sealed", sealed_secret="v1.key.sealed"
            )
        event = HostEvent(kind="comment", key="comment:1", repository="acme/app", number=1)
        await repository_work.store_event(session, CONNECTION.id, "delivery", event)
        for each in (SLACK, SPARE_SLACK):
            await slack.insert(
                session,
                admin,
                each,
                sealed_bot_token="v1.key.sealed",
                sealed_app_token="v1.key.sealed",
            )
        message = SlackEvent(
            kind="message",
            key="m",
            channel="C1",
            thread_ts="1.1",
            ts="1.1",
            user="U1",
            is_mention=True,
        )
        await slack_work.store_event(session, SLACK.id, message)
        await spend.set_default(session, admin, 5, "day")
        await spend.set_user(session, admin, OWNER, 5)
        await spend.set_group(session, admin, GROUP, 5)
        before = StoredDeployment()
        await runtime_settings.save_deployment(session, admin, before.document, before=before)
    await pool.execute(
        """INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, kind, provider, model,
               input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens,
               cache_read_tokens, cost_micros, ok)
           VALUES (now(), $1, $2, $2, 'turn', 'acme', 'm', 1, 1, 0, 0, 0, 5, true)""",
        *(OWNER, CHAT),
    )
