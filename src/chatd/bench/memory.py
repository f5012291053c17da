"""Memory: what an idle chat, a running one and a viewer hold, by the difference that many make.

What is counted is memory of the process's own, and what the second half of a crowd adds to the
first: a cache or a pool of buffers that has grown to its size by then is nobody's.
"""

import asyncio
from typing import Final

from chatd.bench import proc
from chatd.bench.line import Line as Wire
from chatd.bench.line import connect
from chatd.bench.report import Line, at_most
from chatd.bench.script import Wish
from chatd.bench.sides import crowd, events_head, interrupt
from chatd.bench.stage import Stage

IDLE_KB: Final = 1.0
"""Nothing at all, but for what an allocator leaves."""
RUNNING_KB: Final = 100.0
VIEWER_KB: Final = 40.0

_KEPT_S: Final = 31.0
"""For so long live parts of an answer that is over are kept, for those who come late."""
_SETTLES_S: Final = 2.0


async def measure(stage: Stage, *, quick: bool) -> list[Line]:
    many = 100 if quick else 400
    return [
        await _running(stage, many),
        await _viewer(stage, many),
        await _idle(stage, many, kept_s=_SETTLES_S if quick else _KEPT_S),
    ]


async def _own_kb(stage: Stage) -> int:
    await stage.pause(_SETTLES_S)
    return await asyncio.to_thread(proc.own_memory_kb, stage.server.pid)


async def _idle(stage: Stage, many: int, *, kept_s: float) -> Line:
    """Twice: the first crowd makes the room that the second finds."""
    side, held = stage.ours(), list[int]()
    for _ in range(3):
        for _ in range(4):
            await crowd(side, Wish(tokens=50), many // 4)
        await stage.pause(kept_s)
        held.append(await _own_kb(stage))
    side.close()
    note = f"{many} chats with an answer each, after {many * 2} others"
    grown = max(0.0, (held[2] - held[1]) / many)
    return at_most("memory of an idle chat", grown, IDLE_KB, unit=" KB", note=note)


async def _running(stage: Stage, many: int) -> Line:
    """Nobody watches them. They say a word a second, for as long as it takes to look."""
    side, desk, held = stage.ours(), await connect(stage.server.port), list[int]()
    wish = Wish(tokens=20, per_s=1)
    chats: list[str] = []
    for _ in range(2):
        chats += [await side.create(desk, wish) for _ in range(many)]
        held.append(await _own_kb(stage))
    for chat_id in chats:
        await interrupt(desk, chat_id)
    desk.close()
    grown = (held[1] - held[0]) / many
    note = f"{many} chats in mid-answer, on top of {many} others; nobody watches"
    return at_most("memory of a running chat", grown, RUNNING_KB, unit=" KB", note=note)


async def _viewer(stage: Stage, many: int) -> Line:
    """All of one chat that is at rest. What the kernel needs for a socket is not in it."""
    side, desk, held = stage.ours(), await connect(stage.server.port), list[int]()
    chat_id = await side.create(desk, Wish(tokens=5))
    viewers: list[Wire] = []
    for _ in range(2):
        new = [await connect(stage.server.port) for _ in range(many)]
        viewers += new
        async with asyncio.TaskGroup() as group:
            for viewer in new:
                group.create_task(_until_there(viewer, chat_id))
        held.append(await _own_kb(stage))
    for line in (desk, *viewers):
        line.close()
    grown = (held[1] - held[0]) / many
    note = f"{many} event streams of one chat, on top of {many} others"
    return at_most("memory of a viewer", grown, VIEWER_KB, unit=" KB", note=note)


async def _until_there(viewer: Wire, chat_id: str) -> None:
    def heard(line: bytes) -> None:
        if line.startswith(b"id:"):
            viewer.stop()

    await viewer.follow(events_head(chat_id), heard)
