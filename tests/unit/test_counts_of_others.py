"""Bounds of what a workspace or a client sends: the lines of a build, the frames of a terminal."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from chatd.api.sockets import terminal_socket
from chatd.domain.ids import WorkerId
from chatd.domain.workspace.entities import BuildId
from chatd.store.workspace.builds import BuildLease
from chatd.workspaces.build_worker import (
    MAX_LOG_BYTES,
    MAX_LOG_LINE_CHARS,
    MAX_LOG_LINES,
    BuildLogBuffer,
)


@pytest.mark.parametrize(
    ("text", "times", "most"),
    [
        ("a line\n" * 7, MAX_LOG_LINES, MAX_LOG_LINES),
        ("x" * (MAX_LOG_LINE_CHARS * 10), MAX_LOG_LINES, MAX_LOG_BYTES // MAX_LOG_LINE_CHARS),
    ],
)
def test_the_log_of_a_build_is_bounded_and_says_that_it_is_full(
    text: str, times: int, most: int
) -> None:
    lease = BuildLease(id=BuildId(UUID(int=1)), worker_id=WorkerId(UUID(int=2)), attempt=1)
    log = BuildLogBuffer(lease)
    for _ in range(times):
        log("build", "info", text)
    lines = list(log._waiting)  # pyright: ignore[reportPrivateUsage]
    assert most // 2 < len(lines) <= most + 1
    assert max(len(line.output) for line in lines) <= MAX_LOG_LINE_CHARS + len(" [cut]")
    assert (lines[-1].level, "full" in lines[-1].output) == ("warning", True)


async def test_a_terminal_that_takes_no_input_is_sent_a_bounded_number_of_frames() -> None:
    received = 0

    async def receive() -> dict[str, object]:
        nonlocal received
        received += 1
        if received > 1_000:
            return {"type": "websocket.disconnect"}
        return {"type": "websocket.receive", "text": '{"type":"input","data":"x"}'}

    unused = cast("Any", None)
    socket = terminal_socket._TerminalSocket(  # pyright: ignore[reportPrivateUsage]
        unused, unused, receive, unused, unused
    )
    _, read, _ = socket.parts
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await read()
    assert received == terminal_socket.MAX_WAITING_FRAMES + 1
