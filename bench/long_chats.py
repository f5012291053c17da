"""What a turn costs in a long chat: CPU time of a turn at a late message over one at message 20."""

import asyncio
from typing import Final

from bench.clients import events_head, send_message
from bench.environment import BenchEnvironment
from bench.fake_provider import AnswerScript
from bench.http_client import open_connection
from bench.report import ReportRow, at_most

MAX_LONG_RATIO: Final = 1.3
TURN_TIMEOUT_S: Final = 30.0
_SCRIPT: Final = AnswerScript(tokens=60)
_STATUS: Final = b'data: {"type":"status"'


async def measure_long(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    late, measured = (600, 10) if quick else (2000, 20)
    client = bench.chatd_client()
    connection, line = [await open_connection(bench.server.port) for _ in range(2)]
    at_rest = asyncio.Event()

    def on_line(text: bytes) -> None:
        if text.startswith(_STATUS) and b'"waiting"' in text:
            at_rest.set()

    async def cpu_ms(chat_id: str, turns: int) -> float:
        """Of a turn."""
        before = await bench.cpu_s()
        for _ in range(turns):
            at_rest.clear()
            await send_message(connection, chat_id, _SCRIPT)
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await at_rest.wait()
        return (await bench.cpu_s() - before) * 1000 / turns

    async with asyncio.TaskGroup() as group:
        chat_id = await client.create_chat_id(connection, _SCRIPT)
        following = group.create_task(line.follow(events_head(chat_id), on_line))
        async with asyncio.timeout(TURN_TIMEOUT_S):
            await at_rest.wait()
        await cpu_ms(chat_id, 10 - measured // 2)
        early_ms = await cpu_ms(chat_id, measured)
        await cpu_ms(chat_id, (late - 20) // 2 - measured)
        late_ms = await cpu_ms(chat_id, measured)
        line.stop()
        await following
    for each in (connection, line):
        each.close()
    return [
        at_most(
            f"a turn at message {late} over one at message 20: CPU",
            late_ms / early_ms,
            MAX_LONG_RATIO,
            note=f"{late_ms:.1f} and {early_ms:.1f} ms",
        )
    ]
