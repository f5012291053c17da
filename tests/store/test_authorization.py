"""Every function of the store on users' rows takes the actor; a stranger gets nothing from it."""

import ast
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from msgspec.structs import replace

import chatd.store
from chatd.domain.access import UserActor
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.chat.shares import ShareRequest
from chatd.domain.chat.states import State
from chatd.domain.errors import Forbidden, InvalidInput, InvariantBroken, NotFound
from chatd.domain.ids import ChangeId, ChatId, MessageId, RequestId, UserId
from chatd.store.chat import (
    chats,
    forks,
    idempotency,
    message_pages,
    messages,
    operation,
    prompts,
    read_marks,
    runs,
    search,
    shares,
    title_leases,
    updates,
)
from chatd.store.chat.chats import ChatListFilter
from chatd.store.pool import Pool
from chatd.store.workspace import bindings, build_leases, builds, templates, workspaces
from tests.support.factories import CHAT, HARNESS, OWNER, member
from tests.support.seeds import Seed
from tests.support.store import dump, insert_seed
from tests.support.workspaces import (
    VERSION,
    agent_id,
    build_id,
    insert_workspace,
    new_build,
    new_workspace,
    workspace_id,
)

WITHOUT_ACTOR: Final[Mapping[str, str]] = {
    "account.audit.delete_old": "maintenance",
    "account.credentials.load": "finds the actor",
    "account.credentials.use": "finds the actor",
    "account.credentials.load_user": "finds the actor",
    "account.identities.use_answer": "before there is an actor",
    "account.sign_in_attempts": "before there is an actor",
    "account.users.has_other_administrator": "counts, inside the transaction of a write",
    "account.users.needs_setup": "before there is an actor",
    "chat.change_writer.apply": "compares with a row that was loaded for the actor",
    "chat.chats.has_change": "tells the feeds whether a change was stored, and no content",
    "chat.chats.lock": "returns nothing",
    "chat.chats.list_recently_active": "the feeds ask for the owners that watch their lists",
    "chat.idempotency.delete_old_requests": "maintenance",
    "chat.idempotency.clear_old_request_keys": "maintenance",
    "chat.idempotency.mark_tool_started": "fenced: only the worker that owns the chat",
    "chat.journal": "live parts of the chats that this replica runs or feeds",
    "chat.messages.decode_in_slices": "reads no row",
    "chat.open_calls": "model calls of workers, for billing",
    "chat.read_marks.list_marks": "the feeds ask for the users that watch their lists",
    "chat.runs.list_lanes": "the workers of the deployment, no rows of users",
    "chat.search_index": "maintenance of the index",
    "chat.title_leases.release": "by the id of the lease, which only its holder knows",
    "chat.transfer": "the owner is in the statement, or the rows were loaded for the owner",
    "chat.updates.lock_pins": "returns nothing",
    "chat.usage": "billing; the cost of a tree is read after its chat was read for the actor",
    "chat.workers": "leases of workers",
    "config_changes": "notices without content",
    "conn": "no rows of users",
    "costs.by_model": "after require_readable",
    "costs.by_day": "after require_readable",
    "costs.by_chat": "after require_readable",
    "file.files.list_of_chat": "for the worker that runs the chat",
    "file.files.sweep": "maintenance",
    "file.files.clear_old_keys": "maintenance",
    "file.files.get_link_user": "finds the actor of a signed link",
    "shared_keys": "the server's own keys",
    "file.uploads.finish": "by the id of the upload, which its request made",
    "file.uploads.abandon": "by the id of the upload, which its request made",
    "file.uploads.list_dead": "maintenance",
    "file.uploads.forget": "maintenance",
    "migrator": "the schema",
    "model_configs": "no rows of users",
    "model_declarations": "no rows of users",
    "push.insert_signing_key": "the server's own key",
    "push.load_signing_key": "the server's own key",
    "push.last_answer": "the sender of all webhooks, to the chat's owner",
    "providers": "configuration; a user's own keys have the user in the statement",
    "retention": "maintenance",
    "schedules.list_due": "the runner of all schedules",
    "schedules.finish": "the runner of all schedules",
    "schedules.read_time": "no rows of users",
    "sealed_columns": "key rotation",
    "secret_keys": "no rows of users",
    "server_check": "no rows of users",
    "spend": "the limit check of the server",
    "webhooks.claim": "the sender of all webhooks",
    "webhooks.finish": "the sender of all webhooks",
    "webhooks.has_any": "tells the sender whether there is any webhook, and no content",
    "webhooks.delete_ended": "maintenance",
    "workspace.agents": "the monitor of a host's agents",
    "workspace.bindings.is_owner": "fenced: only the worker that owns the chat",
    "workspace.bindings.save_context": "the monitor of a host's agents",
    "workspace.build_leases": "leases of build workers",
    "workspace.builds.list_overdue": "maintenance",
    "workspace.templates": "the catalog, which all users read",
    "workspace.workspaces.list_on_host": "maintenance of a host",
    "workspace.workspaces.list_deleted": "maintenance of a host",
    "workspace.workspaces.record_activity": "maintenance of a host",
}
"""A function, or a module for all its functions without an actor, and why it has none."""

