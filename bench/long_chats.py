"""What a turn costs in a long chat: CPU time of a turn at a late message over one at message 20;
and a late step of a long turn over its first ones."""

import asyncio
from typing import Final

from bench.clients import ChatdClient, ask_many, events_head, send_message
from bench.environment import BenchEnvironment
from bench.fake_provider import AnswerScript
from bench.http_client import open_connection
from bench.report import ReportRow, at_most

MAX_LONG_RATIO: Final = 1.3
MAX_STEP_RATIO: Final = 1.5
LAST_STEP: Final = 200
STEPS_MEASURED: Final = 20
"""At the beginning and at the end of a turn: the clock of the processor has ticks of 10 ms."""
TURN_TIMEOUT_S: Final = 30.0
_SCRIPT: Final = AnswerScript(tokens=60)
_MESSAGE: Final = b'data: {"type":"message",'
_ANSWER: Final = b'"role":"assistant"'
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
        return (await bench.cpu_s() - before) * 1000 / max(turns, 1)

    # A server that has run little is slower: the early turns must not pay for that.
    for _ in range(3):
        await ask_many(client, _SCRIPT, 30)
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


async def measure_steps(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    """A turn in which the model calls a tool in each of its steps."""
    client = bench.chatd_client()
    early_s = late_s = 0.0
    turns = 3 if quick else 8
    await _follow_turn(bench, client)
    for _ in range(turns):
        marks = await _follow_turn(bench, client)
        early_s += marks[1 + STEPS_MEASURED] - marks[1]
        late_s += marks[LAST_STEP] - marks[LAST_STEP - STEPS_MEASURED]
    client.close()
    steps = turns * STEPS_MEASURED
    return [
        at_most(
            f"step {LAST_STEP} of a turn over step 2: CPU",
            late_s / early_s,
            MAX_STEP_RATIO,
            note=f"{late_s * 1000 / steps:.1f} and {early_s * 1000 / steps:.1f} ms, of the last"
            f" {STEPS_MEASURED} and of as many from the second on, in {turns} turns",
        )
    ]


async def _follow_turn(bench: BenchEnvironment, client: ChatdClient) -> dict[int, float]:
    """The CPU time that was used after so many steps."""
    wanted = {1, 1 + STEPS_MEASURED, LAST_STEP - STEPS_MEASURED, LAST_STEP}
    connection, line = [await open_connection(bench.server.port) for _ in range(2)]
    marks: dict[int, float] = {}
    done = 0

    def on_line(text: bytes) -> None:
        nonlocal done
        if text.startswith(_MESSAGE) and _ANSWER in text:
            done += 1
            if done in wanted:
                marks[done] = bench.cpu_now_s()
            if done == LAST_STEP:
                line.stop()

    chat_id = await client.create_chat_id(connection, AnswerScript(tokens=5, calls=LAST_STEP + 5))
    async with asyncio.timeout(TURN_TIMEOUT_S + LAST_STEP):
        await line.follow(events_head(chat_id), on_line)
    for each in (connection, line):
        each.close()
    return marks
