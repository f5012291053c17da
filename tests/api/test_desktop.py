"""The desktop for people: watched over a WebSocket with a real VNC server, and taken over."""

import asyncio
import shutil
import signal
import struct
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from chatd.agent.desktop.vnc_filter import VncInputFilter
from chatd.agent.errors import AgentError
from chatd.domain.computer_use import InputAction, PictureRegion, Screen
from tests.api.workspace_api import WorkspaceApi, end_build
from tests.support.api.server import ME, authorized
from tests.support.api.sse_viewer import READ_TIMEOUT_S
from tests.support.eventually import eventually
from tests.workspaces.agent_process import AGENT, AgentProcess, Workbench, workbench

needs_desktop = pytest.mark.skipif(
    not all(map(shutil.which, ("Xvnc", "xterm"))),
    reason="needs Debian's packages tigervnc-standalone-server and xterm",
)
SCREEN = Screen(640, 480)


@pytest.fixture
def desktop_process(tmp_path: Path) -> Generator[AgentProcess]:
    process = AgentProcess(tmp_path, desktop=(SCREEN.width, SCREEN.height))
    process.start()
    yield process
    process.end(signal.SIGTERM)


@pytest.fixture
async def bench(desktop_process: AgentProcess) -> AsyncGenerator[Workbench]:
    async with workbench(desktop_process, desktop_process.home) as bench:
        yield bench


