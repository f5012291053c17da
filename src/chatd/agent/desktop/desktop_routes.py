"""The HTTP routes of the desktop: actions of chats, screenshots, a person who takes over, and the
VNC stream that people watch."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from chatd.agent.desktop.desktop_actions import read_actions
from chatd.agent.desktop.desktop_server import DesktopServer, ScreenSize, missing_programs
from chatd.agent.desktop.vnc_filter import MAX_VNC_INPUT_BYTES, VncInputFilter
from chatd.agent.desktop.x_display import ScreenRegion
from chatd.agent.durable_files import Json
from chatd.agent.effect_guards import EpochFence, IdempotencyJournal
from chatd.agent.errors import AgentError
from chatd.agent.processes.process_command import Waiters, wait, wake
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, RequestFields, json_reply

DESKTOP_API_PREFIX = "/api/v0/desktop"
ACT_POLL_S = 15.0
"""A request waits this long for its actions; the same request asks again."""
TAKEN_WAIT_S = 240.0
"""How long actions wait for a person to give the desktop back."""
TAKEN_IDLE_S = 600.0
"""A person who does nothing for this long has given the desktop back."""
MAX_SCREENSHOT_SIDE = 4096
MAX_VNC_STREAMS = 8
VNC_CHUNK_BYTES = 48 * 1024
VNC_KEEPALIVE_S = 15.0
VNC_WRITE_TIMEOUT_S = 10.0
MAX_SEEN_CHATS = 256
MAX_RECORDING_READ_BYTES = 1 << 20

NO_DESKTOP_TEXT = (
    "This workspace has no desktop. Create one from a template with a desktop, or set `desktop` in"
    " its template and start the workspace again."
)


@dataclass
class DesktopHold:
    """Whether a person has the mouse, and which chats do not know yet that one had it."""

    now: Callable[[], float]
    person: str = ""
    number: int = 0
    touched_at: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    waiters: Waiters = field(default_factory=Waiters)
    seen: OrderedDict[str, int] = field(default_factory=OrderedDict[str, int])

    def take(self, person: str) -> None:
        if self.holder != person:
            self.number += 1
        self.person, self.touched_at = person, self.now()
        self.stop.set()
        wake(self.waiters)

    def release(self, person: str) -> None:
        """Does nothing if another person has it."""
        if person == self.person:
            self.person = ""
            self.stop.clear()
            wake(self.waiters)

    @property
    def holder(self) -> str:
        if self.person and self.now() - self.touched_at > TAKEN_IDLE_S:
            self.release(self.person)
        return self.person

    def see(self, chat_id: str) -> None:
        """Note that the chat gets a screenshot of the desktop as it is now."""
        if self.holder:
            return
        self.seen[chat_id] = self.number
        self.seen.move_to_end(chat_id)
        while len(self.seen) > MAX_SEEN_CHATS:
            self.seen.popitem(last=False)

    def is_news(self, chat_id: str) -> bool:
        """Whether to tell the chat about a person: not one that has had no screenshot so far."""
        return bool(self.holder) or self.seen.get(chat_id, self.number) != self.number

    async def wait_released(self, timeout_s: float) -> bool:
        until = self.now() + timeout_s
        while self.holder and self.now() < until:
            await wait(self.waiters, 1.0)
        return not self.holder


class DesktopRoutes:
    """`server` is None in a workspace whose template has no desktop."""

    def __init__(
        self,
        server: DesktopServer | None,
        journal: IdempotencyJournal,
        fence: EpochFence,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._journal = journal
        self._fence = fence
        self._takeover = DesktopHold(now)
        self._streams: dict[str, _VncStream] = {}

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", DESKTOP_API_PREFIX, self._state),
            AgentRoute("POST", f"{DESKTOP_API_PREFIX}/act", self._act),
            AgentRoute("GET", f"{DESKTOP_API_PREFIX}/screenshot", self._screenshot),
            AgentRoute("POST", f"{DESKTOP_API_PREFIX}/recordings/{{}}/start", self._record),
            AgentRoute("POST", f"{DESKTOP_API_PREFIX}/recordings/{{}}/stop", self._stop_recording),
            AgentRoute("GET", f"{DESKTOP_API_PREFIX}/recordings/{{}}/file", self._read_recording),
            AgentRoute("POST", f"{DESKTOP_API_PREFIX}/take", self._take),
            AgentRoute("POST", f"{DESKTOP_API_PREFIX}/release", self._release),
            AgentRoute("GET", f"{DESKTOP_API_PREFIX}/stream/{{}}/output", self._stream),
            AgentRoute(
                "POST",
                f"{DESKTOP_API_PREFIX}/stream/{{}}/input",
                self._stream_input,
                max_body=MAX_VNC_INPUT_BYTES,
            ),
        ]

    async def close(self) -> None:
        self._takeover.release(self._takeover.person)  # actions that wait for a person end
        for stream in list(self._streams.values()):
            stream.close()
        if self._server is not None:
            await self._server.close()

    def _get(self) -> DesktopServer:
        if self._server is None:
            raise AgentError(409, NO_DESKTOP_TEXT, code="no_desktop")
        return self._server

    async def _state(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        return json_reply(self._describe())

    def _describe(self) -> Json:
        server = self._server
        if server is None:
            return {"enabled": False}
        return {
            "enabled": True,
            "running": server.is_running(),
            "width": server.size.width,
            "height": server.size.height,
            "missing": missing_programs(),
            "note": server.note,
            "taken_by": self._takeover.holder,
        }

    # --- chats ----------------------------------------------------------------------------------

    async def _act(self, request: AgentRouteRequest) -> AgentHttpReply:
        server, caller, fields = self._get(), request.caller, request.json()
        actions = read_actions(fields.items("actions"))
        fields.reject_unknown()
        self._fence.check_owner(caller.chat_id, caller.owner)
        takeover = self._takeover

        async def effect() -> Json:
            if takeover.is_news(caller.chat_id):
                released = await takeover.wait_released(TAKEN_WAIT_S)
                return {"done": 0, "person": "gave_back" if released else "active"}
            outcome = await server.act(actions, takeover.stop)
            person = "active" if takeover.holder else ""
            return {
                "done": outcome.done,
                "error": outcome.error,
                "unknown": outcome.is_unknown,
                "person": person,
            }

        work = asyncio.ensure_future(self._journal.run_once(caller.key, "desktop act", effect))
        try:
            await asyncio.wait({work}, timeout=ACT_POLL_S)
        finally:
            if not work.done():
                work.cancel()  # the journal lets the actions themselves go on
        return json_reply({"running": True} if not work.done() else work.result())

    async def _screenshot(self, request: AgentRouteRequest) -> AgentHttpReply:
        """The PNG after a line of JSON."""
        server, fields = self._get(), request.query()
        size = ScreenSize(fields.count("width"), fields.count("height"))
        settles = fields.flag("settles")
        region = _read_region(fields, server.size)
        fields.reject_unknown()
        if not all(1 <= side <= MAX_SCREENSHOT_SIDE for side in (size.width, size.height)):
            raise AgentError(400, f"A side must have 1 to {MAX_SCREENSHOT_SIDE} pixels.")
        shot = await server.screenshot(size, region, settles=settles)
        taken_by = self._takeover.holder
        if request.caller.chat_id:
            self._takeover.see(request.caller.chat_id)
        facts = {
            "x": shot.pointer[0],
            "y": shot.pointer[1],
            "taken_by": taken_by,
            "note": server.note,
            "starts": server.starts,
            "took_ms": shot.took_ms,
        }
        body = json.dumps(facts).encode() + b"\n" + shot.image
        return AgentHttpReply(200, body, content_type="application/octet-stream")

    async def _record(self, request: AgentRouteRequest) -> AgentHttpReply:
        server = self._get()
        request.json().reject_unknown()
        return json_reply({"refusal": await server.start_recording(request.parameter)})

    async def _stop_recording(self, request: AgentRouteRequest) -> AgentHttpReply:
        server = self._get()
        request.json().reject_unknown()
        found = await server.stop_recording(request.parameter)
        facts = {"video": found is not None, "poster": found is not None and bool(found.poster)}
        return json_reply(facts)

    async def _read_recording(self, request: AgentRouteRequest) -> AgentHttpReply:
        server, fields = self._get(), request.query()
        kind, offset, limit = fields.text("kind"), fields.count("offset"), fields.count("limit")
        fields.reject_unknown()
        if not 1 <= limit <= MAX_RECORDING_READ_BYTES:
            raise AgentError(400, f"limit must be from 1 to {MAX_RECORDING_READ_BYTES}")
        body = await server.read_recording(request.parameter, kind, offset, limit)
        return AgentHttpReply(200, body, content_type="application/octet-stream")

    # --- people ---------------------------------------------------------------------------------

    async def _take(self, request: AgentRouteRequest) -> AgentHttpReply:
        server, fields = self._get(), request.json()
        person = _read_person(fields)
        fields.reject_unknown()
        await server.ensure_started()
        if (holder := self._takeover.holder) and holder != person:
            raise AgentError(409, "Another person uses the desktop now.", code="desktop_taken")
        self._takeover.take(person)
        return json_reply(self._describe())

    async def _release(self, request: AgentRouteRequest) -> AgentHttpReply:
        self._get()
        fields = request.json()
        person = _read_person(fields)
        fields.reject_unknown()
        self._takeover.release(person)
        return json_reply(self._describe())

    async def _stream(self, request: AgentRouteRequest) -> AgentHttpReply:
        server, fields = self._get(), request.query()
        person = _read_person(fields)
        fields.reject_unknown()
        await server.ensure_started()
        if len(self._streams) >= MAX_VNC_STREAMS:
            text = f"{len(self._streams)} viewers watch this desktop. Close one, then try again."
            raise AgentError(429, text, code="too_many_viewers")
        if request.parameter in self._streams:
            raise AgentError(409, "This stream is open already.")
        try:
            reader, writer = await asyncio.open_unix_connection(server.place.vnc_socket)
        except OSError as error:
            raise AgentError(503, f"The desktop cannot be watched: {error}.") from error
        stream = self._streams[request.parameter] = _VncStream(reader, writer, person)

        def release() -> None:
            self._streams.pop(request.parameter, None)
            stream.close()

        return AgentHttpReply(
            200, content_type="application/x-ndjson", lines=_lines(stream), release=release
        )

    async def _stream_input(self, request: AgentRouteRequest) -> AgentHttpReply:
        stream = self._streams.get(request.parameter)
        if stream is None:
            raise AgentError(404, "This stream has ended.", code="no_such_stream")
        may_act = self._takeover.holder == stream.person
        if await stream.write(request.body, may_act=may_act):
            self._takeover.touched_at = time.monotonic()
        return json_reply({"ok": True})


async def _lines(stream: _VncStream) -> AsyncGenerator[bytes, None]:
    async for event in stream.follow():
        yield json.dumps(event, separators=(",", ":")).encode()


class _VncStream:
    """A connection to the VNC server. What its client sends is filtered."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, person: str
    ) -> None:
        self.person = person
        self._reader = reader
        self._writer = writer
        self._filter = VncInputFilter()

    async def follow(self) -> AsyncGenerator[dict[str, object], None]:
        """Ends with the desktop."""
        reading: asyncio.Task[bytes] | None = None
        try:
            while True:
                reading = reading or asyncio.ensure_future(self._reader.read(VNC_CHUNK_BYTES))
                done, _ = await asyncio.wait({reading}, timeout=VNC_KEEPALIVE_S)
                if not done:
                    yield {"type": "alive"}
                    continue
                try:
                    data = reading.result()
                except OSError:
                    data = b""
                reading = None
                if not data:
                    yield {"type": "end"}
                    return
                yield {"type": "output", "data": base64.b64encode(data).decode()}
        finally:
            if reading is not None:
                reading.cancel()

    async def write(self, data: bytes, *, may_act: bool) -> bool:
        """Returns whether the client used mouse or keyboard. Raises AgentError."""
        passed, has_acted = self._filter.feed(data, may_act=may_act)
        if passed:
            self._writer.write(passed)
            draining = asyncio.ensure_future(self._writer.drain())
            await asyncio.wait({draining}, timeout=VNC_WRITE_TIMEOUT_S)
            if not draining.done() or draining.exception() is not None:
                draining.cancel()
                self.close()
                raise AgentError(503, "The desktop does not take input.")
        return has_acted

    def close(self) -> None:
        self._writer.transport.abort()


def _read_person(fields: RequestFields) -> str:
    person = fields.text("person")
    if not 1 <= len(person) <= 200:
        raise AgentError(400, "person must have 1 to 200 characters")
    return person


def _read_region(fields: RequestFields, screen: ScreenSize) -> ScreenRegion | None:
    """`region=x,y,width,height` in pixels of the screen."""
    text = fields.text("region", "")
    if not text:
        return None
    try:
        x, y, width, height = (int(number) for number in text.split(","))
    except ValueError:
        raise AgentError(400, "region must be x,y,width,height") from None
    is_inside = 0 <= x < x + width <= screen.width and 0 <= y < y + height <= screen.height
    if not is_inside:
        raise AgentError(400, f"The region is outside of {screen.width}x{screen.height} pixels.")
    return ScreenRegion(x, y, width, height)
