"""Approvals, answers and tool policies over HTTP."""

import asyncio

import pytest

from chatd.domain.chat.states import State
from chatd.domain.ids import ChatId
from tests.support.api.server import ADMINISTRATOR, ME, OTHER_USER, ApiServer, Json
from tests.support.factories import CHAT
from tests.support.seeds import OpenCalls, Seed
from tests.support.store import insert_seed

RULE = {"tool": "execute", "action": "ask"}


async def seeded(server: ApiServer, calls: OpenCalls) -> ChatId:
    await insert_seed(server.replica.pool, Seed(state=State.A0, calls=calls))
    return CHAT


def approve(call_id: str, **fields: object) -> Json:
    return {"tool_call_id": call_id, "decision": "approve", **fields}


def deny(call_id: str, **fields: object) -> Json:
    return {"tool_call_id": call_id, "decision": "deny", **fields}


async def test_a_chat_and_its_list_say_what_it_waits_for(server: ApiServer) -> None:
    chat_id = await seeded(server, "question")
    shown = (await server.ask("GET", f"/chats/{chat_id}")).json
    assert shown["action"] == {"kinds": ["question"], "calls": 2, "summary": "Which one?"}
    (listed,) = (await server.ask("GET", "/chats?status=requires_action")).items
    assert (listed["action_summary"], listed["status"]) == ("Which one?", "requires_action")


async def test_approving_a_part_leaves_the_rest_waiting(server: ApiServer) -> None:
    chat_id = await seeded(server, "approval")
    path = f"/chats/{chat_id}/answers"
    first = await server.ask("POST", path, {"answers": [approve("c1")]})
    assert (first.status, first.json["status"]) == (200, "requires_action")
    assert first.json["action"] == {
        "kinds": ["approval"],
        "calls": 1,
        "summary": "Approve: execute",
    }
    second = await server.ask("POST", path, {"answers": [deny("c2", reason="No.")]})
    assert second.json["status"] == "pending"
    assert "action" not in second.json
    chat = await server.chat(chat_id)
    assert [call.id for call in chat.pending_calls] == ["c1"]


async def test_a_second_answer_is_told_who_was_first(server: ApiServer) -> None:
    chat_id = await seeded(server, "approval")
    path = f"/chats/{chat_id}/answers"
    await server.ask("POST", path, {"answers": [approve("c1")]})
    late = await server.ask("POST", path, {"answers": [deny("c1")]})
    assert late.code == (409, "call_not_waiting")
    assert "has approved the call 'c1' already, at 2" in str(late.json["message"])
    await server.ask("POST", path, {"answers": [deny("c2")]})
    after = await server.ask("POST", path, {"answers": [approve("c2")]})
    assert after.code == (409, "call_not_waiting")
    assert "has denied the call 'c2' already" in str(after.json["message"])


async def test_a_repeated_request_with_its_key_gets_the_first_reply(server: ApiServer) -> None:
    chat_id = await seeded(server, "approval")
    path, body = f"/chats/{chat_id}/answers", {"answers": [approve("c1"), approve("c2")]}
    headers = {"idempotency-key": "tap-1"}
    first = await server.ask("POST", path, body, headers=headers)
    again = await server.ask("POST", path, body, headers=headers)
    assert (first.status, again.status) == (200, 200)
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.covers("T16")
async def test_of_many_answers_at_once_one_counts(server: ApiServer) -> None:
    chat_id = await seeded(server, "approval")
    path = f"/chats/{chat_id}/answers"
    body = {"answers": [approve("c1"), approve("c2")]}
    replies = await asyncio.gather(*(server.ask("POST", path, body) for _ in range(20)))
    assert sorted(reply.status for reply in replies) == [200, *[409] * 19]


async def test_answers_count_all_or_none(server: ApiServer) -> None:
    chat_id = await seeded(server, "approval")
    before = await server.chat(chat_id)
    body = {"answers": [approve("c1"), approve("nope")]}
    refused = await server.ask("POST", f"/chats/{chat_id}/answers", body)
    assert refused.code == (409, "call_not_waiting")
    assert await server.chat(chat_id) == before


async def test_questions_are_answered_with_labels_or_words(server: ApiServer) -> None:
    chat_id = await seeded(server, "question")
    path = f"/chats/{chat_id}/answers"
    chosen = {"tool_call_id": "c1", "decision": "answer", "replies": [{"labels": ["A"]}]}
    worded = {"tool_call_id": "c2", "decision": "answer", "replies": [{"text": "Neither."}]}
    bad = await server.ask("POST", path, {"answers": [{**chosen, "replies": [{"labels": ["Z"]}]}]})
    assert (bad.code, "no option 'Z'" in str(bad.json["message"])) == ((400, "invalid_input"), True)
    done = await server.ask("POST", path, {"answers": [chosen, worded]})
    assert (done.status, done.json["status"]) == (200, "pending")


