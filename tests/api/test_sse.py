"""Event streams over HTTP: sent, disconnected, resumed, ended. A lost connection ends a
stream without an error in the log."""

import asyncio

import aiohttp
import pytest

from chatd.api.deps import StreamLimits
from chatd.api.request import ApiCaller, Message
from chatd.api.streams import CLIENT_GONE_END, AccessChecks, ClientStream
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Episode
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire
from chatd.domain.chat_views.events import Cursor
from tests.support.api.server import (
    ME,
    OTHER_USER,
    USERS,
    ApiOptions,
    ApiServer,
    answered,
    authorized,
    message_body,
    serve_api,
)
from tests.support.api.sse_viewer import (
    SseConnection,
    SseViewer,
    event_source,
    narrow_socket,
    reached,
    write_large,
)
from tests.support.client_state import read_state
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import CHAT, WORKER
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import insert_seed


async def test_a_viewer_gets_the_current_chat_and_its_changes(server: ApiServer) -> None:
    chat_id = await server.create("tell me")
    watcher = SseViewer(chat_id)
    async with event_source(server, watcher.path) as source:
        await watcher.watch(source, reached(1))
        done = await server.play_turn(chat_id, "Once upon a time.")
        await watcher.watch(source, reached(done.snapshot_version))
    assert watcher.last_id == str(Cursor.of(done))
    assert watcher.state.settled() == await read_state(server.replica.pool, chat_id)
    assert watcher.state.status == "waiting"


async def test_live_parts_reach_the_viewer_before_they_are_committed(server: ApiServer) -> None:
    chat_id = await server.create("tell me")
    chat = await server.act(chat_id, lambda chat: acquire(chat, WORKER))
    watcher = SseViewer(chat_id)
    async with event_source(server, watcher.path) as source:
        await watcher.watch(source, reached(chat.snapshot_version))
        recorder = server.replica.record(chat)
        for word in ("Once ", "upon\n", "a time"):
            recorder.add("assistant", [TextPart(text=word)])
        await watcher.watch(source, lambda seen: seen.preview == "Once upon\na time")
        assert watcher.state.episode == (Episode.of(chat).history_version, chat.attempt)
        done = await server.act(chat_id, answered("Once upon\na time"))
        await watcher.watch(source, reached(done.snapshot_version))
    assert watcher.preview == ""


async def test_a_viewer_that_reads_late_gets_all_live_parts_in_order(server: ApiServer) -> None:
    """They are written to the socket until it is full; then they wait for the viewer's task."""
    chat_id = await server.create("tell me")
    chat = await server.act(chat_id, lambda chat: acquire(chat, WORKER))
    words = [f"{number} " * 400 for number in range(400)]
    connector = aiohttp.TCPConnector(socket_factory=narrow_socket)
    url = f"http://127.0.0.1:{server.port}"
    async with (
        aiohttp.ClientSession(url, connector=connector, read_bufsize=4096) as http,
        http.get(f"/api/v1/chats/{chat_id}/events", headers=authorized(ME)) as response,
    ):
        watcher, source = SseViewer(chat_id), SseConnection(response)
        await watcher.watch(source, reached(chat.snapshot_version))
        recorder = server.replica.record(chat)
        for word in words:
            recorder.add("assistant", [TextPart(text=word)])
            server.replica.episodes.flush_all()
        await watcher.watch(source, lambda seen: seen.preview == "".join(words))
        await server.act(chat_id, answered("short"))
        await watcher.watch(source, reached(chat.snapshot_version + 1))
    assert watcher.state.settled() == await read_state(server.replica.pool, chat_id)


@pytest.mark.promise("P8")
async def test_a_disconnected_viewer_resumes_from_its_last_version(server: ApiServer) -> None:
    """Repeatedly, with an edit in between: its state always equals that of a new viewer."""
    chat_id = await server.create("one")
    watcher = SseViewer(chat_id)
    for number in range(3):
        await watcher.connect_until(server, reached(1))
        await server.play_turn(chat_id, f"answer {number}")
        await server.ask("POST", f"/chats/{chat_id}/messages", message_body(f"more {number}"))
        chat = await server.chat(chat_id)
        await watcher.connect_until(server, reached(chat.snapshot_version))
        assert watcher.state.settled() == await read_state(server.replica.pool, chat_id)
    await server.ask("PATCH", f"/chats/{chat_id}/messages/1", message_body("all anew"))
    chat = await server.chat(chat_id)
    await watcher.connect_until(server, reached(chat.snapshot_version))
    assert watcher.state.settled() == await read_state(server.replica.pool, chat_id)
    assert len(watcher.state.messages) == 1


async def test_the_last_event_id_header_wins_over_the_query(server: ApiServer) -> None:
    chat_id = await server.create("one")
    chat = await server.play_turn(chat_id, "Two.")
    path = f"/chats/{chat_id}/events?after=1"
    async with event_source(server, path) as source:
        event = await source.json()
        while event["type"] == "message":
            event = await source.json()
            assert "one" not in str(event)
        assert event["type"] != "history_reset"
    async with event_source(server, path, last_id=str(chat.snapshot_version)) as source:
        await server.ask("POST", f"/chats/{chat_id}/messages", message_body("news"))
        seen = [await source.json() for _ in range(3)]
        assert "Two." not in str(seen)
        assert "news" in str(seen)


async def test_an_unknown_version_starts_from_scratch(server: ApiServer) -> None:
    chat_id = await server.create("one")
    async with event_source(server, f"/chats/{chat_id}/events?after=99") as source:
        assert (await source.json())["type"] == "history_reset"


