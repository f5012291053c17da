"""The WebSocket of a terminal, with a real workspace agent and a real shell."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import aiohttp
import msgspec
import pytest

from chatd.api.deps import StreamLimits
from tests.api.permissions.table import CALLERS, PARTS
from tests.api.permissions.world import world_on
from tests.api.workspace_api import WorkspaceApi, end_build, workspace_api
from tests.support.api.accounts import listening_changes
from tests.support.api.server import ADMINISTRATOR, ME, ApiOptions, ApiServer, Json, authorized
from tests.support.api.sse_viewer import READ_TIMEOUT_S, narrow_socket
from tests.support.eventually import eventually
from tests.workspaces.agent_process import AGENT, Workbench, new_chat_id, running_agent


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with running_agent(tmp_path) as bench:
        yield bench


async def chat_in(api: WorkspaceApi, bench: Workbench) -> str:
    made = await api.make()
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    return str(await api.server.create(workspace_id=made["id"]))


@pytest.fixture
async def chat_id(api: WorkspaceApi, bench: Workbench) -> str:
    return await chat_in(api, bench)


class Screen:
    """A client of one terminal."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.shown = b""
        self.frames: list[Json] = []

    async def say(self, kind: str, **fields: object) -> None:
        await self.socket.send_str(msgspec.json.encode({"type": kind, **fields}).decode())

    async def read(self) -> aiohttp.WSMessage:
        async with asyncio.timeout(READ_TIMEOUT_S):
            message = await self.socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            self.shown += message.data
        elif message.type is aiohttp.WSMsgType.TEXT:
            self.frames.append(msgspec.json.decode(message.data, type=Json))
        return message

    async def find(self, text: bytes) -> None:
        while text not in self.shown:
            message = await self.read()
            assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), message

    async def frame(self, kind: str) -> Json:
        while not any(frame["type"] == kind for frame in self.frames):
            await self.read()
        return next(frame for frame in self.frames if frame["type"] == kind)

    async def closing(self) -> tuple[object, object]:
        kinds = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)
        while (message := await self.read()).type in kinds:
            pass
        return message.data, message.extra


@asynccontextmanager
async def screen(
    server: ApiServer, chat_id: str, terminal: UUID, *, token: str | None = ME, more: str = ""
) -> AsyncGenerator[Screen]:
    path = f"/api/v1/chats/{chat_id}/terminal?terminal={terminal}{more}"
    async with server.http.ws_connect(path, headers=authorized(token)) as socket:
        yield Screen(socket)


async def test_what_is_typed_is_answered_and_the_end_of_the_shell_is_told(
    api: WorkspaceApi, chat_id: str
) -> None:
    async with screen(api.server, chat_id, new_chat_id(), more="&cols=100&rows=30") as shown:
        assert await shown.frame("ready") == {"type": "ready"}
        await shown.say("input", data="stty size; echo ä''€\r")
        await shown.find(b"30 100")
        await shown.find("ä€".encode())
        for cols in range(1, 200):
            await shown.say("resize", cols=cols, rows=40)
        await shown.say("input", data="stty size\r")
        await shown.find(b"40 199")
        await shown.say("ping")
        await shown.frame("pong")
        await shown.say("input", data="exit 3\r")
        assert await shown.frame("exit") == {"type": "exit", "exit_code": 3}
        assert await shown.closing() == (1000, "exited")
    entries = await api.pool.fetchval(
        "SELECT count(*) FROM audit_log WHERE action = 'terminal.open'"
    )
    assert entries == 1


async def test_a_lost_client_finds_its_terminal_again_and_another_takes_it_over(
    api: WorkspaceApi, chat_id: str
) -> None:
    terminal = new_chat_id()
    async with screen(api.server, chat_id, terminal) as lost:
        await lost.say("input", data="echo ke''pt; cat\r")
        await lost.find(b"kept")
        transport = lost.socket.get_extra_info("socket")
        transport.shutdown(2)
    async with screen(api.server, chat_id, terminal) as found:
        assert await found.frame("ready") == {"type": "ready", "again": True}
        await found.find(b"kept")
        await found.say("input", data="still\r")
        await found.find(b"still\r\nstill")
        async with screen(api.server, chat_id, terminal) as other:
            await other.find(b"still\r\nstill")
            assert await found.closing() == (1008, "taken_over")
            await other.say("close")
            await other.frame("exit")