class VncViewer:
    """As much of a VNC client as the tests need."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._unread = bytearray()

    async def read(self, size: int) -> bytes:
        while len(self._unread) < size:
            async with asyncio.timeout(READ_TIMEOUT_S):
                message = await self._socket.receive()
            assert message.type is aiohttp.WSMsgType.BINARY, message
            self._unread += message.data
        read = bytes(self._unread[:size])
        del self._unread[:size]
        return read

    async def greet(self) -> tuple[int, int]:
        """Returns the size of the screen."""
        assert (await self.read(12)).startswith(b"RFB 003.00")
        await self._socket.send_bytes(b"RFB 003.008\n")
        (count,) = await self.read(1)
        assert 1 in await self.read(count)
        await self._socket.send_bytes(b"\1")
        assert await self.read(4) == bytes(4)
        await self._socket.send_bytes(b"\1")
        width, height = struct.unpack(">HH", await self.read(4))
        await self.read(16)
        (length,) = struct.unpack(">I", await self.read(4))
        await self.read(length)
        return width, height

    async def update(self) -> int:
        """Ask for the whole screen; returns how many rectangles it comes in."""
        request = struct.pack(">BBHHHH", 3, 0, 0, 0, SCREEN.width, SCREEN.height)
        await self._socket.send_bytes(request)
        kind, _, rectangles = struct.unpack(">BBH", await self.read(4))
        assert kind == 0
        return rectangles

    async def press(self, key: str) -> None:
        for is_down in (1, 0):
            await self._socket.send_bytes(struct.pack(">BBHI", 4, is_down, 0, ord(key)))


@asynccontextmanager
async def viewing(api: WorkspaceApi, chat_id: str) -> AsyncGenerator[VncViewer]:
    path = f"/api/v1/chats/{chat_id}/desktop/stream"
    async with api.server.http.ws_connect(path, headers=authorized(ME)) as socket:
        yield VncViewer(socket)


async def open_terminal(bench: Workbench) -> Path:
    """The file that a window writes down what it is told."""
    typed = bench.process.home / "typed"
    command = (
        f"exec xterm -bg white -geometry 60x20+20+20 -e sh -c 'stty -icanon; exec cat > {typed}'"
    )
    await bench.conn.screenshot(SCREEN)
    await bench.conn.start_process(command, key=bench.key("xterm"), background=True)
    before = (await bench.conn.screenshot(Screen(1, 1), PictureRegion(200, 200, 1, 1))).image

    async def is_shown() -> bool:
        now = await bench.conn.screenshot(Screen(1, 1), PictureRegion(200, 200, 1, 1))
        return typed.exists() and now.image != before

    await eventually(is_shown, within_s=20)
    focus = [InputAction(kind="click", points=((200, 200),))]
    assert (await bench.conn.act(focus, key=bench.key("focus"))).done == 1
    return typed


@needs_desktop
async def test_a_person_watches_takes_over_and_gives_back(
    api: WorkspaceApi, bench: Workbench
) -> None:
    """Takes seconds: an X server is started."""
    made = await api.make()
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    chat_id = str(await api.server.create(workspace_id=made["id"]))
    before = (await api.server.ask("GET", f"/chats/{chat_id}/desktop")).json
    assert (before["enabled"], before["running"], before["taken"]) == (True, False, False)
    typed = await open_terminal(bench)

    async def press(key: str) -> None:
        action = [InputAction(kind="key", keys=(key,))]
        assert (await bench.conn.act(action, key=bench.key(f"press {key}"))).done == 1

    async def holds(text: str) -> None:
        async def look() -> bool:
            return typed.read_text() == text

        await eventually(look, within_s=20)

    async with viewing(api, chat_id) as viewer:
        assert await viewer.greet() == (SCREEN.width, SCREEN.height)
        await viewer.press("n")
        assert await viewer.update() > 0  # the key came before it, and was dropped
        await press("a")
        await holds("a")
        taken = (await api.server.ask("POST", f"/chats/{chat_id}/desktop/take")).json
        assert (taken["taken"], taken["taken_by_you"]) == (True, True)
        async with asyncio.TaskGroup() as tasks:
            key = bench.key("refused")
            actions = [InputAction(kind="type", text="agent")]
            waiting = tasks.create_task(bench.conn.act(actions, key=key), name="act")
            await viewer.press("y")
            await holds("ay")
            assert (await bench.conn.screenshot(SCREEN)).taken_by
            await api.server.ask("POST", f"/chats/{chat_id}/desktop/release")
        assert (waiting.result().done, waiting.result().person) == (0, "gave_back")
        await bench.conn.screenshot(SCREEN)
        await press("b")
        await holds("ayb")


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_viewer_acts_only_while_its_person_has_taken_over(cut: int) -> None:
    greeting = b"RFB 003.008\n" + b"\1" + b"\1"
    request = struct.pack(">BBHHHH", 3, 0, 0, 0, 10, 10)
    encodings = struct.pack(">BxHii", 2, 2, 0, 16)
    key, pointer = struct.pack(">BBHI", 4, 1, 0, 65), struct.pack(">BBHH", 5, 1, 3, 4)
    clipboard = struct.pack(">BxxxI", 6, 3) + b"abc"
    sent = greeting + key + request + pointer + encodings + clipboard + request
    for may_act, passed in ((False, greeting + request + encodings + request), (True, sent)):
        filtered, acted, viewer = b"", False, VncInputFilter()
        for at in range(0, len(sent), cut):
            piece, has_acted = viewer.feed(sent[at : at + cut], may_act=may_act)
            filtered, acted = filtered + piece, acted or has_acted
        assert (filtered, acted) == (passed, may_act)


def test_a_viewer_cannot_ask_for_pointer_messages_that_are_not_known_here() -> None:
    viewer = VncInputFilter()
    viewer.feed(b"RFB 003.008\n\1\1", may_act=False)
    asked = struct.pack(">BxHiii", 2, 3, 7, -316, -239)
    passed, _ = viewer.feed(asked, may_act=False)
    assert passed == struct.pack(">BxHiii", 2, 3, 7, 0, -239)


@pytest.mark.parametrize(
    "message",
    [b"\x07", struct.pack(">BxH", 2, 5000), struct.pack(">BxxxI", 6, 1 << 20), b"\xff\x01"],
)
def test_a_message_that_is_not_known_ends_the_stream(message: bytes) -> None:
    viewer = VncInputFilter()
    viewer.feed(b"RFB 003.008\n\1\1", may_act=True)
    with pytest.raises(AgentError):
        viewer.feed(message, may_act=True)
