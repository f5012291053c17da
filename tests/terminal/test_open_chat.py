"""Which chat keys act on while the open one changes."""

from chatd.terminal.composer.composer import Composer
from chatd.terminal.main_screen import MainScreen
from tests.support.providers.server import Gate
from tests.support.terminal import TerminalServer, run_terminal, until, until_shown


async def test_a_chat_that_is_opened_while_another_streams_is_shown_and_written_to(
    server: TerminalServer,
) -> None:
    gate = Gate()
    server.will_answer("first half, second half", held=gate)
    streaming = await server.create_chat("stream", "scripted")
    resting = await server.create_chat("rest")
    async with run_terminal(server, streaming) as pilot:
        await until_shown(pilot, "first half")
        main = pilot.app.screen
        assert isinstance(main, MainScreen)
        opened = main._opened  # pyright: ignore[reportPrivateUsage]
        assert opened is not None
        connection = composer_of(main).session.connection
        # Two states within one frame: the second waits for the timer of the first.
        opened._changed(connection.chat(streaming))  # pyright: ignore[reportPrivateUsage]
        await pilot.pause(0)
        opened._changed(connection.chat(streaming))  # pyright: ignore[reportPrivateUsage]
        main.open(resting)
        assert composer_of(main).chat_id == resting
        await until(pilot, lambda: (chat := composer_of(main).chat) and chat.shown.is_loaded)
        gate.open()


def composer_of(main: MainScreen) -> Composer:
    return main.query_one(Composer)