OTHER_MODULES: Final = frozenset(
    {
        "account",
        "costs",
        "file",
        "push",
        "runtime_settings",
        "schedules",
        "spend_limits",
        "webhooks",
    }
)
"""These have no case here yet: only the modules of chats and workspaces have."""

STRANGER: Final = member(UserId(UUID(int=999)))
KEY: Final = IdempotencyKey(scope=CHAT, id=RequestId(UUID(int=1)), op="send", fingerprint="f")
REFUSALS: Final = (NotFound, Forbidden, InvalidInput, InvariantBroken)
OVERDUE: Final = builds.OverdueWorkspace(
    workspace_id=workspace_id(1),
    owner_id=OWNER,
    latest_build=1,
    build_id=build_id(1),
    version_id=VERSION,
    in_turn=False,
)

Case = Callable[[Pool, UserActor, Chat], Awaitable[object]]


async def _messages_of_replay(pool: Pool, who: UserActor, chat: Chat) -> object:
    change_id = chat.recent_changes[0]
    return list((await operation.load_applied(pool, who, chat, change_id)).messages)


async def _update(pool: Pool, who: UserActor, chat: Chat) -> object:
    async with pool.transaction() as session:
        return await updates.update_chat(session, who, chat, UpdateChat(title="Mine"))