async def test_approving_always_adds_a_rule_that_can_be_read_and_removed(server: ApiServer) -> None:
    chat_id = await seeded(server, "approval")
    body = {"answers": [approve("c1", always=True), approve("c2", always=True)]}
    assert (await server.ask("POST", f"/chats/{chat_id}/answers", body)).status == 200
    path = f"/chats/{chat_id}/tool-policy"
    stored = (await server.ask("GET", path)).json
    assert stored == {
        "version": 1,
        "rules": [{"tool": "execute", "action": "auto"}],
        "may_loosen": False,
    }
    emptied = await server.ask("PUT", path, {"rules": [], "version": 1})
    assert emptied.json == {"version": 2, "rules": [], "may_loosen": False}
    stale = await server.ask("PUT", path, {"rules": [RULE], "version": 1})
    assert stale.code == (409, "version_conflict")


async def test_a_full_policy_of_a_chat_takes_no_more_rules(server: ApiServer) -> None:
    chat_id = await seeded(server, "approval")
    rules = [{"tool": f"t{n}", "action": "ask"} for n in range(200)]
    path = f"/chats/{chat_id}/tool-policy"
    assert (await server.ask("PUT", path, {"rules": rules})).status == 200
    before = await server.chat(chat_id)
    body = {"answers": [approve("c1", always=True)]}
    refused = await server.ask("POST", f"/chats/{chat_id}/answers", body)
    assert refused.code == (409, "too_many_rules")
    assert await server.chat(chat_id) == before


async def test_other_users_cannot_answer(server: ApiServer) -> None:
    chat_id = await seeded(server, "approval")
    body = {"answers": [approve("c1")]}
    path = f"/chats/{chat_id}/answers"
    assert (await server.ask("POST", path, body, token=OTHER_USER)).status == 404
    assert (await server.ask("POST", path, body, token=ADMINISTRATOR)).status == 403


@pytest.mark.parametrize(
    ("path", "token"),
    [("/settings/tool-policy", ADMINISTRATOR), ("/settings/me/tool-policy", ME)],
)
async def test_policies_are_replaced_whole(server: ApiServer, path: str, token: str) -> None:
    empty = await server.ask("GET", path, token=token)
    assert empty.json == {"version": 0, "rules": [], "may_loosen": False}
    saved = await server.ask("PUT", path, {"rules": [RULE]}, token=token)
    assert saved.json == {"version": 1, "rules": [RULE], "may_loosen": False}
    assert (await server.ask("GET", path, token=token)).json == saved.json
    again = await server.ask("PUT", path, {"rules": []}, token=token)
    assert again.json["version"] == 2


async def test_a_change_of_the_deployments_policy_is_audited(server: ApiServer) -> None:
    body = {"rules": [RULE], "may_loosen": True}
    await server.ask("PUT", "/settings/tool-policy", body, token=ADMINISTRATOR)
    entry = (await server.ask("GET", "/audit", token=ADMINISTRATOR)).items[0]
    assert (entry["action"], entry["object_id"]) == ("tool_policy.update", "deployment")
    assert "ask execute" in str(entry["detail"])


BAD_POLICIES: list[Json] = [
    {"rules": [{"tool": "a b", "action": "ask"}]},
    {"rules": [{"tool": "execute", "action": "maybe"}]},
    {"rules": [{"tool": "execute", "action": "ask", "arg": 1}]},
    {"rules": [{"tool": "execute", "action": "ask", "args": {"command": "\0"}}]},
    {"rules": [RULE] * 201},
    {"rules": [RULE], "may_loosen": True},
]


@pytest.mark.promise("P15")
@pytest.mark.parametrize("body", BAD_POLICIES)
async def test_bad_policies_are_refused(server: ApiServer, body: Json) -> None:
    refused = await server.ask("PUT", "/settings/me/tool-policy", body)
    assert refused.code == (400, "invalid_input")


async def test_a_client_tool_declares_its_own_time(server: ApiServer) -> None:
    tool = {"name": "pick", "description": "", "input_schema": {"type": "object"}}
    chat = await server.chat(await server.create(client_tools=[{**tool, "timeout_s": 900}]))
    assert b'"timeout_s":900' in bytes(chat.client_tools or b"")
    refused = await server.ask(
        "POST",
        "/chats",
        {
            "content": [{"type": "text", "text": "x"}],
            "client_tools": [{**tool, "timeout_s": 1e9}],
        },
    )
    assert refused.code == (400, "invalid_input")


async def test_a_chat_can_begin_with_rules(server: ApiServer) -> None:
    chat_id = await server.create(tool_rules=[RULE])
    policy = (await server.ask("GET", f"/chats/{chat_id}/tool-policy")).json
    assert policy == {"version": 1, "rules": [RULE], "may_loosen": False}
    body = {"content": [{"type": "text", "text": "x"}], "tool_rules": [{**RULE, "tool": ""}]}
    refused = await server.ask("POST", "/chats", body)
    assert refused.field == "tool_rules[0].tool"
