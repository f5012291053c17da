"""Public links over HTTP: who makes and ends them, what a reader without an account sees, and that
the secret of a link opens nothing else."""

import logging
from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from chatd.api.routes.chat.public_links import READS_PER_MINUTE, SharedChatReply
from chatd.domain.chat.parts import ReasoningPart
from chatd.domain.chat.worker_transitions import acquire, commit_step, finish_turn
from chatd.domain.chat_views.public_links import SharedFile, SharedMessage, SharedText
from chatd.domain.ids import ChatId
from chatd.store.account import public_links
from tests.api.test_message_files import upload
from tests.api.test_shares import insert_subagent
from tests.support.api.server import (
    ADMINISTRATOR,
    ME,
    OTHER_USER,
    ApiReply,
    ApiServer,
    Json,
)
from tests.support.api.shares import set_sharing, share
from tests.support.factories import OWNER, WORKER, call, draft, result, text
from tests.support.sample_files import PNG
from tests.support.seeds import step

PROMPT = "SECRET-system-prompt"


async def allow_links(server: ApiServer, *, enabled: bool = True, days: int = 30) -> None:
    body = {"public_links": enabled, "public_link_days": days}
    changed = await server.ask("PATCH", "/settings", body, token=ADMINISTRATOR)
    assert changed.status == 200, changed.content


async def make(server: ApiServer, chat_id: object, **body: object) -> Json:
    made = await server.ask("POST", f"/chats/{chat_id}/public-links", {"days": 7, **body})
    assert made.status == 201, made.content
    return made.json


def secret_of(link: Json) -> str:
    path, _, secret = str(link["path"]).partition("#")
    assert path == "/p"
    return secret


async def read(server: ApiServer, link: Json | str, **body: object) -> ApiReply:
    secret = link if isinstance(link, str) else secret_of(link)
    return await server.ask("POST", "/public/chat", {"secret": secret, **body}, token=None)


def messages(found: ApiReply) -> tuple[SharedMessage, ...]:
    return msgspec.json.decode(found.content, type=SharedChatReply).messages


def texts(found: ApiReply) -> list[str]:
    parts = [part for message in messages(found) for part in message.parts]
    return [part.text for part in parts if isinstance(part, SharedText)]


async def chat_with_tools(server: ApiServer) -> ChatId:
    """A turn that thought, ran a command, and answered."""
    await server.ask("PATCH", "/settings", {"system_prompt": PROMPT}, token=ADMINISTRATOR)
    chat_id = await server.create("count the files")
    asked = draft(
        "assistant",
        ReasoningPart(text="SECRET-thought"),
        text("I look."),
        call("c1", args='{"command":"TOOL-ARGUMENT"}'),
    )
    await server.act(chat_id, lambda chat: acquire(chat, WORKER))
    ran = draft("tool", result("c1", output='{"output":"TOOL-OUTPUT"}'))
    await server.act(chat_id, lambda chat: commit_step(chat, step(chat, asked)))
    await server.act(chat_id, lambda chat: commit_step(chat, step(chat, ran)))
    done = draft("assistant", text("There are three."))
    await server.act(chat_id, lambda chat: finish_turn(chat, step(chat, done)))
    return chat_id


@pytest.mark.promise("P12")
async def test_a_link_shows_the_texts_of_a_chat_to_one_without_an_account(
    server: ApiServer,
) -> None:
    await allow_links(server)
    chat_id = await chat_with_tools(server)
    link = await make(server, chat_id)
    found = await read(server, link)
    assert found.status == 200, found.content
    assert texts(found) == ["count the files", "I look.", "There are three."]
    assert (found.json["title"], found.json["next_after"]) == ("count the files", None)
    assert found.json.keys() == {"title", "shared_at", "expires_at", "messages", "next_after"}


@pytest.mark.promise("P13")
async def test_what_is_internal_or_was_not_chosen_does_not_leave(server: ApiServer) -> None:
    await allow_links(server)
    chat_id = await chat_with_tools(server)
    me = (await server.ask("GET", "/auth/me")).content.decode()
    plain = (await read(server, await make(server, chat_id))).content.decode()
    chosen = (await read(server, await make(server, chat_id, with_tools=True))).content.decode()
    for word in ("TOOL-ARGUMENT", "TOOL-OUTPUT", "execute"):
        assert word not in plain
        assert word in chosen
    assert f"test-user-{OWNER.int}" in me
    inside = ("SECRET", f"test-user-{OWNER.int}", str(OWNER), str(chat_id), "@", "c1", "model")
    for word in inside:
        assert word not in plain, word
        assert word not in chosen, word


