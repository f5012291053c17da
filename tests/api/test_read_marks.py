"""Read marks over HTTP: `has_unread` in the list, its events and the chat."""

from chatd.domain.chat.worker_transitions import acquire, finish_turn
from chatd.domain.ids import ChatId
from tests.support.api.server import OTHER_USER, ApiServer
from tests.support.api.sse_viewer import event_source
from tests.support.factories import CHAT, WORKER, draft, text
from tests.support.seeds import step


async def answered(server: ApiServer) -> ChatId:
    """A chat with a question and an answer."""
    chat_id = await server.create()
    await server.act(chat_id, lambda chat: acquire(chat, WORKER))
    await server.act(
        chat_id, lambda chat: finish_turn(chat, step(chat, draft("assistant", text("hi"))))
    )
    return chat_id


async def mark(server: ApiServer, chat: ChatId, message: object, token: str | None = None) -> int:
    body, path = {"message_id": message}, f"/chats/{chat}/read"
    if token is None:
        return (await server.ask("POST", path, body)).status
    return (await server.ask("POST", path, body, token=token)).status


async def unread(server: ApiServer) -> list[object]:
    return [chat["has_unread"] for chat in (await server.ask("GET", "/chats")).items]


async def test_a_chat_is_unread_until_its_answer_is_read(server: ApiServer) -> None:
    chat = await answered(server)
    await server.create()
    assert await unread(server) == [False, True]
    assert await mark(server, chat, 1) == 204
    assert await unread(server) == [False, True]
    assert await mark(server, chat, 99) == 204
    assert await unread(server) == [False, False]
    found = (await server.ask("GET", f"/chats/{chat}")).json
    assert (found["has_unread"], found["last_read_message_id"]) == (False, 2)


async def test_the_other_pages_of_the_user_learn_that_a_chat_was_read(server: ApiServer) -> None:
    chat = await answered(server)
    async with event_source(server, "/events") as chat_list:
        assert (await chat_list.json())["type"] == "ready"
        await mark(server, chat, 2)
        event = await chat_list.json()
    assert isinstance(event["chat"], dict)
    assert (event["kind"], event["chat"]["has_unread"]) == ("changed", False)


async def test_a_list_reads_all_marks_at_once(server: ApiServer) -> None:
    for _ in range(3):
        await answered(server)
    server.sent.clear()
    assert await unread(server) == [True, True, True]
    assert sum("chat_read_marks" in statement for statement in server.sent) == 1


async def test_a_mark_that_is_not_a_message_is_refused(server: ApiServer) -> None:
    chat = await answered(server)
    for given in (0, -1, "2", None, 2**63):
        assert await mark(server, chat, given) == 400
    assert await mark(server, chat, 2, OTHER_USER) == 404
    assert await mark(server, CHAT, 2) == 404
    assert await unread(server) == [True]
