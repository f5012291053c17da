"""One command of this boot as a value: what was asked, what came of it, who waits for it.

Owns the shapes that a caller sees. Starting, ending and forgetting commands is done in
`processes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from chatd.agent.headtail import HeadTail
from chatd.agent.jsonlog import Json
from chatd.agent.spawning import Child

MAX_SHOWN = 1000

Waiters = set["asyncio.Future[None]"]


@dataclass(frozen=True)
class Order:
    """What was asked for. `family`: the chats that are told when it has ended."""

    command: str
    chat_id: str | None
    workdir: str | None
    env: Mapping[str, str]
    background: bool
    family: tuple[str, ...]


@dataclass
class Entry:
    """One command. `saved`: its last word is on disk, so memory may forget it."""

    id: str
    number: int
    order: Order
    workdir: str
    started_at: float
    buffer: HeadTail = field(default_factory=HeadTail)
    child: Child | None = None
    exit_code: int | None = None
    ended_at: float | None = None
    saved: bool = False
    until_end: Waiters = field(default_factory=Waiters)
    until_news: Waiters = field(default_factory=Waiters)

    @property
    def running(self) -> bool:
        return self.ended_at is None

    def visible_to(self, chat_id: str | None) -> bool:
        """A request that names no chat sees everything."""
        return chat_id is None or self.order.chat_id == chat_id

    def printed(self, data: bytes) -> None:
        self.buffer.write(data)
        wake(self.until_news)

    def end(self, exit_code: int, ended_at: float) -> None:
        self.exit_code = exit_code
        self.ended_at = ended_at
        wake(self.until_end)
        wake(self.until_news)

    def listed(self) -> Json:
        return {
            "id": self.id,
            "command": _shown(self.order.command),
            "workdir": self.workdir,
            "background": self.order.background,
            "running": self.running,
            "exit_code": self.exit_code,
            "started_at_unix": int(self.started_at),
            "exited_at_unix": None if self.ended_at is None else int(self.ended_at),
        }

    def output(self, after: int = 0) -> Json:
        view = self.buffer.since(after, final=not self.running)
        return {
            "output": view.text,
            "running": self.running,
            "exit_code": self.exit_code,
            "truncated": asdict(view.truncated) if view.truncated else None,
            "cursor": view.cursor,
        }

    def last_word(self) -> Json:
        """What `finished` keeps."""
        return {"chat_id": self.order.chat_id, **self.output()}


def from_last_word(record: Json, after: int) -> Json:
    """The output again, from what was kept. If a cursor cannot be found in it, all of it."""
    fields = ("output", "running", "exit_code", "truncated", "cursor")
    output = {name: record.get(name) for name in fields}
    text, cursor = output["output"], output["cursor"]
    if not isinstance(text, str) or not isinstance(cursor, int):
        return output
    data = text.encode("utf-8", "replace")
    if after >= cursor:
        output["output"] = ""
    elif len(data) == cursor:
        output["output"] = data[after:].decode("utf-8", "replace")
    return output


def _shown(command: str) -> str:
    """Some write whole files in a command; a list of them need not repeat those."""
    return command if len(command) <= MAX_SHOWN else f"{command[:MAX_SHOWN]} [...]"


def wake(waiters: Waiters) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


async def wait(waiters: Waiters, timeout_s: float) -> None:
    """Until woken or for so long, whichever is first."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.add(waiter)
    try:
        await asyncio.wait([waiter], timeout=timeout_s)
    finally:
        waiters.discard(waiter)
