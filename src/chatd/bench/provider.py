"""A model's API that talks at a steady pace, or as fast as it can.

`python -m chatd.bench.provider`: a process of its own, so that nobody is charged for its work.
Speaks OpenAI's Chat Completions,
each event in a write of its own as vendors send them. What to say is in the last message of the
user (`script`). Prints its port, and ends when its standard input is closed.
"""

import asyncio
import sys
from functools import cache
from typing import Final, cast

import msgspec
import uvloop
from msgspec import Struct

from chatd.bench.children import until_input_ends
from chatd.bench.script import Wish, read_wish, token

TOOL: Final = "bench_tool"

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_AT_ONCE: Final = 32
"""Events of one chat before the others have their turn."""


class _Text(Struct):
    text: str = ""


class _Message(Struct):
    role: str
    content: str | list[_Text] | None = None


class _Request(Struct):
    messages: list[_Message]


_REQUEST: Final = msgspec.json.Decoder(_Request)


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    """One event as OpenAI sends it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    data = {
        "id": "chatcmpl-01",
        "object": "chat.completion.chunk",
        "created": 1794780000,
        "model": "gpt-4.1",
        "service_tier": "default",
        "system_fingerprint": "fp_01",
        "choices": [choice],
        "obfuscation": "xK9xK9xK9",
    }
    return b"data: %b\n\n" % msgspec.json.encode(data)


def usage(said: int) -> bytes:
    counts = {"prompt_tokens": 20, "completion_tokens": said, "total_tokens": said + 20}
    whole: dict[str, object] = {"id": "chatcmpl-01", "object": "chat.completion.chunk"}
    whole |= {"choices": [], "usage": counts}
    return b"data: %b\n\n" % msgspec.json.encode(whole)


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


@cache
def _said(number: int) -> bytes:
    return _framed(chunk({"content": token(number)}))


def _ending(tokens: int, finish: str) -> bytes:
    events = (chunk({}, finish), usage(tokens), b"data: [DONE]\n\n")
    return b"".join(map(_framed, events)) + b"0\r\n\r\n"


def _call(number: int) -> bytes:
    function = {"name": TOOL, "arguments": "{}"}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    return _framed(chunk({"role": "assistant", "content": None, "tool_calls": [call]}))


def wished(body: bytes) -> tuple[Wish, int]:
    """What the last message of the user asks for, and how many results have come since."""
    messages = _REQUEST.decode(body).messages
    results = 0
    for message in reversed(messages):
        if message.role == "user":
            content = message.content or ""
            said = content if isinstance(content, str) else "".join(part.text for part in content)
            return read_wish(said), results
        results += message.role == "tool"
    return Wish(tokens=1), results


class Mouth(asyncio.Protocol):
    """One connection, request after request."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: asyncio.WriteTransport | None = None
        self._heard = b""
        self._wish = Wish(tokens=0)
        self._next = 0
        self._began = 0.0
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports are children of the standard library's.
        self._line = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._line = None

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._loop.call_soon(self._rush)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, found, rest = self._heard.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if len(rest) >= length:
            self._heard = rest[length:]
            self._answer(rest[:length])

    def _answer(self, body: bytes) -> None:
        assert self._line is not None
        wish, results = wished(body)
        self._line.write(_HEAD)
        if results < wish.calls:
            self._line.write(_call(results) + _ending(1, "tool_calls"))
            return
        self._line.write(_framed(chunk({"role": "assistant", "content": "", "refusal": None})))
        self._wish, self._next, self._began = wish, 0, self._loop.time()
        if wish.per_s:
            self._pace()
        else:
            self._rush()

    def _pace(self) -> None:
        """By the clock and not by the last token, so that a late one does not delay the rest."""
        if self._line is None:
            return
        self._line.write(_said(self._next))
        self._next += 1
        if self._next < self._wish.tokens:
            self._loop.call_at(self._began + self._next / self._wish.per_s, self._pace)
        else:
            self._line.write(_ending(self._wish.tokens, "stop"))

    def _rush(self) -> None:
        if self._line is None or self._full or self._wish.per_s or not self._wish.tokens:
            return
        for number in range(self._next, min(self._next + _AT_ONCE, self._wish.tokens)):
            self._line.write(_said(number))
            self._next = number + 1
        if self._next < self._wish.tokens:
            self._loop.call_soon(self._rush)
        else:
            self._line.write(_ending(self._wish.tokens, "stop"))
            self._wish = Wish(tokens=0)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Mouth, "127.0.0.1", 0, backlog=2048)
    async with server:
        await until_input_ends(server.sockets[0].getsockname()[1])


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