# The chat list


async def test_the_chat_list_streams_every_changed_chat(server: ApiServer) -> None:
    async with event_source(server, "/events") as source:
        assert await source.json() == {"type": "ready"}
        chat_id = await server.create("hello")
        created = await source.json()
        assert (created["type"], created["kind"]) == ("chat", "created")
        assert created["chat"] == (await server.ask("GET", f"/chats/{chat_id}")).json
        await server.ask("PATCH", f"/chats/{chat_id}", {"labels": {"c": "d"}})
        assert (await source.json())["kind"] == "changed"
        await server.ask("POST", f"/chats/{chat_id}/interrupt")
        assert (await source.json())["kind"] == "changed"
        await server.ask("PATCH", f"/chats/{chat_id}", {"title": "Better"})
        assert (await source.json())["kind"] == "title"
        await server.ask("PATCH", f"/chats/{chat_id}", {"labels": {"a": "b"}})
        assert (await source.json())["kind"] == "changed"
        await server.ask("PATCH", f"/chats/{chat_id}", {"archived": True})
        assert (await source.json())["kind"] == "archived"


@pytest.mark.promise("P12")
async def test_the_chat_list_excludes_other_users_chats(server: ApiServer) -> None:
    async with event_source(server, "/events", token=OTHER_USER) as source:
        assert await source.json() == {"type": "ready"}
        await server.create("mine")
        theirs = await server.ask("POST", "/chats", message_body("theirs"), token=OTHER_USER)
        event = await source.json()
        assert event["chat"] == theirs.json


# Pings and ends


async def test_an_idle_stream_sends_ping_comments(dsn: str, clock: FakeClock) -> None:
    async with serve_api(dsn, ApiOptions(clock=clock)) as server:
        await insert_seed(server.replica.pool, Seed(state=State.W))
        async with event_source(server, f"/chats/{CHAT}/events") as source:
            while (block := await source.block()) is not None and block.id is None:
                pass
            for _ in range(3):
                await clock.advance_past("stream_watch")
            assert present(await source.block()).comment == "ping"


@pytest.mark.covers("F17")
async def test_a_client_that_does_not_read_is_disconnected(dsn: str, clock: FakeClock) -> None:
    """More is sent than all buffers on the way hold."""
    async with serve_api(dsn, ApiOptions(clock=clock)) as server:
        await insert_seed(server.replica.pool, Seed(state=State.W))
        for _ in range(8):
            await write_large(server, CHAT)
        lines = (
            f"GET /api/v1/chats/{CHAT}/events HTTP/1.1",
            "Host: x",
            f"Authorization: Bearer {ME}",
        )
        narrow = narrow_socket()
        await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", server.port))
        reader, writer = await asyncio.open_connection(sock=narrow)
        writer.write("\r\n".join((*lines, "", "")).encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")

        async def let_go() -> bool:
            if clock.sleeping("stream_watch"):
                clock.advance(5)
            return (
                'chatd_streams_ended_total{code="not_reading"} 1.0'
                in (await server.open_page("/metrics")).content.decode()
            )

        await eventually(let_go)
        writer.close()
        await writer.wait_closed()


async def test_a_stopping_server_ends_streams_with_a_code(server: ApiServer) -> None:
    chat_id = await server.create("hello")
    watcher = SseViewer(chat_id)
    async with event_source(server, watcher.path) as source:
        await watcher.watch(source, reached(1))
        await server.api.close()
        await watcher.read_all(source)
    assert watcher.end == "going_away"
    refused = await server.ask("GET", watcher.path)
    assert refused.code == (503, "going_away")


async def test_the_number_of_streams_per_user_is_limited(dsn: str) -> None:
    async with serve_api(dsn, ApiOptions(limits=StreamLimits(streams_per_user=2))) as server:
        async with event_source(server, "/events"), event_source(server, "/events") as second:
            assert await second.json() == {"type": "ready"}
            assert (await server.ask("GET", "/events")).code == (429, "too_many_streams")
            async with event_source(server, "/events", token=OTHER_USER):
                pass

        async def opens() -> bool:
            async with server.http.get("/api/v1/events", headers=authorized(ME)) as response:
                return response.status == 200

        # The server may notice the disconnects of the others a little later.
        await eventually(opens)


async def test_a_disconnected_stream_leaves_no_viewer(server: ApiServer) -> None:
    chat_id = await server.create("hello")
    watcher = SseViewer(chat_id)
    await watcher.connect_until(server, reached(1))

    async def gone() -> bool:
        return server.replica.feeds.watched == 0

    await eventually(gone)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("by peer"),
        RuntimeError("Unexpected ASGI message 'websocket.send', after 'websocket.close'."),
        RuntimeError("unable to perform operation on <TCPTransport closed=True>"),
    ],
    ids=["peer", "server", "event loop"],
)
async def test_a_write_to_a_closed_connection_ends_the_stream_as_client_gone(
    error: Exception, server: ApiServer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def send(_message: Message) -> None:
        raise error

    checks = AccessChecks(server.replica.pool, server.deps.env)
    stream = ClientStream(send, clock, StreamLimits(), ApiCaller(actor=USERS[ME]), checks)

    async def pump() -> None:
        await stream.write({})
        await asyncio.Event().wait()

    async with asyncio.timeout(30):
        assert await stream.run(pump) == CLIENT_GONE_END
        await stream.send_end({})
    assert not caplog.records
