"""Event streams over HTTP: what a client sees, cut and resumed anywhere."""

import asyncio
from collections.abc import Callable

import pytest

from chatd.api.doors import Limits
from chatd.domain.chat.change import Change
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat, Episode
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire, finish_turn
from chatd.domain.ids import ChatId
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import CHAT, WORKER, draft, text
from tests.support.front import (
    ME,
    STRANGER,
    Door,
    Front,
    authorized,
    front_door,
    saying,
)
from tests.support.listening import Watcher, event_source, narrow_socket, reached, write_large
from tests.support.seeds import Seed, step
from tests.support.store import plant_in
from tests.support.viewer import fresh


def answered(words: str) -> Callable[[Chat], Change]:
    return lambda chat: finish_turn(chat, step(chat, draft("assistant", text(words))))


async def answer(front: Front, chat_id: ChatId, words: str) -> Chat:
    """Play the worker for one turn."""
    await front.act(chat_id, lambda chat: acquire(chat, WORKER))
    return await front.act(chat_id, answered(words))


async def test_a_viewer_sees_the_chat_as_it_is_and_as_it_goes_on(front: Front) -> None:
    chat_id = await front.create("tell me")
    watcher = Watcher(chat_id)
    async with event_source(front, watcher.path) as source:
        await watcher.watch(source, reached(1))
        done = await answer(front, chat_id, "Once upon a time.")
        await watcher.watch(source, reached(done.snapshot_version))
    assert watcher.last_id == done.snapshot_version
    assert watcher.state.settled() == await fresh(front.replica.pool, chat_id)
    assert watcher.state.status == "waiting"


async def test_live_parts_reach_the_viewer_before_they_are_committed(front: Front) -> None:
    chat_id = await front.create("tell me")
    chat = await front.act(chat_id, lambda chat: acquire(chat, WORKER))
    watcher = Watcher(chat_id)
    async with event_source(front, watcher.path) as source:
        await watcher.watch(source, reached(chat.snapshot_version))
        recorder = front.replica.record(chat)
        for word in ("Once ", "upon\n", "a time"):
            recorder.add("assistant", [TextPart(text=word)])
        await watcher.watch(source, lambda seen: seen.preview == "Once upon\na time")
        assert watcher.state.episode == (Episode.of(chat).history_version, chat.attempt)
        done = await front.act(chat_id, answered("Once upon\na time"))
        await watcher.watch(source, reached(done.snapshot_version))
    assert watcher.preview == ""


@pytest.mark.promise("P8")
async def test_a_viewer_that_was_cut_off_resumes_from_its_last_version(front: Front) -> None:
    """Again and again, with an edit in between: its state is always that of a fresh one."""
    chat_id = await front.create("one")
    watcher = Watcher(chat_id)
    for number in range(3):
        await watcher.see(front, reached(1))
        await answer(front, chat_id, f"answer {number}")
        await front.ask("POST", f"/chats/{chat_id}/messages", saying(f"more {number}"))
        chat = await front.chat(chat_id)
        await watcher.see(front, reached(chat.snapshot_version))
        assert watcher.state.settled() == await fresh(front.replica.pool, chat_id)
    await front.ask("PATCH", f"/chats/{chat_id}/messages/1", saying("all anew"))
    chat = await front.chat(chat_id)
    await watcher.see(front, reached(chat.snapshot_version))
    assert watcher.state.settled() == await fresh(front.replica.pool, chat_id)
    assert len(watcher.state.messages) == 1


async def test_the_version_may_come_with_the_query_and_the_header_is_newer(front: Front) -> None:
    chat_id = await front.create("one")
    chat = await answer(front, chat_id, "Two.")
    path = f"/chats/{chat_id}/events?after=1"
    async with event_source(front, path) as source:
        told = await source.json()
        while told["type"] == "message":
            told = await source.json()
            assert "one" not in str(told)
        assert told["type"] != "history_reset"
    async with event_source(front, path, last_id=chat.snapshot_version) as source:
        await front.ask("POST", f"/chats/{chat_id}/messages", saying("news"))
        seen = [await source.json() for _ in range(3)]
        assert "Two." not in str(seen)
        assert "news" in str(seen)


async def test_a_version_that_the_chat_never_had_leads_to_a_fresh_start(front: Front) -> None:
    chat_id = await front.create("one")
    async with event_source(front, f"/chats/{chat_id}/events?after=99") as source:
        assert (await source.json())["type"] == "history_reset"


# All my chats


