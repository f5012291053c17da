"""Tool policies on a real database: the layers of a chat, writers at once, deleted chats."""

import asyncio

import pytest

from chatd.domain.access.permissions import UserActor
from chatd.domain.answer.assembler import EMPTY_OBJECT
from chatd.domain.chat.answer_transitions import answer_calls
from chatd.domain.chat.commands import AnswerCalls, CallAnswer
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import commit_step
from chatd.domain.errors import Conflict
from chatd.domain.tool_policy.decision import decide
from chatd.domain.tool_policy.rules import PolicyAction, ToolPolicy, ToolRule
from chatd.store.chat import chats
from chatd.store.database.pool import Pool
from chatd.store.deployment import tool_policies
from chatd.store.deployment.tool_policies import StoredPolicy
from tests.support.factories import CHAT, HARNESS, OWNER, call, draft, member
from tests.support.outcomes import present
from tests.support.seeds import OpenCalls, Seed, step
from tests.support.store import insert_seed, open_child, write
from tests.support.workspaces import TEMPLATE, insert_template, insert_workspace

ADMIN = UserActor(user_id=OWNER, role="admin")
NONE = StoredPolicy()


def policy(action: PolicyAction) -> ToolPolicy:
    return ToolPolicy(rules=(ToolRule(tool="execute", action=action),))


async def loaded(pool: Pool) -> Chat:
    return present(await chats.get(pool, HARNESS, CHAT))


async def test_a_chat_has_the_policies_of_all_layers_from_wide_to_narrow(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    child = (await open_child(pool, 9, 1)).id
    await insert_template(pool)
    workspace = await insert_workspace(pool)
    await pool.execute("UPDATE chats SET workspace_id = $1", workspace.id)
    async with pool.transaction() as session:
        await tool_policies.save_deployment(session, ADMIN, policy("auto"), before=NONE, ip=None)
        await tool_policies.save_template(
            session, ADMIN, TEMPLATE, policy("ask"), before=NONE, ip=None
        )
    await tool_policies.save_user(pool, member(), policy("ask"), version=0)
    await tool_policies.save_chat(pool, member(), CHAT, policy("deny"), version=0)
    for each in (CHAT, child):
        row = present(await chats.get(pool, HARNESS, each))
        layers = await tool_policies.load_layers(pool, row)
        assert [layer.name for layer in layers] == ["deployment", "template", "user", "chat"]
        assert [layer.policy.rules[0].action for layer in layers] == ["auto", "ask", "ask", "deny"]


async def test_the_commit_of_a_step_with_calls_returns_the_policies_that_count(pool: Pool) -> None:
    seeded = await insert_seed(pool, Seed(state=State.R0))
    await insert_template(pool)
    workspace = await insert_workspace(pool)
    await pool.execute("UPDATE chats SET workspace_id = $1", workspace.id)
    async with pool.transaction() as session:
        await tool_policies.save_template(
            session, ADMIN, TEMPLATE, policy("ask"), before=NONE, ip=None
        )
    await tool_policies.save_chat(pool, member(), CHAT, policy("deny"), version=0)
    calls = step(seeded, draft("assistant", call("c1")))
    written = await write(pool, commit_step(seeded, calls), 5)
    assert written.chat.pending_calls
    layers = await tool_policies.load_layers(pool, await loaded(pool))
    assert [layer.name for layer in layers] == ["template", "chat"]
    assert written.layers == layers


async def test_of_writers_at_once_one_counts(pool: Pool) -> None:
    saves = [tool_policies.save_user(pool, member(), policy("ask"), version=0) for _ in range(8)]
    done = await asyncio.gather(*saves, return_exceptions=True)
    assert sum(outcome == 1 for outcome in done) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in done) == 7


async def test_a_policy_of_a_newer_version_asks_for_every_call(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    await pool.execute(
        """INSERT INTO tool_policies (user_id, policy)
           VALUES ($1, '{"rules":[{"tool":"x","action":"ask_twice"}]}')""",
        OWNER,
    )
    layers = await tool_policies.load_layers(pool, await loaded(pool))
    assert decide(layers, "read_file", EMPTY_OBJECT).action == "ask"


@pytest.mark.parametrize("calls", ["approval", "question", "mixed", "client"])
async def test_what_calls_wait_for_is_read_as_it_was_written(pool: Pool, calls: OpenCalls) -> None:
    written = await insert_seed(pool, Seed(state=State.A0, calls=calls))
    assert (await loaded(pool)).pending_calls == written.pending_calls


async def test_a_row_of_an_earlier_version_is_read(pool: Pool) -> None:
    """It has neither kinds nor time-outs of calls."""
    await insert_seed(pool, Seed(state=State.A0))
    old = '[{"id":"c1","name":"ask_person","client":true,"args":{"q":1}}]'
    await pool.execute("UPDATE chats SET pending_calls = $2 WHERE id = $1", CHAT, old)
    (call,) = (await loaded(pool)).pending_calls
    assert (call.client, call.asks, call.timeout_s) == (True, "", None)


async def test_a_deleted_chat_takes_its_policy_and_its_answers_along(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    await tool_policies.save_chat(pool, member(), CHAT, policy("ask"), version=0)
    await pool.execute(
        "INSERT INTO chat_call_answers (chat_id, tool_call_id, version, decision, answered_by)"
        " VALUES ($1, 'c1', 1, 'deny', $2)",
        *(CHAT, OWNER),
    )
    await pool.execute("DELETE FROM chats WHERE id = $1", CHAT)
    left = await pool.fetchval(
        "SELECT (SELECT count(*) FROM tool_policies) + (SELECT count(*) FROM chat_call_answers)"
    )
    assert left == 0


async def test_an_approval_for_good_puts_its_rule_at_the_end_once(pool: Pool) -> None:
    seeded = await insert_seed(pool, Seed(state=State.A0, calls="approval"))
    allowing, asking = (ToolRule(tool="execute", action=action) for action in ("auto", "ask"))
    before = ToolPolicy(rules=(allowing, asking))
    await tool_policies.save_chat(pool, member(), CHAT, before, version=0)
    answers = tuple(
        CallAnswer(tool_call_id=call.id, decision="approve", always=True)
        for call in seeded.pending_calls
    )
    change = answer_calls(seeded, AnswerCalls(answered_by=OWNER, answers=answers), None)
    await write(pool, change)
    stored = await tool_policies.get_chat(pool, member(), CHAT)
    assert (stored.version, stored.policy.rules) == (2, (asking, allowing))
