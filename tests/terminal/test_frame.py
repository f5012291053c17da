"""The frame of the terminal, on a real server."""

from tests.support.terminal import TerminalServer, run_terminal, until_shown


async def test_the_list_shows_a_chat_that_is_created_elsewhere(server: TerminalServer) -> None:
    async with run_terminal(server) as pilot:
        await until_shown(pilot, "Chats: none")
        await server.create_chat("answer fast")
        await until_shown(pilot, "answer fast")
