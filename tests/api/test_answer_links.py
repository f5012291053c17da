"""A link in a notification shows one call and answers it once, without a session."""

import asyncio
import secrets
from uuid import UUID

import pytest

from chatd.api.routes.chat.answer_links import PRESSES_PER_MINUTE
from chatd.domain.access.secret_text import SECRET_BYTES, secret_text
from chatd.domain.chat.call_waits import call_fingerprint
from chatd.domain.deployment.answer_links import first_approval
from chatd.domain.ids import ChatId
from chatd.store.account import answer_links
from chatd.store.account.answer_links import NewAnswerLink
from tests.api.test_answers import approve, deny, seeded
from tests.support.api.server import ADMINISTRATOR, ApiReply, ApiServer, Json
from tests.support.factories import AT, OWNER
from tests.support.outcomes import present


async def allow(server: ApiServer, *, enabled: bool = True) -> None:
    body = {"answer_links": enabled}
    changed = await server.ask("PATCH", "/settings", body, token=ADMINISTRATOR)
    assert changed.status == 200


async def linked(server: ApiServer, **fields: object) -> tuple[ChatId, str]:
    """A chat that waits for `c1` and `c2`, and the secret of a link for `c1`."""
    chat_id = await seeded(server, "approval")
    return chat_id, await make(server, chat_id, **fields)


async def make(server: ApiServer, chat_id: ChatId, **fields: object) -> str:
    chat = await server.chat(chat_id)
    call = present(first_approval(chat))
    secret = secret_text(secrets.token_bytes(SECRET_BYTES))
    given: Json = {"deadline": None, "fingerprint": call_fingerprint(chat, call), **fields}
    new = NewAnswerLink(
        id=server.deps.env.new_id(),
        chat_id=chat_id,
        tool_call_id=call.id,
        user_id=OWNER,
        secret=secret,
        **given,  # pyright: ignore[reportArgumentType]
    )
    await answer_links.insert(server.replica.pool, new)
    return secret


async def show(server: ApiServer, secret: str) -> ApiReply:
    return await server.ask("POST", "/public/call", {"secret": secret}, token=None)


async def press(server: ApiServer, secret: str, decision: str = "approve") -> ApiReply:
    body = {"secret": secret, "decision": decision}
    return await server.ask("POST", "/public/call/answer", body, token=None)


async def test_a_call_is_shown_and_approved_once(server: ApiServer) -> None:
    await allow(server)
    chat_id, secret = await linked(server)
    shown = (await show(server, secret)).json
    assert (shown["state"], shown["tool"], shown["decision"]) == ("waiting", "execute", None)
    assert shown["chat_path"] == f"/c/{chat_id}?call=c1"
    assert (await server.chat(chat_id)).pending_calls[0].approved_by is None, "a look changes it"
    done = (await press(server, secret)).json
    assert (done["state"], done["decision"]) == ("answered", "approve")
    assert (await server.chat(chat_id)).pending_calls[0].approved_by == OWNER
    assert (await show(server, secret)).json == done
    assert (await press(server, secret, "deny")).json == done, "the first press counts"


@pytest.mark.promise("P7")
async def test_two_presses_at_once_answer_once(server: ApiServer) -> None:
    await allow(server)
    chat_id, secret = await linked(server)
    other = await make(server, chat_id)
    presses = [press(server, secret), press(server, secret, "deny"), press(server, other, "deny")]
    replies = await asyncio.gather(*presses)
    assert {(one.status, one.json["state"]) for one in replies} == {(200, "answered")}
    (decision,) = {str(one.json["decision"]) for one in replies}
    rows = await server.replica.pool.fetch("SELECT decision FROM chat_call_answers")
    assert [row["decision"] for row in rows] == [decision]


async def test_an_answer_on_the_page_is_told_to_a_later_press(server: ApiServer) -> None:
    await allow(server)
    chat_id, secret = await linked(server)
    await server.ask("POST", f"/chats/{chat_id}/answers", {"answers": [deny("c1")]})
    told = (await press(server, secret)).json
    assert (told["state"], told["decision"]) == ("answered", "deny")
    used = await server.replica.pool.fetchval("SELECT used_at FROM answer_links")
    assert used is None


@pytest.mark.promise("P7")
async def test_a_press_whose_server_died_is_finished_by_the_next_one_with_its_answer(
    server: ApiServer,
) -> None:
    """The claim is in the database, the answer is not."""
    await allow(server)
    chat_id, secret = await linked(server)
    found = present(await answer_links.find(server.replica.pool, secret))
    async with server.replica.pool.transaction() as session:
        assert await answer_links.claim(session, found, "deny")
    told = (await press(server, secret, "approve")).json
    assert (told["state"], told["decision"]) == ("answered", "deny")
    chat = await server.chat(chat_id)
    assert [call.id for call in chat.pending_calls] == ["c2"] or "c1" not in {
        call.id for call in chat.pending_calls if call.approved_by
    }
    again = (await press(server, secret, "approve")).json
    assert again == told