async def test_a_link_shows_nothing_newer_until_it_is_updated(server: ApiServer) -> None:
    await allow_links(server)
    chat_id = await server.create("one")
    await server.play_turn(chat_id, "first")
    link = await make(server, chat_id)
    await server.ask("POST", f"/chats/{chat_id}/messages", {"content": [text_part("two")]})
    await server.play_turn(chat_id, "second")
    assert texts(await read(server, link)) == ["one", "first"]
    (listed,) = await links_of(server, chat_id)
    assert listed["has_newer"] is True
    updated = await server.ask("POST", f"/public-links/{link['id']}/update")
    assert (updated.status, updated.json["has_newer"]) == (200, False)
    assert texts(await read(server, link)) == ["one", "first", "two", "second"]


async def test_what_the_owner_replaces_is_gone_from_the_link(
    server: ApiServer,
) -> None:
    await allow_links(server)
    chat_id = await server.create("one")
    await server.play_turn(chat_id, "first")
    link = await make(server, chat_id)
    edited = await server.ask(
        "PATCH",
        f"/chats/{chat_id}/messages/{await first_prompt(server, chat_id)}",
        {"content": [text_part("one, again")]},
    )
    assert edited.status == 200, edited.content
    await server.play_turn(chat_id, "other")
    assert texts(await read(server, link)) == []


