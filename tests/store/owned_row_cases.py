"""Cases of files, browsers that get notices, settings, schedules and webhooks of one user.

A user may always make rows of its own, so a stranger tries to make one with the id of a row that
the owner has: it must stay as it is.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.access.permissions import ADMIN_USER_ID, UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.runtime_settings import UserSettings
from chatd.domain.deployment.schedules import Schedule
from chatd.domain.errors import Conflict
from chatd.domain.files import FileLimits, NewFile
from chatd.domain.ids import FileId, ProjectId, UserId
from chatd.store import file_stores, files, memory, projects
from chatd.store.account import git_credentials, host_credentials, runtime_settings, skills
from chatd.store.account.git_credentials import NewGitCredential
from chatd.store.account.host_credentials import NewStoredCredential
from chatd.store.account.skills import SkillPatch
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.pool import Pool
from chatd.store.deployment import mcp_tokens, schedules, slack, webhooks
from chatd.store.memory import NotePatch
from chatd.store.projects import ProjectPatch
from tests.support.factories import AT, CHAT, OWNER, member
from tests.support.mcp_servers import insert_mcp_server, mcp_server_id, new_token
from tests.support.outcomes import present

Case = Callable[[Pool, UserActor, Chat], Awaitable[object]]

FILE: Final = FileId(UUID(int=41))
LINKED: Final = FileId(UUID(int=46))
"""A file of the owner's chat."""
ROW: Final = UUID(int=42)
"""The id of the owner's upload, subscription, schedule and webhook."""
BROWSER: Final = UUID(int=43)
PROPOSED_NOTE: Final = UUID(int=54)
OTHER_NOTE: Final = UUID(int=55)


def _row_to_make(who: UserActor) -> UUID:
    """A new one for the owner, and the owner's for anybody else."""
    return UUID(int=44) if who.user_id == OWNER else ROW


def _schedule(row_id: UUID) -> Schedule:
    return Schedule(
        id=row_id,
        owner_id=OWNER,
        name="Report",
        cron="@daily",
        timezone="UTC",
        prompt="Report.",
        model_config_id=None,
        reasoning_effort=None,
        labels={},
        workspace_id=None,
        enabled=True,
        next_at=AT,
        last_at=None,
        last_chat_id=None,
        last_error=None,
        created_at=AT,
        updated_at=AT,
    )


async def _begin(pool: Pool, who: UserActor, file_id: UUID) -> object:
    await file_stores.begin_upload(
        pool, FileId(file_id), who, store=f"of {who.user_id}", chunk_bytes=9
    )
    return True


async def _has_full_quota(pool: Pool, who: UserActor) -> object:
    """Of one file, which the owner has."""
    try:
        await file_stores.check_quota(pool, who, 1, FileLimits(user_files=1))
    except Conflict:
        return True
    return None