async def test_an_approval_that_was_not_finished_is_shown_as_open_and_can_still_be_denied(
    server: ApiServer,
) -> None:
    await allow(server)
    chat_id, secret = await linked(server)
    found = present(await answer_links.find(server.replica.pool, secret))
    async with server.replica.pool.transaction() as session:
        assert await answer_links.claim(session, found, "approve")
    assert (await show(server, secret)).json["state"] == "waiting"
    told = (await press(server, secret, "deny")).json
    assert (told["state"], told["decision"]) == ("answered", "deny")
    assert (await press(server, secret, "approve")).json == told
    assert not any(call.approved_by for call in (await server.chat(chat_id)).pending_calls)


@pytest.mark.promise("P12")
async def test_a_link_that_may_not_be_used_gets_one_reply(server: ApiServer) -> None:
    chat_id, secret = await linked(server)
    off = await show(server, secret)
    await allow(server)
    expired = await make(server, chat_id, deadline=AT)
    replies = [
        await ask(server, one) for one in (expired, "A" * 43, "short") for ask in (show, press)
    ]
    assert {one.code for one in (off, *replies)} == {(404, "not_found")}
    assert len({one.content for one in (off, *replies)}) == 1
    assert (await show(server, secret)).status == 200
    suspend = {"status": "suspended"}
    await server.ask("PATCH", f"/users/{OWNER}", suspend, token=ADMINISTRATOR)
    assert (await press(server, secret)).content == off.content
    assert (await server.chat(chat_id)).pending_calls[0].approved_by is None


@pytest.mark.promise("P12")
async def test_a_link_is_for_its_call_alone(server: ApiServer) -> None:
    await allow(server)
    chat_id, secret = await linked(server)
    stale = await make(server, chat_id, fingerprint="of an earlier call with this id")
    told = (await press(server, stale)).json
    assert (told["state"], told["decision"]) == ("gone", None)
    assert (await server.chat(chat_id)).pending_calls[0].approved_by is None
    for headers in ({"authorization": f"Bearer {secret}"}, {"cookie": f"chatd_session={secret}"}):
        for path in (f"/chats/{chat_id}", "/chats", "/auth/me"):
            refused = await server.ask("GET", path, token=None, headers=headers)
            assert refused.status == 401
    body = {"answers": [approve("c2")]}
    headers = {"authorization": f"Bearer {secret}"}
    path = f"/chats/{chat_id}/answers"
    assert (await server.ask("POST", path, body, token=None, headers=headers)).status == 401
    read = await server.ask("POST", "/public/chat", {"secret": secret}, token=None)
    assert read.status == 404
    got = await server.ask("GET", "/public/call/answer", token=None)
    assert got.code == (405, "method_not_allowed")


async def test_the_audit_log_says_that_a_link_answered(server: ApiServer) -> None:
    await allow(server)
    chat_id, secret = await linked(server)
    await press(server, secret)
    await press(server, secret)
    log = await server.ask("GET", "/audit?object_type=chat", token=ADMINISTRATOR)
    (entry,) = [one for one in log.items if one["action"] == "call.answer_by_link"]
    assert (entry["actor_id"], entry["object_id"]) == (str(OWNER), str(chat_id))
    assert "approve" in str(entry["detail"])
    stored = await server.replica.pool.fetch("SELECT to_jsonb(a)::text AS row FROM answer_links a")
    assert secret not in str([row["row"] for row in stored]) + str(log.json)


async def test_one_address_presses_only_so_often(server: ApiServer) -> None:
    replies = [await show(server, "A" * 43) for _ in range(PRESSES_PER_MINUTE + 1)]
    assert replies[-1].code == (429, "rate_limited")


async def test_the_page_of_a_link_runs_only_its_own_script(server: ApiServer) -> None:
    page = await server.open_page("/answer")
    assert (page.status, b"/answer.js" in page.content) == (200, True)
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"
    assert (await server.open_page("/answer.js")).status == 200


async def test_links_that_have_expired_are_removed(server: ApiServer) -> None:
    chat_id, _ = await linked(server)
    await make(server, chat_id, deadline=AT)
    assert await answer_links.delete_expired(server.replica.pool, limit=9) == 1
    (left,) = await server.replica.pool.fetch("SELECT chat_id FROM answer_links")
    assert left["chat_id"] == UUID(str(chat_id))
