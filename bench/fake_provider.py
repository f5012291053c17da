"""A fake OpenAI Chat Completions API with numbered tokens, paced or as fast as possible.

`python -m bench.fake_provider` is a process of its own, so that its CPU time is not counted.
It sends each event in a separate write, as vendors do. The last user message contains the
`AnswerScript`, which passes unchanged through every server.
"""

import asyncio
import re
import sys
from functools import cache
from typing import Final, cast

import msgspec
import uvloop
from msgspec import Struct

from bench.child_processes import serve_until_input_ends

TOKEN_MARK: Final = b" tok"
"""Starts every token; occurs nowhere else in the stream."""

_SCRIPT_PATTERN: Final = re.compile(
    r"(spawn: )?say (\d+) tokens(?: at (\d+)/s)?(?: after (\d+) calls)?"
)


class AnswerScript(Struct, frozen=True, kw_only=True):
    """`per_s` 0 means as fast as possible; `calls` counts tool calls before the answer. `spawns`:
    the first call starts a subagent that gives the same answer."""

    tokens: int
    per_s: int = 0
    calls: int = 0
    spawns: bool = False

    def __str__(self) -> str:
        spawn = "spawn: " if self.spawns else ""
        pace = f" at {self.per_s}/s" if self.per_s else ""
        calls = f" after {self.calls} calls" if self.calls else ""
        return f"{spawn}say {self.tokens} tokens{pace}{calls}"


def parse_script(text: str) -> AnswerScript:
    """A text without a script gets a short answer: the server also requests titles."""
    found = _SCRIPT_PATTERN.search(text)
    if found is None:
        return AnswerScript(tokens=1)
    tokens, per_s, calls = (int(number or 0) for number in found.groups()[1:])
    return AnswerScript(tokens=tokens, per_s=per_s, calls=calls, spawns=found[1] is not None)


def token_text(number: int) -> str:
    return f" tok{number % 10_000:04d}"


def answer_text(tokens: int) -> str:
    return "".join(map(token_text, range(tokens)))


BENCH_TOOL_NAME: Final = "bench_tool"
SPAWN_TOOL_NAME: Final = "spawn_agent"

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_BURST_EVENTS: Final = 32
"""Events of one connection before the others continue."""


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


def _usage_event(tokens: int) -> bytes:
    counts = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": tokens + 20}
    whole: dict[str, object] = {"id": "chatcmpl-01", "object": "chat.completion.chunk"}
    whole |= {"choices": [], "usage": counts}
    return b"data: %b\n\n" % msgspec.json.encode(whole)


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


@cache
def _token_event(number: int) -> bytes:
    return _framed(chunk({"content": token_text(number)}))


def _end_events(tokens: int, finish: str) -> bytes:
    events = (chunk({}, finish), _usage_event(tokens), b"data: [DONE]\n\n")
    return b"".join(map(_framed, events)) + b"0\r\n\r\n"


def _call_event(number: int, script: AnswerScript) -> bytes:
    function = {"name": BENCH_TOOL_NAME, "arguments": "{}"}
    if script.spawns and number == 0:
        task = {"type": "general", "prompt": str(msgspec.structs.replace(script, spawns=False))}
        function = {"name": SPAWN_TOOL_NAME, "arguments": msgspec.json.encode(task).decode()}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    return _framed(chunk({"role": "assistant", "content": None, "tool_calls": [call]}))


def read_request(body: bytes) -> tuple[AnswerScript, int]:
    """The script in the last user message, and the number of tool results after it."""
    messages = _REQUEST.decode(body).messages
    results = 0
    for message in reversed(messages):
        if message.role == "user":
            content = message.content or ""
            text = content if isinstance(content, str) else "".join(part.text for part in content)
            return parse_script(text), results
        results += message.role == "tool"
    return AnswerScript(tokens=1), results


class ProviderProtocol(asyncio.Protocol):
    """One connection with sequential requests."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._received = b""
        self._script = AnswerScript(tokens=0)
        self._next = 0
        self._started_at = 0.0
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._send_burst)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if len(rest) >= length:
            self._received = rest[length:]
            self._answer(rest[:length])

    def _answer(self, body: bytes) -> None:
        assert self._transport is not None
        script, results = read_request(body)
        self._transport.write(_HEAD)
        if results < script.calls + script.spawns:
            self._transport.write(_call_event(results, script) + _end_events(1, "tool_calls"))
            return
        self._transport.write(_framed(chunk({"role": "assistant", "content": "", "refusal": None})))
        self._script, self._next, self._started_at = script, 0, self._loop.time()
        if script.per_s:
            self._send_paced()
        else:
            self._send_burst()

    def _send_paced(self) -> None:
        """By the start time, so that one late token does not delay the others."""
        if self._transport is None:
            return
        self._transport.write(_token_event(self._next))
        self._next += 1
        if self._next < self._script.tokens:
            self._loop.call_at(self._started_at + self._next / self._script.per_s, self._send_paced)
        else:
            self._transport.write(_end_events(self._script.tokens, "stop"))

    def _send_burst(self) -> None:
        if (
            self._transport is None
            or self._is_paused
            or self._script.per_s
            or not self._script.tokens
        ):
            return
        for number in range(self._next, min(self._next + _BURST_EVENTS, self._script.tokens)):
            self._transport.write(_token_event(number))
            self._next = number + 1
        if self._next < self._script.tokens:
            self._loop.call_soon(self._send_burst)
        else:
            self._transport.write(_end_events(self._script.tokens, "stop"))
            self._script = AnswerScript(tokens=0)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(
        ProviderProtocol, "127.0.0.1", 0, backlog=2048
    )
    async with server:
        await serve_until_input_ends(server.sockets[0].getsockname()[1])


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
