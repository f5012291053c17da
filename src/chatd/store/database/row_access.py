"""SQL conditions for the rows that an actor may access. `domain.access.permissions` decides which
those are.

A condition takes two parameters, the values of `chat_reach` or `workspace_reach`. The owner is
compared first, so that shares are looked up only for other users' chats.
"""

from typing import Final, LiteralString

from chatd.domain.access.permissions import (
    Actor,
    Permission,
    RowFilter,
    row_filter,
    visible_filter,
)
from chatd.domain.ids import UserId

SHARING_ENABLED: Final[LiteralString] = """
    coalesce((SELECT (document ->> 'sharing_enabled')::boolean FROM deployment_settings), true)"""
"""Whether the settings let users read what is shared with them. An actor carries it."""

ChatReach = tuple[UserId | None, bool]


def chat_condition(owner: LiteralString, shared: LiteralString) -> LiteralString:
    """The condition for rows of `chats c`. `owner` and `shared` are the parameters, such as `$2`
    and `$3`."""
    return f"""({owner}::uuid IS NULL OR c.owner_id = {owner} OR ({shared}::boolean AND (EXISTS (
        SELECT FROM chat_shares s WHERE s.chat_id = c.root_chat_id AND (s.user_id = {owner}
            OR s.group_id IN (SELECT m.group_id FROM group_members m
                              WHERE m.user_id = {owner})))
        OR EXISTS (SELECT FROM project_members pm
                   WHERE pm.project_id = c.project_id AND pm.user_id = {owner}))))"""


def project_condition(member: LiteralString, shared: LiteralString) -> LiteralString:
    """The condition for a row of `project_members`: shares count only if sharing is enabled."""
    return f"({member}.role = 'owner' OR {shared}::boolean)"


def shared_roots(user: LiteralString) -> LiteralString:
    """The ids of the root chats that are shared with the user of this parameter or are in a project
    of the user, as an array: for a join the planner would read all chats."""
    return f"""ARRAY(
        SELECT s.chat_id FROM chat_shares s WHERE s.user_id = {user}
        UNION SELECT s.chat_id FROM group_members m JOIN chat_shares s ON s.group_id = m.group_id
        WHERE m.user_id = {user}
        UNION SELECT p.id FROM project_members pm JOIN chats p ON p.project_id = pm.project_id
            AND p.parent_chat_id IS NULL AND p.owner_id <> {user}
        WHERE pm.user_id = {user})"""


def workspace_condition(owner: LiteralString) -> LiteralString:
    """The condition for rows of `workspaces w`. Workspaces are not shared."""
    return f"({owner}::uuid IS NULL OR w.owner_id = {owner})"


def chat_reach(actor: Actor, permission: Permission) -> ChatReach:
    """Raises Forbidden if the actor has the permission on no chat."""
    return _parameters(row_filter(actor, permission))


def visible_chats(actor: Actor, permission: Permission) -> ChatReach:
    """The reach of a command: other chats are not found, and a refusal for found ones is
    Forbidden."""
    return _parameters(visible_filter(actor, permission, "chats.read"))


def workspace_reach(actor: Actor, permission: Permission) -> UserId | None:
    return row_filter(actor, permission).owner_id


def visible_workspaces(actor: Actor, permission: Permission) -> UserId | None:
    return visible_filter(actor, permission, "workspaces.read").owner_id


def _parameters(reach: RowFilter) -> ChatReach:
    return reach.owner_id, reach.shared
