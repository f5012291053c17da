"""A hostile workspace, and a second chat on the same server that is not affected."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import (
    Call,
    Json,
    ServerSite,
    WorkspacePaths,
    WorkspaceServer,
    execute,
    socket_taken,
)

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

PRINTER = "yes this does not end"
BOMB = "b() { b | b & }; b; sleep 1000"
TEN_GIGABYTES = "head -c 10G /dev/zero > big; wc -c < big; rm big"
LINKS = "ln -s /etc/shadow shadow; ln -s /root root; cat shadow root/.bashrc"
FILE_LIMIT = str(8 * 1024 * 1024)
REDIRECT = (
    b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


def behind(command: str) -> Call:
    return ("execute", {"command": command, "run_in_background": True})


@asynccontextmanager
async def in_its_place(socket: Path, other: Path | None) -> AsyncGenerator[list[bytes]]:
    """An impostor listens instead of the agent: it redirects every request or, with another
    agent, passes it on. Yields the requests."""
    asked: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head)
            writer.write(REDIRECT if other is None else await answer_of(other, head))
            await writer.drain()
        writer.close()

    async with socket_taken(socket, connected):
        yield asked


async def answer_of(socket: Path, head: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(head)
    answer = await reader.read(65536)
    writer.close()
    return answer


async def assert_alive(server: WorkspaceServer, chat: str, name: str) -> None:
    [told] = await server.call(chat, name, execute("echo alive"))
    assert told["output"] == "alive\n", told


@pytest.mark.covers("hostile-1", "hostile-2", "hostile-3", "hostile-5", "hostile-7")
async def test_a_hostile_workspace_is_limited_and_does_not_affect_others(
    site: ServerSite,
) -> None:
    """Takes seconds: a server is started."""
    async with site.server() as server:
        hostile = await server.create("hostile", site.create("small"))
        good = await server.create("good", site.create("plain"))
        theirs, ours = await server.workspace_of(hostile), await server.workspace_of(good)
        assert_bounded(await server.call(hostile, "large", execute(TEN_GIGABYTES)))
        assert_kept_in(await server.call(hostile, "links", execute(LINKS)))
        await assert_impostors_refused(server, hostile, theirs, ours)
        await assert_alive(server, good, "after")
        for name, command in (("printer", PRINTER), ("bomb", BOMB)):  # the bomb lets nothing start
            (told,) = await server.call(hostile, name, behind(command))
            assert told.get("background_process_id"), told
        await assert_alive(server, good, "meanwhile")
        [stopped] = await server.call(hostile, "enough", ("stop_workspace", {}))
        assert stopped["stopped"], stopped
        await assert_alive(server, good, "in the end")


def assert_bounded(results: list[Json]) -> None:
    assert FILE_LIMIT in results[0]["output"], results


def assert_kept_in(results: list[Json]) -> None:
    assert results[0]["success"] is False, results
    assert results[0]["output"].count("No such file or directory") == 2, results


async def assert_impostors_refused(
    server: WorkspaceServer, chat: str, theirs: WorkspacePaths, ours: WorkspacePaths
) -> None:
    for name, other in (("redirect", None), ("key", ours.socket)):
        async with in_its_place(theirs.socket, other) as asked:
            [told] = await server.call(chat, name, execute("touch done"))
        assert asked
        assert "not the agent" in str(told), told
        assert not (theirs.home / "done").exists()
        assert not (ours.home / "done").exists()
