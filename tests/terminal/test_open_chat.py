"""Which chat keys act on while the open one changes."""

from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from chatd.terminal.composer.command_runner import CommandRunner
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.delivery import Delivery
from chatd.terminal.main_screen import MainScreen
from chatd.terminal.messages import COPY_READY
from chatd.terminal.timeline.timeline import Timeline
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
        connection = composer_of(main).opened.session.connection
        # Two states within one frame: the second waits for the timer of the first.
        opened._changed(connection.chat(streaming))  # pyright: ignore[reportPrivateUsage]
        await pilot.pause(0)
        opened._changed(connection.chat(streaming))  # pyright: ignore[reportPrivateUsage]
        main.open(resting)
        assert composer_of(main).chat_id == resting
        await until(pilot, lambda: (chat := composer_of(main).opened.chat) and chat.shown.is_loaded)
        gate.open()


async def fork_by_command(_: Pilot[None], main: MainScreen) -> None:
    composer = composer_of(main)
    delivery = Delivery(composer.opened)
    runner = CommandRunner(composer.opened, composer.choices, delivery)
    main.run_worker(runner._fork(""))  # pyright: ignore[reportPrivateUsage]


async def fork_by_message(pilot: Pilot[None], main: MainScreen) -> None:
    await pilot.press("f4", "home")
    main.query_one(Timeline).action_fork()


async def fork_by_list(pilot: Pilot[None], main: MainScreen) -> None:
    await pilot.press("f2", "home")
    main.chat_list.chats.action_ask("fork")


@pytest.mark.parametrize("fork", [fork_by_command, fork_by_message, fork_by_list])
async def test_a_copy_does_not_take_somebody_away_who_has_gone_elsewhere(
    fork: Callable[[Pilot[None], MainScreen], Awaitable[None]], server: TerminalServer
) -> None:
    chat = await server.create_chat("answer fast")
    other = await server.create_chat("rest")
    await server.until_status(chat, "waiting")
    async with run_terminal(server, chat) as pilot:
        main = pilot.app.screen
        assert isinstance(main, MainScreen)
        await until(pilot, lambda: main.query_one(Timeline).rows)
        await fork(pilot, main)
        main.open(other)
        await until_shown(pilot, COPY_READY)
        assert main.chat_id == other


def composer_of(main: MainScreen) -> Composer:
    return main.query_one(Composer)
