"""The three ways from a client to the provider: direct, through a relay, and through chatd.

Owns what a client does for one answer on each of them, and when its tokens came. An answer that
is not what the provider said fails the bench: what is wrong may be as fast as it likes.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from chatd.bench.line import Line, connect
from chatd.bench.script import MARK, Wish, answer
from chatd.domain.errors import InvariantBroken

TOKEN: Final = "bench-token-0123456789abcdef0123456789"
"""The administrator's token of the servers that are measured."""

_JSON: Final = "content-type: application/json\r\n"
_AUTH: Final = f"authorization: Bearer {TOKEN}\r\n"
_PART: Final = b'data: {"type":"message_part"'
_MESSAGE: Final = b'data: {"type":"message",'
_ANSWER: Final = b'"role":"assistant"'
_BROKEN: Final = (b'data: {"type":"error"', b'data: {"code"')
"""The turn failed, or the server has ended the stream and says why."""


class Heard(Struct, frozen=True, kw_only=True):
    """Times are the loop's clock."""

    asked_at: float
    first_at: float
    last_at: float
    tokens: int

    @property
    def first_s(self) -> float:
        return self.first_at - self.asked_at


class Side(Protocol):
    """`talk` gets one answer. What was opened for it is closed by `close`."""

    async def talk(self, wish: Wish) -> Heard: ...
    def close(self) -> None: ...


class Ear:
    """Counts tokens as they come."""

    def __init__(self, wish: Wish, line: Line) -> None:
        self._wish = wish
        self._line = line
        self.asked_at = time.perf_counter()
        self.first_at = 0.0
        self.tokens = 0

    def count(self, line: bytes) -> None:
        if self.tokens == 0:
            self.first_at = time.perf_counter()
        self.tokens += line.count(MARK)

    def wire_line(self, line: bytes) -> None:
        """Of the provider itself."""
        if MARK in line:
            self.count(line)
        elif line.startswith(b"data: [DONE]"):
            self._line.stop()

    def event_line(self, line: bytes) -> None:
        """Of a chat. The last parts may come only with the message, whole."""
        if line.startswith(_PART):
            self.count(line)
        elif line.startswith(_MESSAGE) and _ANSWER in line and MARK in line:
            live, self.tokens = self.tokens, line.count(MARK)
            if live > self.tokens or answer(self._wish.tokens).encode() not in line:
                self._line.fail(InvariantBroken("The answer is not what the model said."))
            self.first_at = self.first_at or time.perf_counter()
            self._line.stop()
        elif line.startswith(_BROKEN):
            self._line.fail(InvariantBroken(line.decode()))

    def heard(self) -> Heard:
        if self.tokens != self._wish.tokens:
            said = f"{self.tokens} tokens of {self._wish.tokens} came."
            raise InvariantBroken(said)
        return Heard(
            asked_at=self.asked_at,
            first_at=self.first_at,
            last_at=time.perf_counter(),
            tokens=self.tokens,
        )


class Plain:
    """Straight to the provider, or to whoever passes its stream on."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Line] = []

    async def talk(self, wish: Wish) -> Heard:
        line = self._idle.pop() if self._idle else await connect(self._port)
        body = {"model": "bench", "stream": True, "messages": [_said(wish)]}
        ear = Ear(wish, line)
        head = f"POST /v1/chat/completions HTTP/1.1\r\n{_JSON}"
        await line.follow(head, ear.wire_line, msgspec.json.encode(body))
        self._idle.append(line)
        return ear.heard()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Begun(Struct, frozen=True, kw_only=True):
    """A chat as the server answers with it."""

    id: str
    status: str

    @property
    def runs(self) -> bool:
        """The server that was asked has taken it, and not left it to another."""
        return self.status == "running"


_BEGUN: Final = msgspec.json.Decoder(Begun)


class Chatd:
    """A chat for each answer, and a viewer who opens its stream as soon as it is there."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._desks: list[Line] = []

    async def talk(self, wish: Wish) -> Heard:
        desk = self._desks.pop() if self._desks else await connect(self._port)
        line = await connect(self._port)
        ear = Ear(wish, line)
        chat_id = await self.create(desk, wish)
        self._desks.append(desk)
        try:
            await line.follow(events_head(chat_id), ear.event_line)
        finally:
            line.close()
        return ear.heard()

    async def create(self, desk: Line, wish: Wish) -> str:
        return (await self.begin(desk, wish)).id

    async def begin(self, desk: Line, wish: Wish) -> Begun:
        head = f"POST /api/v1/chats HTTP/1.1\r\n{_JSON}{_AUTH}"
        return _BEGUN.decode(await desk.ask(head, _content(wish)))

    def close(self) -> None:
        while self._desks:
            self._desks.pop().close()


def events_head(chat_id: str) -> str:
    return f"GET /api/v1/chats/{chat_id}/events HTTP/1.1\r\n{_AUTH}"


async def send(desk: Line, chat_id: str, wish: Wish) -> None:
    head = f"POST /api/v1/chats/{chat_id}/messages HTTP/1.1\r\n{_JSON}{_AUTH}"
    await desk.ask(head, _content(wish))


async def interrupt(desk: Line, chat_id: str) -> None:
    await desk.ask(f"POST /api/v1/chats/{chat_id}/interrupt HTTP/1.1\r\n{_AUTH}")


def _said(wish: Wish) -> dict[str, str]:
    return {"role": "user", "content": str(wish)}


def _content(wish: Wish) -> bytes:
    return msgspec.json.encode({"content": [{"type": "text", "text": str(wish)}]})


async def crowd(side: Side, wish: Wish, count: int) -> Sequence[Heard]:
    """As many answers at once."""
    async with asyncio.TaskGroup() as group:
        talks = [group.create_task(side.talk(wish)) for _ in range(count)]
    return [talk.result() for talk in talks]
