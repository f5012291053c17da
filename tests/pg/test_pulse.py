"""Telling a dead server from one that is silent: the kernel knows who listens."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from chatd.pg.errors import PgError
from chatd.pg.pulse import Pulse, feel
from chatd.pg.server import start
from tests.pg.users import ENV, Place


@contextlib.contextmanager
def listening(path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        yield listener


async def test_no_socket_means_dead(home: Path) -> None:
    assert await feel(home / "socket", within_s=5) is Pulse.DEAD


async def test_a_socket_that_nobody_listens_on_means_dead(home: Path) -> None:
    with listening(home / "socket"):
        pass

    assert (home / "socket").exists()
    assert await feel(home / "socket", within_s=5) is Pulse.DEAD


async def test_a_listener_that_does_not_answer_is_silent_not_dead(home: Path) -> None:
    with listening(home / "socket"):
        assert await feel(home / "socket", within_s=0.05) is Pulse.SILENT


async def test_a_listener_that_hangs_up_is_silent_not_dead(home: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.close()

    async with await asyncio.start_unix_server(hang_up, home / "socket"):
        assert await feel(home / "socket", within_s=5) is Pulse.SILENT


async def test_a_stopped_server_is_silent_and_alive_again_when_it_continues(place: Place) -> None:
    server = await start(place.config(), ENV)
    postmaster = place.postmaster()
    os.kill(postmaster, signal.SIGSTOP)
    try:
        assert await feel(place.layout.socket, within_s=0.05) is Pulse.SILENT
    finally:
        os.kill(postmaster, signal.SIGCONT)
    assert await feel(place.layout.socket, within_s=5) is Pulse.ALIVE
    await server.close()


async def test_asking_leaves_no_line_in_the_log(place: Place) -> None:
    server = await start(place.config(), ENV)
    before = place.layout.log.read_bytes()

    await server.ensure()

    assert place.layout.log.read_bytes() == before
    await server.close()


async def test_a_path_that_cannot_be_reached_at_all_is_an_error(home: Path) -> None:
    with pytest.raises(PgError, match="Cannot reach"):
        await feel(home / ("x" * 120), within_s=5)
