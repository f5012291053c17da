"""Streams on the beat: read together, passed on at once, ended and failed for their coroutine."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    ModelEvent,
    ProviderError,
    StreamPing,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
)
from chatd.domain.ports import PushedEvents
from chatd.providers.http import ProviderSession
from chatd.providers.openai.chat_answer import ChatAnswerBuilder
from chatd.providers.openai.chat_decoder import ChatDecoder
from chatd.providers.provider_config import HttpConfig, TlsFiles
from chatd.providers.reply_events import WAKING_READS, Beat, ReplyEvents, merge_deltas
from chatd.providers.tool_schema import ToolNames
from tests.support.providers.certificate import self_signed

Serve = Callable[[web.StreamResponse], Awaitable[None]]


def text(delta: str, block: str = "1") -> TextDelta:
    return TextDelta(id=block, delta=delta)


def call(delta: str, id_: str) -> ToolCallDelta:
    return ToolCallDelta(id=ToolCallId(id_), delta=delta)


def test_adjacent_deltas_of_one_text_are_merged() -> None:
    events: list[ModelEvent] = [TextStart(id="1"), text("a"), text("b"), text("c"), TextEnd(id="1")]
    assert list(merge_deltas(events)) == [TextStart(id="1"), text("abc"), TextEnd(id="1")]
    assert list(merge_deltas([text("a"), text("b"), text("c")])) == [text("abc")]


def test_deltas_of_different_blocks_are_not_merged() -> None:
    events: list[ModelEvent] = [text("a"), text("b", "2"), call("{", "1"), call("}", "1")]
    events += [call("[", "2"), text("c"), TextEnd(id="1"), text("d")]
    assert list(merge_deltas(events)) == [
        text("a"),
        text("b", "2"),
        call("{}", "1"),
        call("[", "2"),
        text("c"),
        TextEnd(id="1"),
        text("d"),
    ]


def test_a_single_event_is_unchanged() -> None:
    events: list[ModelEvent] = [text("a")]
    assert merge_deltas(events) is events
    assert merge_deltas([]) == []


async def test_the_beat_calls_all_readers_and_stops_without_any() -> None:
    beat, calls, done = Beat(interval_s=0.001), list[int](), asyncio.Event()

    def removed(_now: float) -> None:
        calls.append(0)

    def reader(_now: float) -> None:
        calls.append(1)
        if calls.count(1) == 3:
            beat.remove(reader)
            done.set()

    beat.add(removed)
    beat.add(reader)
    beat.remove(removed)
    async with asyncio.timeout(30):
        await done.wait()
    assert calls == [1, 1, 1]
    done.clear()
    calls.clear()
    beat.add(reader)
    async with asyncio.timeout(30):
        await done.wait()


@pytest.mark.parametrize(("many", "every_s"), [(1, 0.03), (30, 0.03), (80, 0.08), (500, 0.15)])
async def test_the_interval_grows_with_the_number_of_streams(many: int, every_s: float) -> None:
    beat, struck = Beat(), asyncio.Event()

    def read(number: int, _now: float) -> None:
        if number == many - 1:
            struck.set()

    for number in range(many):
        beat.add(partial(read, number))
    async with asyncio.timeout(20):
        await struck.wait()
        struck.clear()
        await struck.wait()
    assert beat.interval_s == every_s


def event(delta: str, finish: str = "null") -> bytes:
    return (
        b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n'
        % (delta.encode(), finish.encode())
    )


DONE = event("", '"stop"') + b"data: [DONE]\n\n"


@asynccontextmanager
async def opened(
    serve: Serve,
    *,
    silence_s: float = 30.0,
    pem: Path | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[ReplyEvents]:
    """A stream of a server that writes with `serve`. `pem` is the certificate of `tls`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await serve(response)
        return response

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    files = TlsFiles() if pem is None else TlsFiles(ca_file=str(pem))
    config = HttpConfig(read_timeout_s=silence_s, silence_s=None, tls=files)
    session = ProviderSession("fake", config=config)
    decoder = ChatDecoder(ChatAnswerBuilder("fake", ToolNames(())))
    url = f"http{'' if tls is None else 's'}://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        async with (
            asyncio.timeout(30),
            session.stream(url=url, headers={}, body=b"{}", decoder=decoder) as events,
        ):
            assert isinstance(events, ReplyEvents)
            assert isinstance(events, PushedEvents)
            yield events
    finally:
        await session.close()
        await runner.cleanup()


def said(events: Sequence[ModelEvent]) -> str:
    return "".join(each.delta for each in events if isinstance(each, TextDelta))


async def test_an_answer_in_pieces_of_any_size_arrives_whole() -> None:
    """Cut at every byte: the pieces of one round are one byte shorter than those of the round
    before."""
    words = [f"w{number} " for number in range(WAKING_READS * 3)]
    whole = b"".join(map(event, words)) + DONE
    for size in (1, 2, 3, 7, 64, 1000, len(whole)):
        taken: list[ModelEvent] = []

        async def serve(response: web.StreamResponse, size: int = size) -> None:
            for start in range(0, len(whole), size):
                await response.write(whole[start : start + size])

        def take(events: Sequence[ModelEvent], taken: list[ModelEvent] = taken) -> bool:
            taken.extend(events)
            return True

        async with opened(serve) as events:
            assert await events.push(take)
        assert said(taken) == "".join(words)


