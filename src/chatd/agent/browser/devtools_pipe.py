"""A connection to Chromium by the DevTools protocol over two pipes: JSON messages that end with a
NUL byte. No port is opened, and Chromium ends when the pipes are closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import IO, cast

from chatd.agent.durable_files import Json

MAX_DEVTOOLS_MESSAGE_BYTES = 32 * 1024 * 1024
"""Limit for one message of Chromium, such as a screenshot. A longer one ends the connection."""
DEVTOOLS_CALL_TIMEOUT_S = 10.0

OnEvent = Callable[[str, str, Json], None]
"""Takes the session ("" for the browser itself), the event's name and its parameters."""


class BrowserLost(Exception):
    """Chromium has ended. What was asked last may have happened."""


class CallRefused(Exception):
    """Chromium answered with an error."""


class CallTimeout(Exception):
    """Chromium, or the page that it asked, does not answer."""


class DevtoolsPipe:
    """Create it with `open`. `on_event` is called in the order of events, and must not block."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport, on_event: OnEvent
    ) -> None:
        self._writer = writer
        self._on_event = on_event
        self._next_id = 1
        self._answers: dict[int, tuple[str, asyncio.Future[Json]]] = {}
        self.is_lost = False
        self._reading = asyncio.ensure_future(self._read(reader))

    @staticmethod
    async def open(source: IO[bytes], target: IO[bytes], on_event: OnEvent) -> DevtoolsPipe:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_DEVTOOLS_MESSAGE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        writer, _ = await loop.connect_write_pipe(asyncio.Protocol, target)
        return DevtoolsPipe(reader, writer, on_event)

    async def call(
        self,
        method: str,
        parameters: Json | None = None,
        *,
        session: str = "",
        timeout_s: float = DEVTOOLS_CALL_TIMEOUT_S,
    ) -> Json:
        """Raises BrowserLost, CallRefused and CallTimeout."""
        if self.is_lost:
            raise BrowserLost(method)
        number, self._next_id = self._next_id, self._next_id + 1
        message: Json = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._answers[number] = (session, answer)
        try:
            self._writer.write(json.dumps(message).encode() + b"\0")
            await asyncio.wait({answer}, timeout=timeout_s)
        finally:
            del self._answers[number]
            answer.cancel()
        if answer.cancelled():
            raise CallTimeout(method)
        return answer.result()

    def fail_session(self, session: str) -> None:
        """Fail the calls of a session whose page has crashed: it will not answer."""
        for asked, answer in self._answers.values():
            if asked == session and not answer.done():
                answer.set_exception(CallRefused("the page has crashed"))

    def close(self) -> None:
        if not self._writer.is_closing():
            self._writer.abort()
        self._reading.cancel()
        self._lose()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                raw = await reader.readuntil(b"\0")
                message: object = json.loads(raw[:-1])
                if isinstance(message, dict):
                    self._take(cast(Json, message))
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass
        finally:
            self._lose()

    def _take(self, message: Json) -> None:
        number = message.get("id")
        if isinstance(number, int):
            _, answer = self._answers.get(number, ("", None))
            if answer is None or answer.done():
                return
            if isinstance(error := message.get("error"), dict):
                text = str(cast(Json, error).get("message", ""))
                answer.set_exception(CallRefused(text))
            else:
                answer.set_result(as_json(message.get("result")))
            return
        name = message.get("method")
        if isinstance(name, str):
            self._on_event(str(message.get("sessionId", "")), name, as_json(message.get("params")))

    def _lose(self) -> None:
        self.is_lost = True
        for _, answer in self._answers.values():
            if not answer.done():
                answer.set_exception(BrowserLost("the browser has ended"))


def as_json(value: object) -> Json:
    return cast(Json, value) if isinstance(value, dict) else {}


def text_of(value: Json, name: str) -> str:
    found = value.get(name)
    return found if isinstance(found, str) else ""
