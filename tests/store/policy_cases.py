"""Cases of tool policies and of answers to calls."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ToolCallId
from chatd.domain.tool_policy.rules import ToolPolicy, ToolRule
from chatd.store.database.pool import Pool
from chatd.store.deployment import tool_policies
from chatd.store.deployment.tool_policies import StoredPolicy
from tests.support.factories import CHAT, OWNER, member
from tests.support.workspaces import TEMPLATE

Case = Callable[[Pool, UserActor, Chat], Awaitable[object]]

POLICY: Final = ToolPolicy(rules=(ToolRule(tool="execute", action="ask"),))
CALL: Final = ToolCallId("answered")


async def _rules(policy: Awaitable[StoredPolicy]) -> object:
    return (await policy).policy.rules


async def _save_deployment(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        before = StoredPolicy(version=1)
        return await tool_policies.save_deployment(session, who, POLICY, before=before, ip=None)


async def _save_template(pool: Pool, who: UserActor) -> object:
    async with pool.transaction() as session:
        before = StoredPolicy(version=1)
        return await tool_policies.save_template(
            session, who, TEMPLATE, POLICY, before=before, ip=None
        )


POLICIES: Final[Mapping[str, Case]] = {
    "deployment.tool_policies.get_user": lambda pool, who, _: _rules(
        tool_policies.get_user(pool, who)
    ),
    "deployment.tool_policies.save_user": lambda pool, who, _: tool_policies.save_user(
        pool, who, POLICY, version=1
    ),
    "deployment.tool_policies.get_chat": lambda pool, who, _: _rules(
        tool_policies.get_chat(pool, who, CHAT)
    ),
    "deployment.tool_policies.save_chat": lambda pool, who, _: tool_policies.save_chat(
        pool, who, CHAT, POLICY, version=1
    ),
    "deployment.tool_policies.find_answer": lambda pool, who, _: tool_policies.find_answer(
        pool, who, CHAT, CALL
    ),
}
SHARED_POLICIES: Final[Mapping[str, Case]] = {
    "deployment.tool_policies.get_deployment": lambda pool, who, _: _rules(
        tool_policies.get_deployment(pool, who)
    ),
    "deployment.tool_policies.save_deployment": lambda pool, who, _: _save_deployment(pool, who),
    "deployment.tool_policies.save_template": lambda pool, who, _: _save_template(pool, who),
}


async def prepare_policies(pool: Pool) -> None:
    """One of each kind. The template is there already."""
    admin = UserActor(user_id=OWNER, role="admin")
    none = StoredPolicy()
    async with pool.transaction() as session:
        await tool_policies.save_deployment(session, admin, POLICY, before=none, ip=None)
        await tool_policies.save_template(session, admin, TEMPLATE, POLICY, before=none, ip=None)
    await tool_policies.save_user(pool, member(), POLICY, version=0)
    await tool_policies.save_chat(pool, member(), CHAT, POLICY, version=0)
    await pool.execute(
        "INSERT INTO chat_call_answers (chat_id, tool_call_id, version, decision, answered_by)"
        " VALUES ($1, $2, 1, 'approve', $3)",
        *(CHAT, CALL, OWNER),
    )
