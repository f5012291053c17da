"""Memory of an idle chat, a running chat and a viewer, as a difference divided by their number.

Only anonymous memory counts, and only the growth from the first half of the chats to the second:
caches and buffer pools have their size by then.
"""

import asyncio
from typing import Final

from bench import proc_stats
from bench.clients import ask_many, events_head, interrupt
from bench.environment import BenchEnvironment
from bench.fake_provider import AnswerScript
from bench.http_client import BenchConnection, open_connection
from bench.report import ReportRow, at_most

MAX_IDLE_CHAT_KB: Final = 1.0
"""Zero, apart from what the allocator keeps."""
MAX_RUNNING_CHAT_KB: Final = 100.0
MAX_VIEWER_KB: Final = 40.0

_LIVE_PARTS_KEPT_S: Final = 31.0
"""The server keeps live parts this long after the answer, for late viewers."""
_SETTLE_S: Final = 2.0


async def measure_memory(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    many = 100 if quick else 400
    return [
        await _running(bench, many),
        await _viewer(bench, many),
        await _idle(bench, many, pause_s=_SETTLE_S if quick else _LIVE_PARTS_KEPT_S),
    ]


async def _own_kb(bench: BenchEnvironment) -> int:
    await bench.pause(_SETTLE_S)
    return await asyncio.to_thread(proc_stats.own_memory_kb, bench.server.pid)


async def _idle(bench: BenchEnvironment, many: int, *, pause_s: float) -> ReportRow:
    """Three times: the second and third find memory that the first has allocated."""
    client, memory_kb = bench.chatd_client(), list[int]()
    for _ in range(3):
        for _ in range(4):
            await ask_many(client, AnswerScript(tokens=50), many // 4)
        await bench.pause(pause_s)
        memory_kb.append(await _own_kb(bench))
    client.close()
    note = f"{many} chats with an answer each, after {many * 2} others"
    grown = max(0.0, (memory_kb[2] - memory_kb[1]) / many)
    return at_most("memory of an idle chat", grown, MAX_IDLE_CHAT_KB, unit=" KB", note=note)


async def _running(bench: BenchEnvironment, many: int) -> ReportRow:
    """Without viewers, at one token a second."""
    client, connection, memory_kb = (
        bench.chatd_client(),
        await open_connection(bench.server.port),
        list[int](),
    )
    script = AnswerScript(tokens=20, per_s=1)
    chats: list[str] = []
    for _ in range(2):
        chats += [await client.create_chat_id(connection, script) for _ in range(many)]
        memory_kb.append(await _own_kb(bench))
    for chat_id in chats:
        await interrupt(connection, chat_id)
    connection.close()
    grown = (memory_kb[1] - memory_kb[0]) / many
    note = f"{many} chats in mid-answer, on top of {many} others; no viewers"
    return at_most("memory of a running chat", grown, MAX_RUNNING_CHAT_KB, unit=" KB", note=note)


async def _viewer(bench: BenchEnvironment, many: int) -> ReportRow:
    """Viewers of one idle chat. The kernel's memory for sockets is not included."""
    client, connection, memory_kb = (
        bench.chatd_client(),
        await open_connection(bench.server.port),
        list[int](),
    )
    chat_id = await client.create_chat_id(connection, AnswerScript(tokens=5))
    viewers: list[BenchConnection] = []
    for _ in range(2):
        new = [await open_connection(bench.server.port) for _ in range(many)]
        viewers += new
        async with asyncio.TaskGroup() as group:
            for viewer in new:
                group.create_task(_follow_until_first_event(viewer, chat_id))
        memory_kb.append(await _own_kb(bench))
    for line in (connection, *viewers):
        line.close()
    grown = (memory_kb[1] - memory_kb[0]) / many
    note = f"{many} event streams of one chat, on top of {many} others"
    return at_most("memory of a viewer", grown, MAX_VIEWER_KB, unit=" KB", note=note)


async def _follow_until_first_event(viewer: BenchConnection, chat_id: str) -> None:
    def on_line(line: bytes) -> None:
        if line.startswith(b"id:"):
            viewer.stop()

    await viewer.follow(events_head(chat_id), on_line)