async def _save_settings(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await runtime_settings.save_user(session, who, UserSettings(), version=1)


async def _subscribe(pool: Pool, who: UserActor, row_id: UUID) -> object:
    return await webhooks.subscribe(
        pool, who, row_id, endpoint=f"https://push.test/{row_id}", secret=f"v1.key.{who.user_id}"
    )


async def _insert_webhook(pool: Pool, who: UserActor, row_id: UUID) -> object:
    return await webhooks.insert(
        pool, who, row_id, url="https://hooks.test/", events=["chat.idle"], secret="v1.key.sealed"
    )


async def _update_schedule(pool: Pool, who: UserActor) -> object:
    now = present(await schedules.get(pool, member(), ROW))
    return await schedules.update(pool, who, now)


async def _save_token(pool: Pool, who: UserActor) -> object:
    """A user may always have tokens of its own, so a stranger asks for an older configuration."""
    version = 1 if who.user_id == OWNER else 0
    async with pool.transaction() as session:
        return await mcp_tokens.save(session, who, new_token(1, server_version=version))


async def _delete_token(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await mcp_tokens.delete_own(session, who, mcp_server_id(1))


async def _save_git_credential(pool: Pool, who: UserActor, row_id: UUID) -> object:
    async with pool.transaction() as session:
        return await git_credentials.save(
            session,
            who,
            NewGitCredential(
                id=row_id,
                host=f"git-{row_id.int}.test",
                kind="gitea",
                api_url="https://git.test/api/v1",
                sealed_token="v1.key.sealed",
            ),
        )


async def _save_host_credential(
    pool: Pool, who: UserActor, row_id: UUID, *, is_own: bool = True
) -> object:
    new = NewStoredCredential(
        id=row_id,
        is_own=is_own,
        host=f"host-{row_id.int}.test",
        port=443,
        path="/",
        scheme="bearer",
        header="",
        username="",
        sealed_secret="v1.key.sealed",
    )
    async with pool.transaction() as session:
        return await host_credentials.save(session, who, new)


async def _delete_host_credential(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        await host_credentials.delete_own(session, who, ROW)
    return True


async def _make_slack_code(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await slack.make_code(session, who, f"{who.role}{who.user_id.int}{who.scopes}")


async def _delete_slack_link(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        await slack.delete_link(session, who, ROW)
    return True


async def _delete_git_credential(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        await git_credentials.delete(session, who, ROW)
        return True


async def _insert_skill(pool: Pool, who: UserActor, row_id: UUID) -> object:
    new = SkillPatch(name=f"skill-{row_id.int}", description="Does it.", body="Do it.")
    async with pool.transaction() as session:
        return await skills.insert(session, who, row_id, new)


async def _update_skill(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await skills.update(session, who, ROW, SkillPatch(body="Do it well."))


async def _delete_skill(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        await skills.delete(session, who, ROW)
        return True


async def _write_note(pool: Pool, write: Callable[[DatabaseSession], Awaitable[object]]) -> object:
    async with pool.transaction() as session:
        return await write(session) or True


async def _write_project(
    pool: Pool, write: Callable[[DatabaseSession], Awaitable[object]]
) -> object:
    async with pool.transaction() as session:
        await write(session)
        return True


PROJECT: Final = ProjectId(ROW)
PROJECT_READER: Final = UserId(UUID(int=5))
"""An active user, made with the accounts."""
PROJECTS: Final[Mapping[str, Case]] = {
    "memory.insert": lambda pool, who, _: _write_note(
        pool, lambda session: memory.insert(session, who, _row_to_make(who), text="a")
    ),
    "memory.list_kept": lambda pool, who, _: memory.list_kept(pool, who, None),
    "memory.list_proposed": lambda pool, who, _: memory.list_proposed(pool, who),
    "memory.get": lambda pool, who, _: memory.get(pool, who, ROW),
    "memory.update": lambda pool, who, _: _write_note(
        pool, lambda session: memory.update(session, who, ROW, NotePatch(text="b"))
    ),
    "memory.accept": lambda pool, who, _: _write_note(
        pool, lambda session: memory.accept(session, who, PROPOSED_NOTE, text="b")
    ),
    "memory.dismiss": lambda pool, who, _: _write_note(
        pool, lambda session: memory.dismiss(session, who, OTHER_NOTE)
    ),
    "memory.delete": lambda pool, who, _: _write_note(
        pool, lambda session: memory.delete(session, who, ROW)
    ),
    "projects.create": lambda pool, who, _: _write_project(
        pool,
        lambda session: projects.create(
            session, who, ProjectId(_row_to_make(who)), ProjectPatch(name="Notes")
        ),
    ),
    "projects.get": lambda pool, who, _: projects.get(pool, who, PROJECT),
    "projects.require": lambda pool, who, _: projects.require(pool, who, PROJECT, None),
    "projects.list_own": lambda pool, who, _: projects.list_own(pool, who),
    "projects.update": lambda pool, who, _: _write_project(
        pool, lambda session: projects.update(session, who, PROJECT, ProjectPatch(name="Other"))
    ),
    "projects.list_members": lambda pool, who, _: projects.list_members(pool, who, PROJECT),
    "projects.set_member": lambda pool, who, _: _write_project(
        pool, lambda session: projects.set_member(session, who, PROJECT, ADMIN_USER_ID, "reader")
    ),
    "projects.remove_member": lambda pool, who, _: _write_project(
        pool, lambda session: projects.remove_member(session, who, PROJECT, PROJECT_READER)
    ),
    "projects.list_files": lambda pool, who, _: projects.list_files(pool, who, PROJECT),
    "projects.add_file": lambda pool, who, _: _write_project(
        pool, lambda session: projects.add_file(session, who, PROJECT, FILE, "other.txt")
    ),
    "projects.remove_file": lambda pool, who, _: _write_project(
        pool, lambda session: projects.remove_file(session, who, PROJECT, LINKED)
    ),
    "projects.lock_for_edit": lambda pool, who, _: _write_project(
        pool, lambda session: projects.lock_for_edit(session, who, PROJECT)
    ),
    "projects.delete": lambda pool, who, _: _write_project(
        pool, lambda session: projects.delete(session, who, PROJECT)
    ),
}
OWNED_ROWS: Final[Mapping[str, Case]] = {
    **PROJECTS,
    "files.list_page": lambda pool, who, chat: files.list_page(
        pool, who, chat.id, after=None, limit=9
    ),
    "files.get": lambda pool, who, _: files.get(pool, FILE, who),
    "files.list_attachable": lambda pool, who, _: files.list_attachable(pool, [FILE], who),
    "files.get_by_request": lambda pool, who, _: files.get_by_request(pool, "key", who),
    "files.list_own": lambda pool, who, _: files.list_own(pool, who, after=None, limit=9),
    "file_stores.check_quota": lambda pool, who, _: _has_full_quota(pool, who),
    "file_stores.begin_upload": lambda pool, who, _: _begin(pool, who, _row_to_make(who)),
    "files.delete_own": lambda pool, who, _: files.delete_own(pool, FILE, who),
    "account.git_credentials.save": lambda pool, who, _: _save_git_credential(
        pool, who, _row_to_make(who)
    ),
    "account.host_credentials.save": lambda pool, who, _: _save_host_credential(
        pool, who, _row_to_make(who)
    ),
    "account.host_credentials.list_own": lambda pool, who, _: host_credentials.list_own(pool, who),
    "account.host_credentials.delete_own": lambda pool, who, _: _delete_host_credential(pool, who),
    "account.git_credentials.list_own": lambda pool, who, _: git_credentials.list_own(pool, who),
    "account.git_credentials.delete": lambda pool, who, _: _delete_git_credential(pool, who),
    "deployment.mcp_tokens.list_own": lambda pool, who, _: mcp_tokens.list_own(pool, who),
    "deployment.mcp_tokens.save": lambda pool, who, _: _save_token(pool, who),
    "deployment.mcp_tokens.delete_own": lambda pool, who, _: _delete_token(pool, who),
    "deployment.slack.list_links": lambda pool, who, _: slack.list_links(pool, who),
    "deployment.slack.make_code": lambda pool, who, _: _make_slack_code(pool, who),
    "deployment.slack.delete_link": lambda pool, who, _: _delete_slack_link(pool, who),
    "deployment.webhooks.subscribe": lambda pool, who, _: _subscribe(
        pool, who, BROWSER if who.user_id != OWNER else UUID(int=45)
    ),
    "deployment.webhooks.list_own_push": lambda pool, who, _: webhooks.list_own_push(pool, who),
    "deployment.webhooks.insert_push_ping": lambda pool, who, _: webhooks.insert_push_ping(
        pool, who, BROWSER
    ),
    "deployment.webhooks.delete_push": lambda pool, who, _: webhooks.delete_push(
        pool, who, BROWSER
    ),
    "account.runtime_settings.get_user": lambda pool, who, _: runtime_settings.get_user(
        pool, who, OWNER
    ),
    "account.runtime_settings.save_user": lambda pool, who, _: _save_settings(pool, who),
    "deployment.schedules.insert": lambda pool, who, _: schedules.insert(
        pool, who, _schedule(_row_to_make(who))
    ),
    "deployment.schedules.get": lambda pool, who, _: schedules.get(pool, who, ROW),
    "deployment.schedules.list_own": lambda pool, who, _: schedules.list_own(pool, who),
    "deployment.schedules.update": lambda pool, who, _: _update_schedule(pool, who),
    "deployment.schedules.set_due": lambda pool, who, _: schedules.set_due(pool, who, ROW),
    "deployment.schedules.delete": lambda pool, who, _: schedules.delete(pool, who, ROW),
    "account.skills.insert": lambda pool, who, _: _insert_skill(pool, who, _row_to_make(who)),
    "account.skills.get": lambda pool, who, _: skills.get(pool, who, ROW),
    "account.skills.list_of": lambda pool, who, _: skills.list_of(pool, who, OWNER),
    "account.skills.read_body": lambda pool, who, _: skills.read_body(pool, who, OWNER, "skill-42"),
    "account.skills.update": lambda pool, who, _: _update_skill(pool, who),
    "account.skills.delete": lambda pool, who, _: _delete_skill(pool, who),
    "deployment.webhooks.insert": lambda pool, who, _: _insert_webhook(
        pool, who, _row_to_make(who)
    ),
    "deployment.webhooks.get": lambda pool, who, _: webhooks.get(pool, who, ROW),
    "deployment.webhooks.list_own": lambda pool, who, _: webhooks.list_own(pool, who),
    "deployment.webhooks.update": lambda pool, who, _: webhooks.update(
        pool, who, ROW, url="https://other.test/", events=None, enabled=None
    ),
    "deployment.webhooks.insert_ping": lambda pool, who, _: webhooks.insert_ping(pool, who, ROW),
    "deployment.webhooks.list_deliveries": lambda pool, who, _: webhooks.list_deliveries(
        pool, who, ROW, before=None, limit=9
    ),
    "deployment.webhooks.delete": lambda pool, who, _: webhooks.delete(pool, who, ROW),
}


async def prepare_owned_rows(pool: Pool) -> None:
    """One of each, of the owner."""
    owner = member()
    await _begin(pool, owner, FILE)
    new = NewFile(
        name="a", media_type="text/plain", size_bytes=1, sha256="0" * 64, request_key="key"
    )
    await file_stores.finish_upload(pool, FILE, new, FileLimits())
    await _begin(pool, owner, LINKED)
    await file_stores.finish_upload(pool, LINKED, replace(new, request_key=None), FileLimits())
    await pool.execute("INSERT INTO chat_files (chat_id, file_id) VALUES ($1, $2)", CHAT, LINKED)
    await _begin(pool, owner, ROW)
    await insert_mcp_server(pool, 1)
    await _save_token(pool, owner)
    await _subscribe(pool, owner, BROWSER)
    await _insert_webhook(pool, owner, ROW)
    await webhooks.insert_ping(pool, owner, ROW)
    await schedules.insert(pool, owner, _schedule(ROW))
    await _insert_skill(pool, owner, ROW)
    await _write_note(pool, lambda session: memory.insert(session, owner, ROW, text="a"))
    for note_id in (PROPOSED_NOTE, OTHER_NOTE):
        await pool.execute(
            "INSERT INTO memory_notes (id, owner_id, state, text) VALUES ($1, $2, 'proposed', 'a')",
            note_id,
            OWNER,
        )
    async with pool.transaction() as session:
        await projects.create(session, owner, PROJECT, ProjectPatch(name="Notes"))
        await projects.set_member(session, owner, PROJECT, PROJECT_READER, "reader")
        await projects.add_file(session, owner, PROJECT, LINKED, "notes.txt")
    await pool.execute(
        "INSERT INTO slack_connections (id, name, bot_token, app_token)"
        " VALUES ($1, 'of links', 'v1.key.sealed', 'v1.key.sealed')",
        ROW,
    )
    await pool.execute(
        "INSERT INTO slack_links (id, connection_id, slack_user, user_id)"
        " VALUES ($1, $1, 'U1', $2)",
        *(ROW, OWNER),
    )
    await _save_git_credential(pool, owner, ROW)
    await _save_host_credential(pool, owner, ROW)
    async with pool.transaction() as session:
        await runtime_settings.save_user(session, owner, UserSettings(), version=0)
