"""From the call that starts a subagent to its first token, beside the first token of a new chat.

The time of a subagent begins when a viewer of the parent sees the call, which is committed then. It
ends with the first token that a viewer of the subagent sees. This viewer connects when the parent's
stream shows the result of the call, as a page does.
"""

import re
import time
from typing import Final

from msgspec.structs import replace

from bench.clients import ChatdClient, TokenCounter, TokenTimes, events_head
from bench.environment import BenchEnvironment
from bench.fake_provider import SPAWN_TOOL_NAME, AnswerScript
from bench.http_client import BenchConnection, open_connection
from bench.proc_stats import percentile, spread
from bench.report import ReportRow, at_most
from chatd.domain.errors import InvariantBroken

MAX_SPAWN_RATIO: Final = 2.0
_ANSWER: Final = AnswerScript(tokens=3, per_s=100)
_WARM_UP_ROUNDS: Final = 5
_MESSAGE: Final = b'data: {"type":"message",'
_BROKEN: Final = (b'data: {"type":"error"', b'data: {"code"')
_STARTED: Final = re.compile(rb'"result":\{"chat_id":"([0-9a-f-]{36})"')


class SpawnWatch:
    """Notices the call and the id of the subagent in the events of its parent."""

    def __init__(self, line: BenchConnection) -> None:
        self._line = line
        self.called_at = 0.0
        self.child_id = ""

    def on_event_line(self, line: bytes) -> None:
        if line.startswith(_BROKEN):
            self._line.fail(InvariantBroken(line.decode()))
        if not line.startswith(_MESSAGE) or SPAWN_TOOL_NAME.encode() not in line:
            return
        self.called_at = self.called_at or time.perf_counter()
        if (found := _STARTED.search(line)) is not None:
            self.child_id = found[1].decode()
            self._line.stop()


async def measure_spawn(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    """Alternately, so that other load slows both."""
    client = bench.chatd_client()
    plain: list[float] = []
    below: list[float] = []
    for number in range(_WARM_UP_ROUNDS + (15 if quick else 60)):
        asked, spawned = await client.ask(_ANSWER), await _spawn(bench, client)
        if number >= _WARM_UP_ROUNDS:
            plain.append(asked.first_s * 1000)
            below.append(spawned.first_s * 1000)
    client.close()
    chat, child = spread(plain).median, spread(below).median
    late = percentile(below, 0.95)
    note = f"subagent {child:.1f} ms, p95 {late:.1f}; new chat {chat:.1f} ms"
    return [
        at_most(
            "first token of a subagent, over a new chat, p50",
            child / chat,
            MAX_SPAWN_RATIO,
            unit=" x",
            note=note,
        )
    ]


async def _spawn(bench: BenchEnvironment, client: ChatdClient) -> TokenTimes:
    port = bench.server.port
    asking, above, below = [await open_connection(port) for _ in range(3)]
    try:
        watch = SpawnWatch(above)
        chat_id = await client.create_chat_id(asking, replace(_ANSWER, spawns=True))
        await above.follow(events_head(chat_id), watch.on_event_line)
        counter = TokenCounter(_ANSWER, below)
        counter.asked_at = watch.called_at
        await below.follow(events_head(watch.child_id), counter.on_event_line)
        return counter.times()
    finally:
        for connection in (asking, above, below):
            connection.close()
