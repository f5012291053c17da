"""For every function of the store that takes an actor: a call that gives the owner of the rows, or
an administrator, something, and nobody else. Here those of chats and workspaces."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.access.permissions import UserActor
from chatd.domain.access.shares import ShareRequest
from chatd.domain.answer.answer import Answer
from chatd.domain.answer.debug_calls import build_document
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import UpdateChat
from chatd.domain.chat.row import Chat, DiffStatus
from chatd.domain.chat.states import State
from chatd.domain.chat_views.transfer import ChatLine
from chatd.domain.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    InvariantBroken,
    NotFound,
    TooManyUploads,
)
from chatd.domain.ids import ChangeId, ChatId, MessageId, RequestId, UserId
from chatd.domain.model.protocol import ModelRequest
from chatd.domain.workspace.agent_api import ContextResource, WorkspaceContext
from chatd.domain.workspace.runners import RunnerId
from chatd.store import idempotency, search
from chatd.store.account import public_links, shares
from chatd.store.chat import (
    chats,
    message_pages,
    messages,
    operation,
    ratings,
    runs,
    subagents,
    transfer,
    updates,
    versions,
)
from chatd.store.chat.chats import ChatListFilter
from chatd.store.database.conn import DatabaseSession, DuplicateRow
from chatd.store.database.pool import Pool
from chatd.store.model import model_calls
from chatd.store.workspace import bindings, builds, runners, templates, workspaces
from tests.store.account_cases import (
    ADMINISTRATION,
    OWN_ACCOUNT,
    READER,
    in_transaction,
    prepare_accounts,
)
from tests.store.owned_row_cases import OWNED_ROWS, prepare_owned_rows
from tests.store.policy_cases import POLICIES, SHARED_POLICIES, prepare_policies
from tests.support.debug_calls import debug_call
from tests.support.factories import AT, CHAT, HARNESS, OWNER, WORKER, member
from tests.support.outcomes import present
from tests.support.runners import insert_runner, own_runner
from tests.support.seeds import Seed
from tests.support.store import insert_seed, open_child
from tests.support.workspaces import (
    HOST,
    TEMPLATE,
    VERSION,
    agent_id,
    agent_spec,
    build_id,
    hold,
    insert_workspace,
    new_build,
    new_workspace,
    template,
    version,
    wanted,
    workspace_id,
)

STRANGER: Final = member(UserId(UUID(int=999)))
KEY: Final = IdempotencyKey(scope=CHAT, id=RequestId(UUID(int=1)), op="send", fingerprint="f")
REFUSALS: Final = (
    *(NotFound, Forbidden, InvalidInput, InvariantBroken),
    *(Conflict, DuplicateRow, TooManyUploads),
)
OVERDUE: Final = builds.OverdueWorkspace(
    workspace_id=workspace_id(3),
    owner_id=OWNER,
    latest_build=1,
    build_id=build_id(3),
    version_id=VERSION,
    in_turn=False,
)

ARCHIVED: Final = ChatId(UUID(int=11))
LAPTOP: Final = RunnerId("laptop")
CHILD: Final = 12
CHILD_CHAT: Final = ChatId(UUID(int=CHILD))
_SKILL: Final = ContextResource(
    kind="skill", source="/skills/notes/SKILL.md", status="ok", name="notes", content="Take notes."
)
_MCP_SERVER: Final = ContextResource(
    kind="mcp_server", source=".mcp.json", status="ok", name="files", content="[]"
)
CONTEXT: Final = WorkspaceContext(
    version=1, hash="h", directory="/", os="linux", resources=(_SKILL, _MCP_SERVER)
)
IMPORT: Final = transfer.ImportRequest(
    change_id=ChangeId(8),
    ids=[CHAT],
    chats=[ChatLine(number=1, title="Mine", labels={}, created_at=AT)],
    messages=[],
)
"""A repeated import of the chat."""

Case = Callable[[Pool, UserActor, Chat], Awaitable[object]]


async def _messages_of_replay(pool: Pool, who: UserActor, chat: Chat) -> object:
    change_id = chat.recent_changes[0]
    return list((await operation.load_applied(pool, who, chat, change_id)).messages)


async def _update(pool: Pool, who: UserActor, chat: Chat) -> object:
    async with pool.transaction() as session:
        return await updates.update_chat(session, who, chat, UpdateChat(title="Mine"))


async def _choose_mcp_servers(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await updates.set_mcp_servers(session, who, CHAT, ())


async def _share(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await shares.update(session, who, CHAT, ShareRequest(users={READER: "read"}))


async def _share_preview(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await shares.share_preview(session, who, CHAT, 3000, shared=True)


LINK: Final = UUID(int=90)


async def _insert_link(pool: Pool, who: UserActor, number: int = 90) -> object:
    new = public_links.NewPublicLink(id=UUID(int=number), chat_id=CHAT, secret=f"s{number}", days=1)
    rules = public_links.LinkRules(enabled=True, max_days=1)
    async with pool.transaction() as session:
        return await public_links.insert(session, who, new, rules)


async def _update_link(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await public_links.update(session, who, LINK)


async def _remove_rating(pool: Pool, who: UserActor) -> object:
    await ratings.delete(pool, who, CHAT, MessageId(2))
    return True


async def _revoke_link(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        await public_links.revoke(session, who, LINK)
    return True


async def _mark_deleted(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await updates.mark_deleted(session, who, ARCHIVED)


async def _find(pool: Pool, who: UserActor) -> object:
    return (await search.find_in_chat(pool, who, CHAT, ("first",))).message_ids


async def _count_subagents(pool: Pool, who: UserActor) -> object:
    return (await subagents.count(pool, who, CHAT)).total


async def _list_subagents(pool: Pool, who: UserActor) -> object:
    return (await subagents.list_page(pool, who, CHAT, limit=5, offset=0))[0]


async def _own_mark(pool: Pool, who: UserActor) -> object:
    """0: the actor has read nothing of the chat."""
    return (await updates.list_views_of(pool, who, [CHAT]))[CHAT].read_up_to


async def _lock_runner(session: DatabaseSession, who: UserActor) -> object:
    return await runners.lock(session, who, LAPTOP) or False


async def _is_usable(pool: Pool, who: UserActor) -> object:
    """Raises NotFound if it is not."""
    await bindings.require_usable_workspace(pool, who, workspace_id(1), OWNER)
    return True


DIFF_STATUS: Final = DiffStatus(branch="main", base="", additions=1, deletions=0, changed_files=1)

TEMPLATES: Final[Mapping[str, Case]] = {
    "workspace.templates.list_configured": lambda pool, who, _: templates.list_configured(
        pool, who
    ),
    "workspace.templates.get_configured": lambda pool, who, _: templates.get_configured(
        pool, who, TEMPLATE
    ),
    "workspace.templates.list_versions": lambda pool, who, _: templates.list_versions(
        pool, who, TEMPLATE, before=9, limit=9
    ),
    "workspace.templates.version_number": lambda pool, who, _: templates.version_number(
        pool, who, TEMPLATE, VERSION
    ),
    "workspace.templates.find_to_change": in_transaction(
        lambda session, who: templates.find_to_change(session, who, TEMPLATE)
    ),
    "workspace.templates.write_template": in_transaction(
        lambda session, who: templates.write_template(
            session, who, templates.TemplateUpsert(template=template(), version=version())
        )
    ),
    "workspace.templates.activate_version": in_transaction(
        lambda session, who: templates.activate_version(session, who, TEMPLATE, VERSION)
    ),
    "workspace.templates.delete_template": in_transaction(
        lambda session, who: templates.delete_template(session, who, TEMPLATE)
    ),
}

CASES: Final[Mapping[str, Case]] = {
    "chat.chats.set_diff_status": lambda pool, who, _: chats.set_diff_status(
        pool, who, CHAT, DIFF_STATUS
    ),
    "model.model_calls.list_debug_calls": lambda pool, who, _: model_calls.list_debug_calls(
        pool, who, CHAT, None, limit=5
    ),
    "model.model_calls.get_debug_call": lambda pool, who, _: model_calls.get_debug_call(
        pool, who, CHAT, UUID(int=1)
    ),
    "chat.runs.list_runs": lambda pool, who, _: runs.list_runs(pool, who, CHAT),
    "chat.runs.get_holder": lambda pool, who, _: runs.get_holder(pool, who, CHAT),
    "chat.runs.list_workers": lambda pool, who, _: runs.list_workers(pool, who),
    "chat.chats.get": lambda pool, who, _: chats.get(pool, who, CHAT),
    "chat.chats.get_for_command": lambda pool, who, _: chats.get_for_command(
        pool, who, CHAT, "chats.write"
    ),
    "chat.chats.get_many": lambda pool, who, _: chats.get_many(pool, who, [CHAT]),
    "chat.chats.load_for_transition": lambda pool, who, _: chats.load_for_transition(
        pool, who, CHAT, "chats.write"
    ),
    "chat.chats.load_changes_since": lambda pool, who, _: chats.load_changes_since(
        pool, who, CHAT, 0
    ),
    "chat.chats.lock_tree": lambda pool, who, _: chats.lock_tree(pool, who, CHAT, "chats.control"),
    "chat.chats.set_title": lambda pool, who, chat: chats.set_title(
        pool, who, CHAT, expected=chat.title, title="Mine"
    ),
    "chat.chats.list_roots": lambda pool, who, _: chats.list_roots(pool, who, ChatListFilter()),
    "chat.chats.list_pinned": lambda pool, who, _: chats.list_pinned(pool, who),
    "chat.chats.list_children": lambda pool, who, _: chats.list_children(pool, who, [CHAT]),
    "chat.chats.list_versions": lambda pool, who, _: chats.list_versions(pool, who, [CHAT]),
    "chat.message_pages.load_page": lambda pool, who, _: message_pages.load_page(
        pool, who, CHAT, message_pages.MessageRange()
    ),
    "chat.messages.load_history": lambda pool, who, _: messages.load_history(pool, who, CHAT),
    "chat.versions.list_groups": lambda pool, who, _: versions.list_groups(
        pool, who, CHAT, MessageId(0), limit=10
    ),
    "chat.messages.is_compactable": lambda pool, who, _: messages.is_compactable(pool, who, CHAT),
    "idempotency.get": lambda pool, who, _: idempotency.get(pool, who, KEY),
    "chat.operation.find_replay": lambda pool, who, _: operation.find_replay(pool, who, KEY),
    "chat.operation.load_applied": _messages_of_replay,
    "chat.subagents.get": lambda pool, who, _: subagents.get(pool, who, CHAT, CHILD_CHAT),
    "chat.subagents.get_waited": lambda pool, who, _: subagents.get_waited(
        pool, who, CHAT, CHILD_CHAT
    ),
    "chat.subagents.count": lambda pool, who, _: _count_subagents(pool, who),
    "chat.subagents.list_page": lambda pool, who, _: _list_subagents(pool, who),
    "chat.subagents.list_oldest": lambda pool, who, _: subagents.list_oldest(pool, who, CHAT),
    "chat.subagents.read_report": lambda pool, who, _: subagents.read_report(pool, who, CHAT),
    "chat.updates.move_read_mark": lambda pool, who, _: updates.move_read_mark(
        pool, who, CHAT, MessageId(1)
    ),
    "chat.updates.list_views_of": lambda pool, who, _: _own_mark(pool, who),
    "account.shares.list_readers": lambda pool, who, _: shares.list_readers(pool, who, CHAT),
    "account.shares.update": lambda pool, who, _: _share(pool, who),
    "chat.updates.acquire_title_lease": lambda pool, who, _: updates.acquire_title_lease(
        pool, who, CHAT, UUID(int=5), seconds=60
    ),
    "chat.updates.update_chat": _update,
    "chat.updates.set_mcp_servers": lambda pool, who, _: _choose_mcp_servers(pool, who),
    "chat.updates.mark_deleted": lambda pool, who, _: _mark_deleted(pool, who),
    "search.search": lambda pool, who, _: search.search(
        pool, who, ChatListFilter(), ("first",), ()
    ),
    "search.find_in_chat": lambda pool, who, _: _find(pool, who),
    "search.load_messages": lambda pool, who, chat: search.load_messages(
        pool,
        who,
        [search.SearchHit(root=chat, chat_id=CHAT, message_id=MessageId(1), at=chat.created_at)],
    ),
    "chat.message_pages.list_prompts_of_chat": lambda pool, who, _: (
        message_pages.list_prompts_of_chat(pool, who, CHAT, None, limit=9)
    ),
    "chat.message_pages.list_prompts_of_user": lambda pool, who, _: (
        message_pages.list_prompts_of_user(pool, who, None, limit=9)
    ),
    "chat.transfer.fork": lambda pool, who, _: transfer.fork(
        pool,
        who,
        transfer.ForkRequest(id=ChatId(UUID(int=77)), source_id=CHAT, change_id=ChangeId(9)),
    ),
    "chat.transfer.write_import": lambda pool, who, _: transfer.write_import(
        pool, who, IMPORT, max_files=1
    ),
    "chat.transfer.load_root": lambda pool, who, _: transfer.load_root(pool, who, CHAT),
    "workspace.bindings.get": lambda pool, who, _: bindings.get(pool, who, CHAT),
    "workspace.bindings.bind": lambda pool, who, _: bindings.bind(
        pool, who, CHAT, expected=None, workspace_id=workspace_id(1)
    ),
    "chat.ratings.save": lambda pool, who, _: ratings.save(
        pool, who, CHAT, MessageId(3), value="up", comment=""
    ),
    "chat.ratings.list_page": lambda pool, who, _: ratings.list_page(
        pool, who, CHAT, after=0, limit=9
    ),
    "chat.ratings.delete": lambda pool, who, _: _remove_rating(pool, who),
    "account.public_links.insert": lambda pool, who, _: _insert_link(pool, who, 91),
    "account.public_links.list_of_chat": lambda pool, who, _: public_links.list_of_chat(
        pool, who, CHAT
    ),
    "account.public_links.list_page": lambda pool, who, _: public_links.list_page(
        pool, who, everyone=False, before=None, limit=9
    ),
    "account.public_links.update": lambda pool, who, _: _update_link(pool, who),
    "account.public_links.revoke": lambda pool, who, _: _revoke_link(pool, who),
    "account.shares.list_previews": lambda pool, who, _: shares.list_previews(pool, who, CHAT),
    "account.shares.share_preview": lambda pool, who, _: _share_preview(pool, who),
    "account.shares.can_see_preview": lambda pool, who, _: shares.can_see_preview(
        pool, who, workspace_id(1), 3000
    ),
    "workspace.bindings.get_spec": lambda pool, who, _: bindings.get_spec(pool, who, CHAT),
    "workspace.bindings.save_bound_agent": lambda pool, who, _: bindings.save_bound_agent(
        pool, who, CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    ),
    "workspace.bindings.require_usable_workspace": lambda pool, who, _: _is_usable(pool, who),
    "workspace.bindings.find_running": lambda pool, who, _: bindings.find_running(
        pool, who, workspace_id(2)
    ),
    "workspace.bindings.latest_chat_per_workspace": lambda pool, who, _: (
        bindings.latest_chat_per_workspace(pool, who, [workspace_id(1)])
    ),
    "workspace.bindings.pin_context": lambda pool, who, _: bindings.pin_context(
        pool, who, CHAT, agent_id(2)
    ),
    "workspace.bindings.list_mcp_servers": lambda pool, who, _: bindings.list_mcp_servers(
        pool, who, ARCHIVED
    ),
    "workspace.bindings.get_pinned_skill": lambda pool, who, _: bindings.get_pinned_skill(
        pool, who, CHAT, "notes"
    ),
    "workspace.bindings.get_pinned_context": lambda pool, who, _: bindings.get_pinned_context(
        pool, who, CHAT
    ),
    "workspace.builds.insert": lambda pool, who, _: builds.insert(
        pool, who, new_build(12, workspace_id=workspace_id(2), made_by="b")
    ),
    "workspace.builds.get": lambda pool, who, _: builds.get(pool, who, build_id(1)),
    "workspace.builds.find_by_request_key": lambda pool, who, _: builds.find_by_request_key(
        pool, who, "b", "stop"
    ),
    "workspace.builds.list_builds": lambda pool, who, _: builds.list_builds(
        pool, who, workspace_id(1)
    ),
    "workspace.builds.cancel": lambda pool, who, _: builds.cancel(pool, who, build_id(1)),
    "workspace.builds.insert_stop_build": lambda pool, who, _: builds.insert_stop_build(
        pool, who, OVERDUE, build_id(13)
    ),
    "workspace.builds.list_log": lambda pool, who, _: builds.list_log(pool, who, build_id(1)),
    "workspace.workspaces.create": lambda pool, who, _: workspaces.create(
        pool, who, new_workspace(4)
    ),
    "workspace.workspaces.find_by_request_key": lambda pool, who, _: workspaces.find_by_request_key(
        pool, who, "k"
    ),
    "workspace.workspaces.get": lambda pool, who, _: workspaces.get(pool, who, workspace_id(1)),
    "workspace.workspaces.load_snapshot": lambda pool, who, _: workspaces.load_snapshot(
        pool, who, workspace_id(1)
    ),
    "workspace.workspaces.can_preview": lambda pool, who, _: workspaces.can_preview(
        pool, who, workspace_id(1)
    ),
    "workspace.workspaces.list_page": lambda pool, who, _: workspaces.list_page(
        pool, who, after=None, limit=9
    ),
    "workspace.runners.list_page": lambda pool, who, _: runners.list_page(
        pool, who, after=None, limit=9
    ),
    "workspace.runners.get": lambda pool, who, _: runners.get(pool, who, LAPTOP),
    "workspace.runners.lock": in_transaction(_lock_runner),
    "workspace.runners.update": in_transaction(
        lambda session, who: runners.update(session, who, LAPTOP, draining=True)
    ),
    "workspace.runners.list_workspaces": lambda pool, who, _: runners.list_workspaces(
        pool, who, RunnerId(HOST), limit=9
    ),
    "workspace.runners.list_waiting": lambda pool, who, _: runners.list_waiting(pool, who, limit=9),
    "workspace.runners.delete": in_transaction(
        lambda session, who: runners.delete(session, who, LAPTOP)
    ),
    "workspace.templates.list_usable": lambda pool, who, _: templates.list_usable(pool, who, OWNER),
    "workspace.templates.is_usable": lambda pool, who, _: templates.is_usable(
        pool, who, OWNER, template(), "workspaces.read"
    ),
    "workspace.templates.has_workspace": lambda pool, who, _: templates.has_workspace(
        pool, who, OWNER, TEMPLATE
    ),
    "workspace.templates.list_usage": lambda pool, who, _: templates.list_usage(pool, who, OWNER),
    **OWN_ACCOUNT,
    **OWNED_ROWS,
    **POLICIES,
    **ADMINISTRATION,
    **SHARED_POLICIES,
    **TEMPLATES,
}


def allowed(name: str) -> UserActor:
    """The owner, or an administrator for what is about the deployment."""
    is_administration = (
        name in {*ADMINISTRATION, *SHARED_POLICIES, *TEMPLATES} or name == "chat.runs.list_workers"
    )
    return UserActor(user_id=OWNER, role="admin" if is_administration else "member")


def stranger(name: str) -> UserActor:
    """Who may share chats finds the names of all users: not a viewer."""
    return replace(STRANGER, role="viewer") if name == "account.shares.find_readers" else STRANGER


def is_nothing(found: object) -> bool:
    """Nothing found, or a page without rows."""
    return not found or found == (list[object](), False)


async def prepare(pool: Pool) -> Chat:
    """Rows that every case finds or changes, all of one owner."""
    chat = await insert_seed(pool, Seed(state=State.W))
    await insert_seed(pool, Seed(state=State.XW0, chat_id=ARCHIVED))
    await open_child(pool, CHILD, 1)
    await pool.execute("UPDATE chats SET pin_order = 1 WHERE id = $1", CHAT)
    await pool.execute(
        "INSERT INTO chat_requests (scope, request_id, chat_id, op, fingerprint, version)"
        " VALUES ($1, $2, $1, $3, $4, $5)",
        *(CHAT, KEY.id, KEY.op, KEY.fingerprint, chat.snapshot_version),
    )
    await pool.execute(
        "INSERT INTO chat_workers (worker_id, lock_key, lease_until) VALUES ($1, 1, now())", WORKER
    )
    await pool.execute(
        "INSERT INTO chat_message_versions (chat_id, message_id, group_id, hidden, line_end)"
        " VALUES ($1, 1, 1, '{1}', '{}'), ($1, 2, 1, NULL, NULL)",
        CHAT,
    )
    await pool.execute(
        "UPDATE chat_messages SET deleted_at = now() WHERE chat_id = $1 AND id = 1", CHAT
    )
    await _insert_link(pool, member())
    await ratings.save(pool, member(), CHAT, MessageId(3), value="up", comment="")
    call = debug_call(ModelRequest(model="m", messages=()), Answer(content=()))
    await model_calls.insert_debug_call(pool, call, build_document(call))
    while await search.index_batch(pool):
        pass
    await _prepare_workspaces(pool)
    await insert_runner(pool, own_runner(LAPTOP))
    await prepare_accounts(pool)
    await prepare_owned_rows(pool)
    await prepare_policies(pool)
    return present(await chats.get(pool, HARNESS, CHAT))


async def _prepare_workspaces(pool: Pool) -> None:
    """The first has a pending build, the others run."""
    for number in (2, 3):
        await insert_workspace(pool, number)
        [taken] = await builds.acquire_builds(pool, wanted())
        ended = builds.BuildResult(status="succeeded", agents=(agent_spec(number),))
        assert await builds.finish_build(pool, hold(taken.build), ended)
    await insert_workspace(pool, 1, made_by="k")
    await pool.execute(
        "INSERT INTO workspace_build_logs (build_id, stage, level, output)"
        " VALUES ($1, 'start', 'info', 'hello')",
        build_id(1),
    )
    assert await bindings.save_context(pool, agent_id(2), CONTEXT, initial=True)
    bound = [ARCHIVED, CHILD_CHAT]
    await pool.execute(
        "UPDATE chats SET workspace_id = $2 WHERE id = ANY ($1)", bound, workspace_id(2)
    )
