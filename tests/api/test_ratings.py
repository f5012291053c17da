"""Ratings of answers: given, changed, removed, listed, and exported with their chat and for
administrators."""

import pytest

from chatd.domain.ids import ChatId
from tests.support.api.server import ADMINISTRATOR, OTHER_USER, ApiReply, ApiServer, Json
from tests.support.api.shares import share


async def answered(server: ApiServer, words: str = "hello") -> tuple[ChatId, int]:
    """A chat and its answer."""
    chat_id = await server.create(words)
    await server.play_turn(chat_id, f"answer to {words}")
    return chat_id, (await messages(server, chat_id, "assistant"))[-1]


async def messages(server: ApiServer, chat_id: object, role: str) -> list[int]:
    found = (await server.ask("GET", f"/chats/{chat_id}/messages")).items
    return sorted(int(str(one["id"])) for one in found if one["role"] == role)


async def rate(
    server: ApiServer, chat_id: object, message: int, value: str = "up", **more: object
) -> ApiReply:
    path = f"/chats/{chat_id}/messages/{message}/rating"
    return await server.ask("PUT", path, {"value": value, **more})


async def listed(server: ApiServer, chat_id: object) -> list[Json]:
    found = (await server.ask("GET", f"/chats/{chat_id}/ratings")).items
    return [{name: one[name] for name in ("message_id", "value", "comment")} for one in found]


async def test_a_rating_is_kept_changed_and_removed(server: ApiServer) -> None:
    chat_id, answer = await answered(server)
    assert (await rate(server, chat_id, answer)).status == 200
    changed = await rate(server, chat_id, answer, "down", comment=" It forgot the tests. ")
    wanted = {"message_id": answer, "value": "down", "comment": "It forgot the tests."}
    assert changed.json | wanted == changed.json
    assert await listed(server, chat_id) == [wanted]
    path = f"/chats/{chat_id}/messages/{answer}/rating"
    for _ in range(2):
        assert (await server.ask("DELETE", path)).status == 204
    assert await listed(server, chat_id) == []


@pytest.mark.promise("P15")
async def test_only_answers_are_rated_and_with_a_thumb(server: ApiServer) -> None:
    chat_id, answer = await answered(server)
    (prompt,) = await messages(server, chat_id, "user")
    for message in (prompt, answer + 1):
        assert (await rate(server, chat_id, message)).code == (409, "not_an_answer")
    for body in ({"value": "fine"}, {}, {"value": "up", "comment": "x" * 2001}, {"thumb": "up"}):
        path = f"/chats/{chat_id}/messages/{answer}/rating"
        assert (await server.ask("PUT", path, body)).code == (400, "invalid_input"), body
    assert await listed(server, chat_id) == []


@pytest.mark.promise("P12")
async def test_readers_of_a_share_neither_rate_nor_see_ratings(server: ApiServer) -> None:
    chat_id, answer = await answered(server)
    await rate(server, chat_id, answer, comment="for me")
    await share(server, chat_id)
    path = f"/chats/{chat_id}/messages/{answer}/rating"
    refused = await server.ask("PUT", path, {"value": "down"}, token=OTHER_USER)
    assert refused.code == (403, "forbidden")
    seen = await server.ask("GET", f"/chats/{chat_id}/ratings", token=OTHER_USER)
    assert seen.code == (403, "forbidden")
    exported = await server.ask("GET", f"/chats/{chat_id}/export", token=OTHER_USER)
    assert b"for me" not in exported.content


async def test_a_version_of_an_answer_has_its_own_rating(server: ApiServer) -> None:
    chat_id, first = await answered(server)
    await rate(server, chat_id, first, "down")
    (prompt,) = await messages(server, chat_id, "user")
    again = await server.ask("POST", f"/chats/{chat_id}/messages/{prompt}/regenerate")
    assert again.status == 200, again.content
    await server.play_turn(chat_id, "better")
    second = (await messages(server, chat_id, "assistant"))[-1]
    assert second != first
    assert (await rate(server, chat_id, first, "up")).code == (409, "not_an_answer")
    await rate(server, chat_id, second)
    both = [(one["message_id"], one["value"]) for one in await listed(server, chat_id)]
    assert both == [(first, "down"), (second, "up")]
    shown = await server.ask("PUT", f"/chats/{chat_id}/messages/{prompt}/version")
    assert shown.status == 200, shown.content
    assert (await rate(server, chat_id, first, "up")).status == 200


async def test_ratings_travel_with_an_export_of_their_chat(server: ApiServer) -> None:
    chat_id, answer = await answered(server)
    await rate(server, chat_id, answer, "down", comment='"quoted", twice\n')
    exported = (await server.ask("GET", f"/chats/{chat_id}/export")).content
    made = await server.ask("POST", "/chats/import", exported)
    assert made.status == 201, made.content
    copy = made.json["id"]
    (rating,) = await listed(server, copy)
    assert (rating["value"], rating["comment"]) == ("down", '"quoted", twice')
    assert (await server.ask("GET", f"/chats/{copy}/export")).content == exported
    forged = exported.replace(b'"role":"user"', b'"rating":{"value":"up"},"role":"user"', 1)
    refused = await server.ask("POST", "/chats/import", forged)
    assert refused.code == (400, "invalid_input")


async def test_administrators_page_through_all_ratings_and_export_them(server: ApiServer) -> None:
    rated: list[tuple[str, int]] = []
    for number, value in enumerate(("up", "down", "down")):
        chat_id, answer = await answered(server, f"question {number}")
        await rate(server, chat_id, answer, value, comment=f"=comment {number}")
        rated.append((str(chat_id), answer))
    found: list[Json] = []
    path = "/ratings?limit=2"
    page = await server.ask("GET", path, token=ADMINISTRATOR)
    found += page.items
    rest = await server.ask("GET", f"{path}&cursor={page.json['next_cursor']}", token=ADMINISTRATOR)
    found += rest.items
    assert [(one["chat_id"], one["message_id"]) for one in found] == rated[::-1]
    assert {"username", "model", "template", "user_id", "updated_at"} <= found[0].keys()
    downs = (await server.ask("GET", "/ratings?value=down", token=ADMINISTRATOR)).items
    assert {one["value"] for one in downs} == {"down"}
    later = await server.ask("GET", "/ratings?since=2999-01-01T00:00:00Z", token=ADMINISTRATOR)
    assert later.items == []
    exported = await server.ask("GET", "/ratings/export.csv?value=up", token=ADMINISTRATOR)
    heads, row = exported.content.decode("utf-8-sig").splitlines()
    assert heads == "time,value,comment,user,model,template,chat_id,message_id"
    assert "'=comment 0" in row
    assert (await server.ask("GET", "/ratings")).code == (403, "forbidden")
    log = await server.ask("GET", "/audit?object_type=rating", token=ADMINISTRATOR)
    assert [one["action"] for one in log.items] == ["rating.export"]
