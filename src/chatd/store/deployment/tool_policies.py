"""Tool policies of the deployment, of users, of templates and of chats, and who answered calls.

A policy without a row has version 0 and no rules. The policy of a chat is that of its whole tree.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, LiteralString

import msgspec
from msgspec import Raw, Struct

from chatd.domain.access.accounts import redacted_diff
from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.chat.row import Chat
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.ids import ChatId, ToolCallId, UserId
from chatd.domain.tool_policy.rules import (
    NO_POLICY,
    LayerName,
    PolicyLayer,
    ToolPolicy,
    decode_policy,
)
from chatd.domain.workspace.entities import TemplateId
from chatd.store.account import audit
from chatd.store.database.conn import Conn, DatabaseSession, Row, json_text
from chatd.store.database.row_access import chat_condition, chat_reach


def layers_of(root: LiteralString, owner: LiteralString, workspace: LiteralString) -> LiteralString:
    """SQL: the policies of a chat with this root, owner and workspace, from wide to narrow."""
    return f"""
    SELECT layer, policy FROM (
        SELECT 1 AS place, 'deployment' AS layer, policy FROM tool_policies
        WHERE user_id IS NULL AND template_id IS NULL AND chat_id IS NULL
        UNION ALL SELECT 2, 'template', p.policy
        FROM workspaces w JOIN tool_policies p ON p.template_id = w.template_id
        WHERE w.id = {workspace}
        UNION ALL SELECT 3, 'user', policy FROM tool_policies WHERE user_id = {owner}
        UNION ALL SELECT 4, 'chat', policy FROM tool_policies WHERE chat_id = {root}) layers
    ORDER BY place"""


LOAD_LAYERS: Final[LiteralString] = layers_of("$1", "$2", "$3")

_OF_DEPLOYMENT: Final[LiteralString] = "user_id IS NULL AND template_id IS NULL AND chat_id IS NULL"
GET_DEPLOYMENT: Final[LiteralString] = (
    f"SELECT version, policy FROM tool_policies WHERE {_OF_DEPLOYMENT}"
)
GET_USER: Final[LiteralString] = "SELECT version, policy FROM tool_policies WHERE user_id = $1"
GET_TEMPLATE: Final[LiteralString] = """
    SELECT coalesce(p.version, 0) AS version, p.policy
    FROM templates t LEFT JOIN tool_policies p ON p.template_id = t.id
    WHERE t.id = $1 AND NOT t.deleted"""
GET_CHAT: Final[LiteralString] = f"""
    SELECT coalesce(p.version, 0) AS version, p.policy
    FROM chats c LEFT JOIN tool_policies p ON p.chat_id = c.root_chat_id
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}"""

# Only if the version is still $2, the one that the change was made from.
_SAVE_END: Final[LiteralString] = """
    DO UPDATE SET version = p.version + 1, policy = excluded.policy, updated_at = now(),
        updated_by = excluded.updated_by
    WHERE p.version = $2
    RETURNING version"""
SAVE_DEPLOYMENT: Final[LiteralString] = f"""
    INSERT INTO tool_policies AS p (version, policy, updated_by)
    SELECT $2::bigint + 1, $3::jsonb, $4::uuid
    WHERE $1::uuid IS NULL AND ($2 = 0 OR EXISTS (
        SELECT FROM tool_policies WHERE {_OF_DEPLOYMENT}))
    ON CONFLICT ((true)) WHERE {_OF_DEPLOYMENT} {_SAVE_END}"""
SAVE_USER: Final[LiteralString] = f"""
    INSERT INTO tool_policies AS p (user_id, version, policy, updated_by)
    SELECT $1::uuid, $2::bigint + 1, $3::jsonb, $4::uuid
    WHERE $2 = 0 OR EXISTS (SELECT FROM tool_policies WHERE user_id = $1)
    ON CONFLICT (user_id) {_SAVE_END}"""
SAVE_TEMPLATE: Final[LiteralString] = f"""
    INSERT INTO tool_policies AS p (template_id, version, policy, updated_by)
    SELECT $1::uuid, $2::bigint + 1, $3::jsonb, $4::uuid
    WHERE $2 = 0 OR EXISTS (SELECT FROM tool_policies WHERE template_id = $1)
    ON CONFLICT (template_id) {_SAVE_END}"""
SAVE_CHAT: Final[LiteralString] = f"""
    INSERT INTO tool_policies AS p (chat_id, version, policy, updated_by)
    SELECT c.root_chat_id, $2::bigint + 1, $3::jsonb, $4::uuid FROM chats c
    WHERE c.id = $1::uuid AND c.deleted_at IS NULL AND c.owner_id = $4
      AND ($2 = 0 OR EXISTS (SELECT FROM tool_policies o WHERE o.chat_id = c.root_chat_id))
    ON CONFLICT (chat_id) {_SAVE_END}"""
FIND_ANSWER: Final[LiteralString] = f"""
    SELECT a.decision, a.answered_at, u.username
    FROM chats c JOIN chat_call_answers a ON a.chat_id = c.id
        LEFT JOIN users u ON u.id = a.answered_by
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}
      AND a.tool_call_id = $4
    ORDER BY a.version DESC LIMIT 1"""


class StoredPolicy(Struct, frozen=True, kw_only=True):
    version: int = 0
    policy: ToolPolicy = NO_POLICY


class RecordedAnswer(Struct, frozen=True, kw_only=True):
    decision: Literal["approve", "deny", "answer"]
    answered_at: datetime
    username: str | None


async def load_layers(conn: Conn, chat: Chat) -> tuple[PolicyLayer, ...]:
    """The policies that count for a call of the chat now, from wide to narrow: for its worker."""
    rows = await conn.fetch(LOAD_LAYERS, chat.root_chat_id, chat.owner_id, chat.workspace_id)
    return tuple(_read_layer(row["layer"], row["policy"]) for row in rows)


async def load_owner_layers(conn: Conn, owner: UserId) -> tuple[PolicyLayer, ...]:
    """The policies that count for every chat of the owner. For a decision, not to be shown."""
    rows = await conn.fetch(LOAD_LAYERS, None, owner, None)
    return tuple(_read_layer(row["layer"], row["policy"]) for row in rows)


def read_layers(stored: str | None) -> tuple[PolicyLayer, ...]:
    """The rows of `layers_of` as one JSON array, as `apply.APPLY_CALLS` returns them."""
    if stored is None:
        return ()
    return tuple(_read_layer(row.layer, bytes(row.policy)) for row in _ROWS.decode(stored))


class _LayerRow(Struct, frozen=True):
    layer: str
    policy: Raw


_ROWS: Final = msgspec.json.Decoder(tuple[_LayerRow, ...])


def _read_layer(name: str, policy: str | bytes) -> PolicyLayer:
    return PolicyLayer(name=_layer(name), policy=decode_policy(policy))


def _layer(name: str) -> LayerName:
    names: Mapping[str, LayerName] = {
        "deployment": "deployment",
        "template": "template",
        "user": "user",
        "chat": "chat",
    }
    return names[name]


async def get_deployment(conn: Conn, actor: Actor) -> StoredPolicy:
    require_permission(actor, "config.read")
    return _stored(await conn.fetchrow(GET_DEPLOYMENT))


async def get_user(conn: Conn, actor: UserActor) -> StoredPolicy:
    """The policy of the actor itself."""
    require_permission(actor, "account.read")
    return _stored(await conn.fetchrow(GET_USER, actor.user_id))


async def get_template(conn: Conn, template_id: TemplateId) -> StoredPolicy:
    """Templates are a catalog that all users read."""
    row = await conn.fetchrow(GET_TEMPLATE, template_id)
    if row is None:
        raise NotFound("There is no such template.")
    return _stored(row)


async def get_chat(
    conn: Conn,
    actor: Actor,
    chat_id: ChatId,
    permission: Literal["policies.read", "chats.write"] = "policies.read",
) -> StoredPolicy:
    row = await conn.fetchrow(GET_CHAT, chat_id, *chat_reach(actor, permission))
    if row is None:
        raise NotFound("There is no such chat.")
    return _stored(row)


async def save_deployment(
    session: DatabaseSession,
    actor: UserActor,
    policy: ToolPolicy,
    *,
    before: StoredPolicy,
    ip: str | None,
) -> int:
    """The new version. Raises Conflict if `before` is not the current one."""
    require_permission(actor, "config.write")
    row = await session.fetchrow(
        SAVE_DEPLOYMENT, None, before.version, json_text(policy), actor.user_id
    )
    version = _saved(row)
    await _audit(session, actor, "deployment", policy=policy, before=before, ip=ip)
    return version


async def save_template(
    session: DatabaseSession,
    actor: UserActor,
    template_id: TemplateId,
    policy: ToolPolicy,
    *,
    before: StoredPolicy,
    ip: str | None,
) -> int:
    require_permission(actor, "config.write")
    row = await session.fetchrow(
        SAVE_TEMPLATE, template_id, before.version, json_text(policy), actor.user_id
    )
    version = _saved(row)
    await _audit(session, actor, str(template_id), policy=policy, before=before, ip=ip)
    return version


async def save_user(conn: Conn, actor: UserActor, policy: ToolPolicy, *, version: int) -> int:
    """Save the policy of the actor itself."""
    require_permission(actor, "account.write")
    args = (actor.user_id, version, json_text(policy), actor.user_id)
    return _saved(await conn.fetchrow(SAVE_USER, *args))


async def save_chat(
    conn: Conn, actor: UserActor, chat_id: ChatId, policy: ToolPolicy, *, version: int
) -> int:
    """Only the owner of a chat changes what it may do unasked. The caller has read the policy
    before, so that a chat that is not found is one of another owner."""
    require_permission(actor, "chats.write")
    args = (chat_id, version, json_text(policy), actor.user_id)
    return _saved(await conn.fetchrow(SAVE_CHAT, *args))


async def find_answer(
    conn: Conn, actor: Actor, chat_id: ChatId, call_id: ToolCallId
) -> RecordedAnswer | None:
    """The last answer of a person to a call with this id, for an actor who could answer too."""
    reach = chat_reach(actor, "chats.write")
    row = await conn.fetchrow(FIND_ANSWER, chat_id, *reach, call_id)
    if row is None:
        return None
    return RecordedAnswer(
        decision=row["decision"], answered_at=row["answered_at"], username=row["username"]
    )


async def _audit(
    session: DatabaseSession,
    actor: UserActor,
    object_id: str,
    *,
    policy: ToolPolicy,
    before: StoredPolicy,
    ip: str | None,
) -> None:
    await audit.record(
        session,
        actor,
        action="tool_policy.update",
        object_type="tool_policy",
        object_id=object_id,
        ip=ip,
        detail=redacted_diff(_shown(before.policy), _shown(policy)),
    )


def _shown(policy: ToolPolicy) -> dict[str, object]:
    return {
        "may_loosen": policy.may_loosen,
        "rules": [_line(rule.tool, rule.action, rule.args) for rule in policy.rules[:50]],
        "rule_count": len(policy.rules),
    }


def _line(tool: str, action: str, args: Mapping[str, str]) -> str:
    patterns = " ".join(f"{name}={pattern[:100]}" for name, pattern in args.items())
    return f"{action} {tool} {patterns}".strip()


def _stored(row: Row | None) -> StoredPolicy:
    if row is None:
        return StoredPolicy()
    return StoredPolicy(version=row["version"], policy=decode_policy(row["policy"]))


def _saved(row: Row | None) -> int:
    if row is None:
        raise Conflict(
            "The policy has changed meanwhile. Read it again and repeat the change.",
            code="version_conflict",
        )
    return int(row["version"])