async def test_whoever_watches_all_chats_is_told_of_each_that_changes(front: Front) -> None:
    async with event_source(front, "/events") as source:
        assert await source.json() == {"type": "ready"}
        chat_id = await front.create("hello")
        created = await source.json()
        assert (created["type"], created["kind"]) == ("chat", "created")
        assert created["chat"] == (await front.ask("GET", f"/chats/{chat_id}")).json
        await front.ask("PATCH", f"/chats/{chat_id}", {"labels": {"c": "d"}})
        assert (await source.json())["kind"] == "changed"
        await front.ask("POST", f"/chats/{chat_id}/interrupt")
        assert (await source.json())["kind"] == "changed"
        await front.ask("PATCH", f"/chats/{chat_id}", {"title": "Better"})
        assert (await source.json())["kind"] == "title"
        await front.ask("PATCH", f"/chats/{chat_id}", {"labels": {"a": "b"}})
        assert (await source.json())["kind"] == "changed"
        await front.ask("PATCH", f"/chats/{chat_id}", {"archived": True})
        assert (await source.json())["kind"] == "archived"


@pytest.mark.promise("P12")
async def test_whoever_watches_is_not_told_of_chats_of_others(front: Front) -> None:
    async with event_source(front, "/events", token=STRANGER) as source:
        assert await source.json() == {"type": "ready"}
        await front.create("mine")
        theirs = await front.ask("POST", "/chats", saying("theirs"), token=STRANGER)
        told = await source.json()
        assert told["chat"] == theirs.json


# Keeping and ending


async def test_a_silent_stream_is_kept_alive_by_a_comment(dsn: str, clock: FakeClock) -> None:
    async with front_door(dsn, Door(clock=clock)) as front:
        await plant_in(front.replica.pool, Seed(state=State.W))
        async with event_source(front, f"/chats/{CHAT}/events") as source:
            while (block := await source.block()) is not None and block.id is None:
                pass
            for _ in range(3):
                await clock.pass_over("stream_watch")
            ping = await source.block()
            assert ping is not None
            assert ping.comment == "ping"


@pytest.mark.covers("F17")
async def test_a_client_that_takes_nothing_is_let_go(dsn: str, clock: FakeClock) -> None:
    """There is more to tell than all buffers on the way hold."""
    async with front_door(dsn, Door(clock=clock)) as front:
        await plant_in(front.replica.pool, Seed(state=State.W))
        for _ in range(8):
            await write_large(front, CHAT)
        lines = (
            f"GET /api/v1/chats/{CHAT}/events HTTP/1.1",
            "Host: x",
            f"Authorization: Bearer {ME}",
        )
        narrow = narrow_socket()
        await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", front.port))
        reader, writer = await asyncio.open_connection(sock=narrow)
        writer.write("\r\n".join((*lines, "", "")).encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")

        async def let_go() -> bool:
            if clock.sleeping("stream_watch"):
                clock.advance(5)
            return (
                'chatd_streams_ended_total{code="not_reading"} 1.0'
                in (await front.open_page("/metrics")).content.decode()
            )

        await eventually(let_go)
        writer.close()
        await writer.wait_closed()


async def test_streams_are_ended_with_a_word_when_the_server_stops(front: Front) -> None:
    chat_id = await front.create("hello")
    watcher = Watcher(chat_id)
    async with event_source(front, watcher.path) as source:
        await watcher.watch(source, reached(1))
        await front.api.close()
        await watcher.to_the_end(source)
    assert watcher.end == "going_away"
    refused = await front.ask("GET", watcher.path)
    assert refused.code == (503, "going_away")


async def test_nobody_can_open_streams_without_end(dsn: str) -> None:
    async with front_door(dsn, Door(limits=Limits(streams_per_user=2))) as front:
        async with event_source(front, "/events"), event_source(front, "/events") as second:
            assert await second.json() == {"type": "ready"}
            assert (await front.ask("GET", "/events")).code == (429, "too_many_streams")
            async with event_source(front, "/events", token=STRANGER):
                pass

        async def opens() -> bool:
            async with front.http.get("/api/v1/events", headers=authorized(ME)) as response:
                return response.status == 200

        # The server may hear a little later that the others are gone.
        await eventually(opens)


async def test_nothing_is_left_of_a_stream_whose_client_has_gone(front: Front) -> None:
    chat_id = await front.create("hello")
    watcher = Watcher(chat_id)
    await watcher.see(front, reached(1))

    async def gone() -> bool:
        return front.replica.feeds.watched == 0

    await eventually(gone)