async def test_pages_follow_each_other(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatd.api.routes.chat.public_links.MAX_SHARED_MESSAGES", 3)
    await allow_links(server)
    chat_id = await chat_with_tools(server)
    link = await make(server, chat_id)
    first = await read(server, link)
    assert texts(first) == ["count the files", "I look."]
    second = await read(server, link, after=first.json["next_after"])
    assert (texts(second), second.json["next_after"]) == (["There are three."], None)


@pytest.mark.promise("P12")
async def test_a_link_that_ended_was_revoked_or_never_was_gets_the_same_reply(
    server: ApiServer,
) -> None:
    await allow_links(server)
    chat_id = await server.create("one")
    links = [await make(server, chat_id) for _ in range(3)]
    revoked, expired, valid = links
    assert (await server.ask("DELETE", f"/public-links/{revoked['id']}")).status == 204
    await server.replica.pool.execute(
        "UPDATE public_links SET expires_at = now() - interval '1 s' WHERE id = $1",
        UUID(str(expired["id"])),
    )
    replies = [await read(server, one) for one in (revoked, expired, "A" * 43, "short", "")]
    assert {reply.status for reply in replies} == {404}
    assert len({reply.content for reply in replies}) == 1
    await allow_links(server, enabled=False)
    assert (await read(server, valid)).content == replies[0].content
    await allow_links(server)
    await set_sharing(server, enabled=False)
    assert (await read(server, valid)).content == replies[0].content
    await set_sharing(server, enabled=True)
    assert (await read(server, valid)).status == 200
    path = f"/users/{OWNER}"
    await server.ask("PATCH", path, {"status": "suspended"}, token=ADMINISTRATOR)
    assert (await read(server, valid)).content == replies[0].content
    await server.ask("PATCH", path, {"status": "active"}, token=ADMINISTRATOR)
    assert (await server.ask("DELETE", f"/chats/{chat_id}")).status in (200, 204)
    assert (await read(server, valid)).content == replies[0].content


@pytest.mark.promise("P12")
async def test_the_secret_of_a_link_opens_nothing_else(server: ApiServer) -> None:
    """Every route, with the secret as every kind of credential that the server knows."""
    await allow_links(server)
    chat_id = await server.create("one")
    link = await make(server, chat_id, with_files=True, with_tools=True)
    secret = secret_of(link)
    forms = (
        {"authorization": f"Bearer {secret}"},
        {"authorization": f"Bearer chatd_{'0' * 12}_{secret}"},
        {"cookie": f"chatd_session={secret}"},
        {"cookie": f"__Host-chatd_session={secret}"},
    )
    paths = (
        "/chats",
        f"/chats/{chat_id}",
        f"/chats/{chat_id}/messages",
        f"/chats/{chat_id}/public-links",
        f"/chats/{chat_id}/export",
        "/auth/me",
        "/files",
        "/settings",
        "/users",
    )
    for headers in forms:
        for path in paths:
            found = await server.ask("GET", path, token=None, headers=headers)
            assert found.status == 401, (path, headers)
        wanted = {"content": [text_part("hello")]}
        sending = f"/chats/{chat_id}/messages"
        sent = await server.ask("POST", sending, wanted, token=None, headers=headers)
        assert sent.status in (401, 403)
    asked = await server.ask("POST", "/auth/link", {"secret": secret}, token=None)
    assert asked.status == 401
    stream = await server.ask("GET", f"/chats/{chat_id}?ticket={secret}", token=None)
    assert stream.status in (400, 401)
    gone = await server.ask("DELETE", f"/public-links/{link['id']}", token=None)
    assert gone.status == 401
    assert (await read(server, link)).status == 200


async def test_neither_the_database_nor_a_log_has_the_secret(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    await allow_links(server)
    chat_id = await server.create("one")
    with caplog.at_level(logging.DEBUG):
        link = await make(server, chat_id)
        await read(server, link)
        await read(server, link, after=-1)
    secret = secret_of(link)
    assert secret not in caplog.text
    stored = await server.replica.pool.fetch("SELECT to_jsonb(l)::text AS row FROM public_links l")
    stored += await server.replica.pool.fetch("SELECT to_jsonb(a)::text AS row FROM audit_log a")
    assert stored
    assert not any(secret in row["row"] for row in stored)


async def test_a_file_is_shown_only_if_it_was_chosen_and_stands_in_a_shown_message(
    server: ApiServer,
) -> None:
    await allow_links(server)
    file_id = await upload(server)
    other_id = await upload(server, name="other.png")
    content = [text_part("look"), {"type": "file", "file_id": file_id}]
    made = await server.ask("POST", "/chats", {"content": content})
    chat_id = ChatId(UUID(str(made.json["id"])))
    await server.play_turn(chat_id, "nice")
    plain, chosen = await make(server, chat_id), await make(server, chat_id, with_files=True)
    later = {"content": [{"type": "file", "file_id": other_id}]}
    await server.ask("POST", f"/chats/{chat_id}/messages", later)
    shown = await read(server, chosen)
    message = messages(shown)[0]
    number, (_, file) = message.id, message.parts
    assert file == SharedFile(part=1, name="a.png", media_type="image/png")
    assert file_id not in shown.content.decode()

    async def load(link: Json, message_id: int, part: int) -> ApiReply:
        body = {"secret": secret_of(link), "message_id": message_id, "part": part}
        return await server.ask("POST", "/public/file", body, token=None)

    loaded = await load(chosen, number, 1)
    assert (loaded.status, loaded.content) == (200, PNG)
    assert loaded.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in loaded.headers["content-security-policy"]
    missing = [await load(chosen, number, 0), await load(plain, number, 1)]
    missing += [await load(chosen, number + at, 0) for at in range(1, 5)]
    assert {one.code for one in missing} == {(404, "not_found")}
    assert len({one.content for one in missing}) == 1


@pytest.mark.promise("P15")
async def test_links_are_off_until_an_administrator_allows_them(server: ApiServer) -> None:
    chat_id = await server.create("one")
    path = f"/chats/{chat_id}/public-links"
    assert (await server.ask("POST", path, {"days": 7})).code == (403, "public_links_off")
    listed = (await server.ask("GET", path)).json
    assert (listed["enabled"], listed["items"]) == (False, [])
    await allow_links(server, days=7)
    assert (await server.ask("POST", path, {"days": 8})).code == (400, "invalid_input")
    for body in ({}, {"days": 0}, {"days": 366}, {"days": 7, "secret": "mine"}):
        assert (await server.ask("POST", path, body)).code == (400, "invalid_input"), body
    child = await insert_subagent(server, chat_id)
    refused = await server.ask("POST", f"/chats/{child}/public-links", {"days": 7})
    assert refused.code == (409, "not_a_root_chat")
    assert await links_of(server, chat_id) == []
    for _ in range(20):
        await make(server, chat_id)
    assert (await server.ask("POST", path, {"days": 7})).code == (409, "too_many_public_links")


@pytest.mark.promise("P12")
async def test_only_the_owner_makes_links_and_an_administrator_sees_and_revokes_all(
    server: ApiServer,
) -> None:
    await allow_links(server)
    chat_id = await server.create("one")
    path = f"/chats/{chat_id}/public-links"
    assert (await server.ask("POST", path, {"days": 7}, token=OTHER_USER)).status == 404
    await share(server, chat_id)
    for token in (OTHER_USER, ADMINISTRATOR):
        refused = await server.ask("POST", path, {"days": 7}, token=token)
        assert refused.code == (403, "forbidden"), token
    first, second = await make(server, chat_id), await make(server, chat_id)
    assert (await server.ask("GET", path, token=OTHER_USER)).code == (403, "forbidden")
    for method, one in (("DELETE", ""), ("POST", "/update")):
        mine = f"/public-links/{first['id']}{one}"
        assert (await server.ask(method, mine, token=OTHER_USER)).status == 404
    mine = (await server.ask("GET", "/public-links?limit=1")).json
    assert [item["id"] for item in items(mine)] == [second["id"]]
    rest = (await server.ask("GET", f"/public-links?limit=1&cursor={mine['next_cursor']}")).json
    assert [item["id"] for item in items(rest)] == [first["id"]]
    assert "path" not in items(mine)[0]
    others = await server.ask("GET", "/public-links", token=OTHER_USER)
    assert others.items == []
    everyone = "/public-links?everyone=true"
    assert (await server.ask("GET", everyone)).code == (403, "forbidden")
    seen = await server.ask("GET", everyone, token=ADMINISTRATOR)
    assert {item["id"] for item in seen.items} == {first["id"], second["id"]}
    own = f"/public-links/{first['id']}"
    assert (await server.ask("POST", f"{own}/update", token=ADMINISTRATOR)).status == 403
    assert (await server.ask("DELETE", own, token=ADMINISTRATOR)).status == 204
    assert [item["id"] for item in await links_of(server, chat_id)] == [second["id"]]
    log = await server.ask("GET", "/audit?object_type=chat", token=ADMINISTRATOR)
    actions = [str(item["action"]) for item in log.items]
    assert actions.count("public_link.create") == 2
    assert actions[0] == "public_link.revoke"


async def test_one_address_asks_only_so_often(server: ApiServer) -> None:
    replies = [await read(server, "A" * 43) for _ in range(READS_PER_MINUTE + 1)]
    assert {reply.status for reply in replies[:-1]} == {404}
    assert replies[-1].code == (429, "rate_limited")
    assert (await server.ask("GET", "/auth/me", token=ME)).status == 200


async def test_the_owner_sees_when_a_link_was_last_opened(server: ApiServer) -> None:
    await allow_links(server)
    chat_id = await server.create("one")
    link = await make(server, chat_id)
    assert (await links_of(server, chat_id))[0]["last_read_at"] is None
    await read(server, link)
    first = (await links_of(server, chat_id))[0]["last_read_at"]
    assert first is not None
    await read(server, link)
    assert (await links_of(server, chat_id))[0]["last_read_at"] == first


async def test_links_that_have_ended_are_removed(server: ApiServer) -> None:
    await allow_links(server)
    chat_id = await server.create("one")
    old, new = await make(server, chat_id), await make(server, chat_id)
    pool = server.replica.pool
    await pool.execute(
        "UPDATE public_links SET expires_at = now() - $2::interval WHERE id = $1",
        UUID(str(old["id"])),
        timedelta(seconds=1),
    )
    assert await public_links.delete_expired(pool, limit=10) == 1
    left = await pool.fetch("SELECT id FROM public_links")
    assert [str(row["id"]) for row in left] == [new["id"]]


def text_part(words: str) -> Json:
    return {"type": "text", "text": words}


def items(page: Json) -> list[Json]:
    return msgspec.convert(page["items"], list[Json])


async def links_of(server: ApiServer, chat_id: ChatId) -> list[Json]:
    return items((await server.ask("GET", f"/chats/{chat_id}/public-links")).json)


async def first_prompt(server: ApiServer, chat_id: ChatId) -> int:
    found = await server.ask("GET", f"/chats/{chat_id}/messages")
    return min(int(str(item["id"])) for item in found.items if item["role"] == "user")
