"""A turn repeated, and versions of messages listed and chosen, over HTTP."""

import msgspec
import pytest

from chatd.domain.chat.states import State
from chatd.domain.ids import ChatId
from chatd.store.chat import messages
from tests.support.api.server import (
    CLEVER,
    ApiReply,
    ApiServer,
    Json,
    message_body,
)
from tests.support.domain.history_lines import history_lines
from tests.support.factories import CHAT, HARNESS
from tests.support.seeds import Seed
from tests.support.store import insert_seed

SEND = f"/chats/{CHAT}/messages"


async def lines(server: ApiServer) -> list[str]:
    return history_lines(await messages.load_history(server.replica.pool, HARNESS, CHAT))


async def regenerate(
    server: ApiServer, message_id: object, body: object = None, key: str = "k"
) -> ApiReply:
    path = f"{SEND}/{message_id}/regenerate"
    return await server.ask("POST", path, body, headers={"Idempotency-Key": key})


async def versions(server: ApiServer) -> list[Json]:
    return (await server.ask("GET", f"/chats/{CHAT}/versions")).items


@pytest.mark.promise("P1")
async def test_a_turn_is_repeated_by_another_model_and_its_first_answer_is_chosen_again(
    server: ApiServer,
) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    assert await versions(server) == []
    sent = await regenerate(server, 2, {"model": "clever"})
    assert (sent.status, sent.json["deleted_message_ids"]) == (200, [2, 3])
    again = await regenerate(server, 2, {"model": "clever"})
    assert again.json["message"] == sent.json["message"]
    assert again.headers["idempotency-replayed"] == "true"
    row = await server.play_turn(CHAT, "Two.")
    assert row.model_config_id == CLEVER.id
    assert await lines(server) == ["user: first", "assistant: Two."]
    (group,) = await versions(server)
    shown = sent.json["message_id"]
    assert group["message_id"] == shown
    listed = ((one["message_id"], one["text"]) for one in server_versions(group))
    assert list(listed) == [(2, "first"), (shown, "first")]
    assert server_versions(group)[1]["model_config_id"] == str(CLEVER.id)
    chosen = await server.ask("PUT", f"{SEND}/2/version")
    assert (chosen.status, chosen.json["status"]) == (200, "waiting")
    assert await lines(server) == ["user: first", "assistant: One."]
    page = await server.ask("GET", SEND)
    assert [message["id"] for message in page.items] == [3, 2]


def server_versions(group: Json) -> list[Json]:
    return msgspec.convert(group["versions"], list[Json])


async def test_only_a_user_message_is_answered_again(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    for message, code in ((3, (400, "invalid_input")), (99, (404, "not_found"))):
        assert (await regenerate(server, message)).code == code
    refused = await regenerate(server, 2, {"model": "unheard of"})
    assert refused.code == (400, "invalid_input")
    assert await lines(server) == ["user: first", "assistant: One."]


async def test_a_busy_chat_repeats_its_turn_and_refuses_the_choice_of_a_version(
    server: ApiServer,
) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    sent = await regenerate(server, 4)
    assert (sent.status, sent.json["deleted_message_ids"]) == (200, [4])
    refused = await server.ask("PUT", f"{SEND}/4/version")
    assert refused.code == (409, "invalid_state")
    assert (await lines(server))[-1] == "user: second"


async def test_a_repeated_turn_keeps_the_files_of_its_message(server: ApiServer) -> None:
    uploaded = await server.ask(
        "POST", "/files", b"a,b\n1,2\n", headers={"Content-Type": "text/csv"}
    )
    assert uploaded.status == 201, uploaded.content
    chat = await server.create("look")
    body = message_body("at this")
    body["content"] = [*parts(body), {"type": "file", "file_id": uploaded.json["id"]}]
    await server.play_turn(chat, "Yes.")
    sent = await server.ask("POST", f"/chats/{chat}/messages", body)
    await server.play_turn(chat, "I see.")
    again = await server.ask("POST", f"/chats/{chat}/messages/{sent.json['message_id']}/regenerate")
    assert again.status == 200, again.content
    assert await stored_content(server, chat, again) == await stored_content(server, chat, sent)


def parts(body: Json) -> list[object]:
    return msgspec.convert(body["content"], list[object])


async def stored_content(server: ApiServer, chat: ChatId, sent: ApiReply) -> object:
    return await server.replica.pool.fetchval(
        "SELECT content::text FROM chat_messages WHERE chat_id = $1 AND id = $2",
        chat,
        sent.json["message_id"],
    )