async def _share(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await shares.update(
            session, who, CHAT, ShareRequest(users={STRANGER.user_id: "read"})
        )


async def _mark_deleted(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        return await updates.mark_deleted(session, who, CHAT)


CASES: Final[Mapping[str, Case]] = {
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
    "chat.messages.has_answer_since_boundary": lambda pool, who, _: (
        messages.has_answer_since_boundary(pool, who, CHAT)
    ),
    "chat.idempotency.get": lambda pool, who, _: idempotency.get(pool, who, KEY),
    "chat.operation.find_replay": lambda pool, who, _: operation.find_replay(pool, who, KEY),
    "chat.operation.load_applied": _messages_of_replay,
    "chat.read_marks.move": lambda pool, who, _: read_marks.move(pool, who, CHAT, MessageId(1)),
    "chat.read_marks.list_marks_of": lambda pool, who, _: read_marks.list_marks_of(pool, who, []),
    "chat.shares.list_readers": lambda pool, who, _: shares.list_readers(pool, who, CHAT),
    "chat.shares.update": lambda pool, who, _: _share(pool, who),
    "chat.title_leases.acquire": lambda pool, who, _: title_leases.acquire(
        pool, who, CHAT, UUID(int=5), seconds=60
    ),
    "chat.updates.update_chat": _update,
    "chat.updates.mark_deleted": lambda pool, who, _: _mark_deleted(pool, who),
    "chat.search.search": lambda pool, who, _: search.search(
        pool, who, ChatListFilter(), ("hello",), ()
    ),
    "chat.search.load_messages": lambda pool, who, chat: search.load_messages(
        pool,
        who,
        [search.SearchHit(root=chat, chat_id=CHAT, message_id=MessageId(1), at=chat.created_at)],
    ),
    "chat.prompts.list_of_chat": lambda pool, who, _: prompts.list_of_chat(
        pool, who, CHAT, None, limit=9
    ),
    "chat.prompts.list_of_user": lambda pool, who, _: prompts.list_of_user(
        pool, who, None, limit=9
    ),
    "chat.forks.fork": lambda pool, who, _: forks.fork(
        pool,
        who,
        forks.ForkRequest(id=ChatId(UUID(int=77)), source_id=CHAT, change_id=ChangeId(9)),
    ),
    "workspace.bindings.get": lambda pool, who, _: bindings.get(pool, who, CHAT),
    "workspace.bindings.bind": lambda pool, who, _: bindings.bind(
        pool, who, CHAT, expected=None, workspace_id=workspace_id(1)
    ),
    "workspace.bindings.save_bound_agent": lambda pool, who, _: bindings.save_bound_agent(
        pool, who, CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    ),
    "workspace.bindings.require_usable_workspace": lambda pool, who, _: (
        bindings.require_usable_workspace(pool, who, workspace_id(1), OWNER)
    ),
    "workspace.bindings.latest_chat_per_workspace": lambda pool, who, _: (
        bindings.latest_chat_per_workspace(pool, who, [workspace_id(1)])
    ),
    "workspace.bindings.pin_context": lambda pool, who, _: bindings.pin_context(
        pool, who, CHAT, agent_id(1)
    ),
    "workspace.bindings.get_pinned_context": lambda pool, who, _: bindings.get_pinned_context(
        pool, who, CHAT
    ),
    "workspace.builds.insert": lambda pool, who, _: builds.insert(
        pool, who, new_build(2, transition="stop")
    ),
    "workspace.builds.get": lambda pool, who, _: builds.get(pool, who, build_id(1)),
    "workspace.builds.find_by_request_key": lambda pool, who, _: builds.find_by_request_key(
        pool, who, "k", "stop"
    ),
    "workspace.builds.list_builds": lambda pool, who, _: builds.list_builds(
        pool, who, workspace_id(1)
    ),
    "workspace.builds.cancel": lambda pool, who, _: builds.cancel(pool, who, build_id(1)),
    "workspace.builds.insert_stop_build": lambda pool, who, _: builds.insert_stop_build(
        pool, who, OVERDUE, build_id(3)
    ),
    "workspace.build_leases.list_log": lambda pool, who, _: build_leases.list_log(
        pool, who, build_id(1)
    ),
    "workspace.workspaces.create": lambda pool, who, _: workspaces.create(
        pool, who, new_workspace(2)
    ),
    "workspace.workspaces.find_by_request_key": lambda pool, who, _: workspaces.find_by_request_key(
        pool, who, "w"
    ),
    "workspace.workspaces.get": lambda pool, who, _: workspaces.get(pool, who, workspace_id(1)),
    "workspace.workspaces.load_snapshot": lambda pool, who, _: workspaces.load_snapshot(
        pool, who, workspace_id(1)
    ),
    "workspace.workspaces.list_page": lambda pool, who, _: workspaces.list_page(
        pool, who, after=None, limit=9
    ),
    "workspace.templates.list_usage": lambda pool, who, _: templates.list_usage(pool, who, OWNER),
}
OWNER_READS: Final = (
    *("chat.chats.get", "chat.chats.get_many", "chat.chats.load_changes_since"),
    *("chat.chats.list_roots", "chat.chats.list_versions", "chat.message_pages.load_page"),
    *("chat.messages.load_history", "chat.search.load_messages", "workspace.bindings.get"),
    *("workspace.builds.get", "workspace.builds.list_builds", "workspace.workspaces.get"),
    *(
        "chat.runs.get_holder",
        "workspace.workspaces.load_snapshot",
        "workspace.workspaces.list_page",
    ),
)


def store_functions() -> dict[str, bool]:
    """Every public async function of the store, and whether it takes an actor."""
    root = Path(chatd.store.__path__[0])
    found: dict[str, bool] = {}
    for path in sorted(root.rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
                names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
                found[f"{module}.{node.name}"] = "actor" in names
    return found


@pytest.mark.promise("P12")
def test_every_function_takes_the_actor_or_says_why_not() -> None:
    functions = store_functions()
    without = {name for name, takes_actor in functions.items() if not takes_actor}
    explained = {name for name in without if {name, name.rpartition(".")[0]} & set(WITHOUT_ACTOR)}
    assert without - explained == set(), "add an actor, or the reason to WITHOUT_ACTOR"
    used = {each for name in without for each in (name, name.rpartition(".")[0])}
    assert set(WITHOUT_ACTOR) - used == set(), "these reasons are not needed"


@pytest.mark.promise("P12")
def test_every_function_with_an_actor_has_a_case() -> None:
    names = {name for name, takes_actor in store_functions().items() if takes_actor}
    here = {name for name in names if name.partition(".")[0] not in OTHER_MODULES}
    assert here == set(CASES)


def is_nothing(found: object) -> bool:
    """Nothing found, or a page without rows."""
    return not found or found == (list[object](), False)


async def prepare(pool: Pool) -> Chat:
    await insert_workspace(pool, 1)
    return await insert_seed(pool, Seed(state=State.W))


@pytest.mark.promise("P12")
async def test_a_stranger_reads_nothing_and_changes_nothing(pool: Pool) -> None:
    chat = await prepare(pool)
    before = await dump(pool)
    for name, ask in CASES.items():
        try:
            found = await ask(pool, STRANGER, chat)
        except REFUSALS:
            found = None
        assert is_nothing(found), name
        assert await dump(pool) == before, name


@pytest.mark.promise("P12")
async def test_the_owner_and_the_readers_of_a_share_read_the_same_rows(pool: Pool) -> None:
    chat = await prepare(pool)
    for name in OWNER_READS:
        assert not is_nothing(await CASES[name](pool, member(OWNER), chat)), name
    user = STRANGER.user_id
    await pool.execute(
        "INSERT INTO users (id, username, role) VALUES ($1, 'stranger', 'member')", user
    )
    await pool.execute("INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)", CHAT, user)
    mine = await chats.get(pool, HARNESS, CHAT)
    assert await chats.get(pool, STRANGER, CHAT) == mine
    with pytest.raises(Forbidden):
        await chats.get_for_command(pool, STRANGER, CHAT, "chats.write")
    assert await chats.get(pool, replace(STRANGER, reads_shared=False), CHAT) is None
    await pool.execute("DELETE FROM chat_shares")
    assert await chats.get(pool, STRANGER, CHAT) is None
    for role in ("admin", "viewer"):
        assert await chats.get(pool, replace(STRANGER, role=role), CHAT) == mine
    admin = replace(STRANGER, role="admin")
    assert await chats.get_for_command(pool, admin, CHAT, "chats.control") == mine
    with pytest.raises(Forbidden):
        await chats.get_for_command(pool, admin, CHAT, "chats.write")
