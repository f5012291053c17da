"""The files of a chat over HTTP."""

from chatd.domain.chat.states import State
from tests.support.api.server import ApiServer
from tests.support.factories import CHAT, OWNER
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stored_files import insert_file

PATH = f"/chats/{CHAT}/files"


async def test_the_files_of_a_chat_are_listed_newest_first(server: ApiServer) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.W))
    assert (await server.ask("GET", PATH)).items == []
    for number in range(3):
        file = await insert_file(pool, OWNER, b"x", "text/plain", f"{number}.txt")
        await pool.execute(
            "INSERT INTO chat_files (chat_id, file_id) VALUES ($1, $2)", CHAT, file.id
        )
    await insert_file(pool, OWNER, b"x", "text/plain", "of no chat.txt")
    first = await server.ask("GET", f"{PATH}?limit=2")
    assert [item["name"] for item in first.items] == ["2.txt", "1.txt"]
    second = await server.ask("GET", f"{PATH}?limit=2&cursor={first.cursor}")
    assert [item["name"] for item in second.items] == ["0.txt"]
    assert second.items[0]["size_bytes"] == 1


async def test_the_files_of_a_missing_chat_are_not_found(server: ApiServer) -> None:
    assert (await server.ask("GET", PATH)).code == (404, "not_found")
