"""The life of a process that listens to streams, and what it is told and tells.

Owns the loop (uvloop, as in the product), the clock of the processor and nothing of any wire.
Jobs come in on standard input, one a line, and what they took goes out the same way.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec
import uvloop

Wire = Literal["messages", "responses", "chat"]
Kind = Literal["text", "tool"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """`url` is the talker's, up to where a vendor's base URL ends (without the version)."""

    wire: Wire
    url: str


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """`said` is the text, or the call's input, put together."""

    cpu_s: float
    said: str


Listen = Callable[[Job], Awaitable[str]]

_JOB: Final = msgspec.json.Decoder(Job)


def listen_for_jobs(listen: Listen) -> None:
    gc.freeze()  # the vendors' packages share a process; neither is to pay for walking the other
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin.buffer:
            heard = runner.run(_timed(listen, _JOB.decode(line)))
            print(msgspec.json.encode(heard).decode(), flush=True)


async def _timed(listen: Listen, job: Job) -> Heard:
    gc.collect()  # nobody pays for what another stream has left behind
    before = time.process_time()
    said = await listen(job)
    return Heard(cpu_s=time.process_time() - before, said=said)
