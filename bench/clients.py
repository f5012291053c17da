"""The three clients of the bench: direct to the provider, through the relay, through chatd.

Each gets one answer and records when its tokens came. An answer that differs from the provider's
text fails the row.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from bench.fake_provider import TOKEN_MARK, AnswerScript, answer_text
from bench.http_client import BenchConnection, open_connection
from chatd.domain.errors import InvariantBroken

TOKEN: Final = "bench-token-0123456789abcdef0123456789"
"""The administrator's token of the measured servers."""

_JSON: Final = "content-type: application/json\r\n"
_AUTH: Final = f"authorization: Bearer {TOKEN}\r\n"
_PART: Final = b'data: {"type":"message_part"'
_MESSAGE: Final = b'data: {"type":"message",'
_ANSWER: Final = b'"role":"assistant"'
_BROKEN: Final = (b'data: {"type":"error"', b'data: {"code"')
"""The turn failed, or the server ended the stream with a reason."""


class TokenTimes(Struct, frozen=True, kw_only=True):
    """Times of `time.perf_counter`."""

    asked_at: float
    first_at: float
    last_at: float
    tokens: int

    @property
    def first_s(self) -> float:
        return self.first_at - self.asked_at


class BenchClient(Protocol):
    """`ask` gets one answer; `close` closes the connections that `ask` opened."""

    async def ask(self, script: AnswerScript) -> TokenTimes: ...
    def close(self) -> None: ...


class TokenCounter:
    """Counts tokens on arrival."""

    def __init__(self, script: AnswerScript, line: BenchConnection) -> None:
        self._script = script
        self._line = line
        self.asked_at = time.perf_counter()
        self.first_at = 0.0
        self.tokens = 0

    def count(self, line: bytes) -> None:
        if self.tokens == 0:
            self.first_at = time.perf_counter()
        self.tokens += line.count(TOKEN_MARK)

    def on_provider_line(self, line: bytes) -> None:
        """A line of the provider's response."""
        if TOKEN_MARK in line:
            self.count(line)
        elif line.startswith(b"data: [DONE]"):
            self._line.stop()

    def on_event_line(self, line: bytes) -> None:
        """A line of a chat's events. The last parts may arrive only with the whole message."""
        if line.startswith(_PART):
            self.count(line)
        elif line.startswith(_MESSAGE) and _ANSWER in line and TOKEN_MARK in line:
            live, self.tokens = self.tokens, line.count(TOKEN_MARK)
            if live > self.tokens or answer_text(self._script.tokens).encode() not in line:
                self._line.fail(InvariantBroken("The answer differs from the provider's text."))
            self.first_at = self.first_at or time.perf_counter()
            self._line.stop()
        elif line.startswith(_BROKEN):
            self._line.fail(InvariantBroken(line.decode()))

    def times(self) -> TokenTimes:
        if self.tokens != self._script.tokens:
            raise InvariantBroken(f"{self.tokens} of {self._script.tokens} tokens arrived.")
        return TokenTimes(
            asked_at=self.asked_at,
            first_at=self.first_at,
            last_at=time.perf_counter(),
            tokens=self.tokens,
        )


class DirectClient:
    """A client of the provider, or of the relay."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[BenchConnection] = []

    async def ask(self, script: AnswerScript) -> TokenTimes:
        line = self._idle.pop() if self._idle else await open_connection(self._port)
        body = {"model": "bench", "stream": True, "messages": [_user_message(script)]}
        counter = TokenCounter(script, line)
        head = f"POST /v1/chat/completions HTTP/1.1\r\n{_JSON}"
        await line.follow(head, counter.on_provider_line, msgspec.json.encode(body))
        self._idle.append(line)
        return counter.times()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class CreatedChat(Struct, frozen=True, kw_only=True):
    """The server's reply to a new chat."""

    id: str
    status: str

    @property
    def is_running(self) -> bool:
        """Whether the replica that created the chat also acquired it."""
        return self.status == "running"


_BEGUN: Final = msgspec.json.Decoder(CreatedChat)


class ChatdClient:
    """A new chat for each answer, with a viewer that opens its stream at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[BenchConnection] = []

    async def ask(self, script: AnswerScript) -> TokenTimes:
        connection = self._idle.pop() if self._idle else await open_connection(self._port)
        line = await open_connection(self._port)
        counter = TokenCounter(script, line)
        chat_id = await self.create_chat_id(connection, script)
        self._idle.append(connection)
        try:
            await line.follow(events_head(chat_id), counter.on_event_line)
        finally:
            line.close()
        return counter.times()

    async def create_chat_id(self, connection: BenchConnection, script: AnswerScript) -> str:
        return (await self.create_chat(connection, script)).id

    async def create_chat(self, connection: BenchConnection, script: AnswerScript) -> CreatedChat:
        head = f"POST /api/v1/chats HTTP/1.1\r\n{_JSON}{_AUTH}"
        return _BEGUN.decode(await connection.request(head, _content(script)))

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def events_head(chat_id: str) -> str:
    return f"GET /api/v1/chats/{chat_id}/events HTTP/1.1\r\n{_AUTH}"


async def send_message(connection: BenchConnection, chat_id: str, script: AnswerScript) -> None:
    head = f"POST /api/v1/chats/{chat_id}/messages HTTP/1.1\r\n{_JSON}{_AUTH}"
    await connection.request(head, _content(script))


async def interrupt(connection: BenchConnection, chat_id: str) -> None:
    await connection.request(f"POST /api/v1/chats/{chat_id}/interrupt HTTP/1.1\r\n{_AUTH}")


def _user_message(script: AnswerScript) -> dict[str, str]:
    return {"role": "user", "content": str(script)}


def _content(script: AnswerScript) -> bytes:
    return msgspec.json.encode({"content": [{"type": "text", "text": str(script)}]})


async def ask_many(client: BenchClient, script: AnswerScript, count: int) -> Sequence[TokenTimes]:
    """`count` answers concurrently."""
    async with asyncio.TaskGroup() as group:
        asks = [group.create_task(client.ask(script)) for _ in range(count)]
    return [ask.result() for ask in asks]