async def test_a_client_that_does_not_read_is_dropped_and_its_shell_waits(
    dsn: str, bench: Workbench
) -> None:
    slow = ApiOptions(limits=StreamLimits(write_timeout_s=0.4))
    async with workspace_api(dsn, slow) as api:
        chat_id, terminal = await chat_in(api, bench), new_chat_id()
        path = f"/api/v1/chats/{chat_id}/terminal?terminal={terminal}"
        connector = aiohttp.TCPConnector(socket_factory=narrow_socket)
        url = f"http://127.0.0.1:{api.server.port}"
        async with (
            aiohttp.ClientSession(url, connector=connector) as http,
            http.ws_connect(path, headers=authorized(ME), max_msg_size=0) as socket,
        ):
            await socket.send_str('{"type":"input","data":"yes 0123456789\\r"}')

            async def is_dropped() -> bool:
                return 'chatd_streams_ended_total{code="not_reading"}' in await metrics(api)

            await eventually(is_dropped)
        async with screen(api.server, chat_id, terminal) as again:
            await again.find(b"0123456789")
            await again.say("input", data="\x03")
            await again.find(b"^C")


async def metrics(api: WorkspaceApi) -> str:
    async with api.server.http.get("/metrics", headers=authorized(ADMINISTRATOR)) as reply:
        return await reply.text()


@pytest.mark.promise("P12")
async def test_a_suspended_user_loses_the_terminal_at_once(dsn: str, bench: Workbench) -> None:
    async with (
        listening_changes(dsn) as changes,
        workspace_api(dsn, ApiOptions(changes=changes)) as api,
    ):
        chat_id = await chat_in(api, bench)
        me = (await api.ask("GET", "/auth/me")).json
        user = msgspec.convert(me["user"], Json)
        async with screen(api.server, chat_id, new_chat_id()) as shown:
            await shown.frame("ready")
            body = {"status": "suspended"}
            path = f"/users/{user['id']}"
            changed = await api.ask("PATCH", path, body, token=ADMINISTRATOR)
            assert changed.status == 200, changed.content
            async with asyncio.timeout(5):
                assert await shown.closing() == (1008, "signed_out")


@pytest.mark.promise("P14")
async def test_a_terminal_without_a_running_workspace_is_refused_with_the_reason(
    api: WorkspaceApi, bench: Workbench
) -> None:
    chat_id = str(await api.server.create())
    async with screen(api.server, chat_id, new_chat_id()) as shown:
        assert (await shown.frame("refused"))["code"] == "no_workspace"
        assert await shown.closing() == (1008, "no_workspace")
    chat_id = await chat_in(api, bench)
    async with screen(api.server, chat_id, new_chat_id()) as shown:
        await shown.frame("ready")
        await shown.say("input", data=7)
        assert (await shown.frame("refused"))["code"] == "invalid_input"
        bench.process.end(9)
        assert (await shown.closing())[1] == "agent_lost"


@pytest.mark.promise("P12")
async def test_only_the_owner_of_the_chat_opens_a_terminal(dsn: str) -> None:
    row = next(row for row in PARTS["chats"] if row.endpoint == "GET /chats/{chat_id}")
    expected = {"reader": 403, "viewer": 403, "admin": 403, "stranger": 404, "service": 404}
    async with world_on(dsn) as world:
        chat_id = (await world.objects.make(row, "owner"))["chat_id"]
        for caller in CALLERS:
            token = world.callers.tokens[caller]
            if caller == "owner":
                async with screen(world.server, chat_id, new_chat_id(), token=token) as shown:
                    assert (await shown.frame("refused"))["code"] == "no_workspace"
                continue
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with screen(world.server, chat_id, new_chat_id(), token=token):
                    pass
            assert refused.value.status == expected[caller], caller
        with pytest.raises(aiohttp.WSServerHandshakeError) as unknown:
            async with screen(world.server, chat_id, new_chat_id(), token=None):
                pass
        assert unknown.value.status == 401