async def test_an_answer_over_tls_is_read_on_the_beat_too(tmp_path: Path) -> None:
    """A socket with TLS is held at another place: above what is decrypted."""
    taker = Taker()

    async def serve(response: web.StreamResponse) -> None:
        await taker.pace(response, PIECES)
        whole = b"".join(PIECES)
        for start in range(0, len(whole), 7):
            await response.write(whole[start : start + 7])
        await response.write(DONE)

    tls = self_signed(tmp_path)
    async with opened(serve, pem=tmp_path / "server.pem", tls=tls) as events:
        assert await events.push(taker.take)
    assert said(taker.events) == "".join(WORDS * 2)
    assert taker.by_beat[WAKING_READS : len(WORDS)] == [True] * 4


async def test_an_answer_larger_than_what_the_client_holds_arrives_whole() -> None:
    """The client stops reading by itself when it has that much, and is not made to go on."""
    taker, word = Taker(), "x" * 50_000

    async def serve(response: web.StreamResponse) -> None:
        await taker.pace(response, PIECES)
        for _ in range(40):
            await response.write(event(word))
        await response.write(DONE)

    async with opened(serve) as events:
        assert await events.push(taker.take)
    assert said(taker.events) == "".join(WORDS) + word * 40


class Taker:
    """Takes all events; `pace` lets a server write the next piece when the last one was taken."""

    def __init__(self) -> None:
        self.events: list[ModelEvent] = []
        self.by_beat: list[bool] = []
        self._took = asyncio.Event()

    def take(self, events: Sequence[ModelEvent]) -> bool:
        self.events += events
        self.by_beat.append(asyncio.current_task() is None)
        self._took.set()
        return True

    async def pace(self, response: web.StreamResponse, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._took.clear()
            await response.write(piece)
            await self._took.wait()


WORDS = [f"{number} " for number in range(WAKING_READS + 4)]
PIECES = [*map(event, WORDS)]


async def test_busy_streams_are_passed_on_by_the_beat_and_not_by_the_coroutine() -> None:
    taker = Taker()

    async def serve(response: web.StreamResponse) -> None:
        await taker.pace(response, PIECES)
        await response.write(DONE)

    async with opened(serve) as events:
        assert await events.push(taker.take)
    assert said(taker.events) == "".join(WORDS)
    assert taker.by_beat[:WAKING_READS] == [False] * WAKING_READS
    assert taker.by_beat[WAKING_READS : len(WORDS)] == [True] * 4


async def test_a_taker_that_must_wait_gets_the_rest_afterwards() -> None:
    taker = Taker()

    async def serve(response: web.StreamResponse) -> None:
        await taker.pace(response, PIECES)
        await response.write(DONE)

    def take(events: Sequence[ModelEvent]) -> bool:
        taker.take(events)
        return False

    holds = 0
    async with opened(serve) as events:
        while not await events.push(take):
            holds += 1
    assert said(taker.events) == "".join(WORDS)
    assert holds >= len(WORDS)


async def test_what_arrived_before_a_cut_is_passed_on_before_the_failure() -> None:
    taker = Taker()

    async def handle(response: web.StreamResponse) -> None:
        for piece in PIECES:
            await response.write(piece)
        raise ConnectionResetError

    with pytest.raises(ProviderError) as failed:
        async with opened(handle) as events:
            await events.push(taker.take)
    assert failed.value.fault.transport == "reset"
    assert said(taker.events) == "".join(WORDS)


async def test_an_error_of_the_taker_is_raised_where_the_answer_is_awaited() -> None:
    taker = Taker()

    async def serve(response: web.StreamResponse) -> None:
        await taker.pace(response, PIECES)

    def take(events: Sequence[ModelEvent]) -> bool:
        if asyncio.current_task() is None:
            raise ValueError("too much")
        return taker.take(events)

    with pytest.raises(ValueError, match="too much"):
        async with opened(serve) as events:
            await events.push(take)


async def test_silence_on_the_beat_is_a_timeout() -> None:
    taker = Taker()

    async def serve(response: web.StreamResponse) -> None:
        await taker.pace(response, [b": ping\n\n"] * (WAKING_READS + 1))
        await asyncio.Event().wait()

    with pytest.raises(ProviderError) as failed:
        async with opened(serve, silence_s=0.3) as events:
            await events.push(taker.take)
    assert failed.value.fault.transport == "timeout"
    assert set(taker.events) == {StreamPing()}


async def test_a_cancelled_answer_leaves_the_beat() -> None:
    taker, is_followed, was_cancelled = Taker(), asyncio.Event(), asyncio.Event()

    async def serve(response: web.StreamResponse) -> None:
        await taker.pace(response, PIECES)
        is_followed.set()
        await was_cancelled.wait()
        await response.write(event("later") + DONE)

    async with opened(serve) as events, asyncio.TaskGroup() as group:
        pushing = group.create_task(events.push(taker.take))
        await is_followed.wait()
        pushing.cancel()
        await asyncio.wait([pushing])
        was_cancelled.set()
        # The stream can still be read, by a coroutine.
        assert said([each async for each in events]) == "later"
    assert said(taker.events) == "".join(WORDS)
