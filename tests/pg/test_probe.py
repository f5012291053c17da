"""Tell a dead server from a silent one: the kernel knows whether a process listens."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from chatd.pg.config import PgError
from chatd.pg.postmaster import ServerState, probe_server
from chatd.pg.server import open_server
from tests.pg.users import ENV, PgInstance


@contextlib.contextmanager
def listening(path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        yield listener


async def test_no_socket_means_dead(home: Path) -> None:
    assert await probe_server(home / "socket", timeout_s=5) is ServerState.DEAD


async def test_a_socket_without_a_listener_means_dead(home: Path) -> None:
    with listening(home / "socket"):
        pass

    assert (home / "socket").exists()
    assert await probe_server(home / "socket", timeout_s=5) is ServerState.DEAD


async def test_a_listener_that_does_not_answer_is_silent_not_dead(home: Path) -> None:
    with listening(home / "socket"):
        assert await probe_server(home / "socket", timeout_s=0.05) is ServerState.SILENT


async def test_a_listener_that_closes_the_connection_is_silent_not_dead(home: Path) -> None:
    async def close_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.close()

    async with await asyncio.start_unix_server(close_connection, home / "socket"):
        assert await probe_server(home / "socket", timeout_s=5) is ServerState.SILENT


async def test_a_stopped_server_is_silent_and_alive_again_when_it_continues(
    instance: PgInstance,
) -> None:
    server = await open_server(instance.config(), ENV)
    postmaster = instance.postmaster()
    os.kill(postmaster, signal.SIGSTOP)
    try:
        assert await probe_server(instance.layout.socket, timeout_s=0.05) is ServerState.SILENT
    finally:
        os.kill(postmaster, signal.SIGCONT)
    assert await probe_server(instance.layout.socket, timeout_s=5) is ServerState.ALIVE
    await server.close()


async def test_a_probe_leaves_no_line_in_the_log(instance: PgInstance) -> None:
    server = await open_server(instance.config(), ENV)
    before = instance.layout.log.read_bytes()

    await server.ensure_running()

    assert instance.layout.log.read_bytes() == before
    await server.close()


async def test_a_path_too_long_for_a_socket_is_an_error(home: Path) -> None:
    with pytest.raises(PgError, match="Cannot reach"):
        await probe_server(home / ("x" * 120), timeout_s=5)
