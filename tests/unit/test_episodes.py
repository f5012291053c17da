"""Live parts in memory: coalesced, numbered without holes, bounded, and soon forgotten."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.parts import (
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
)
from chatd.domain.chat.row import Episode
from chatd.domain.chat_views.events import MessagePart, PartPayload
from chatd.domain.ids import ChatId, ToolCallId
from chatd.stream.episodes import (
    MAX_PREVIEW_BYTES,
    PREVIEW_TRUNCATED_PART,
    EpisodeBuffer,
    EpisodeRegistry,
    EpisodesConfig,
)
from chatd.stream.journal_tail import decode_live_parts
from tests.support.clock import FakeClock
from tests.support.factories import CHAT, call, result, text

FIRST = Episode(CHAT, 3, 1)
SECOND = Episode(CHAT, 3, 2)
OTHER = Episode(ChatId(UUID(int=9)), 1, 1)


class Notes:
    """A journal that a test can read."""

    def __init__(self) -> None:
        self.notes: list[tuple[Episode, int, int, bool]] = []
        self.on_written: Callable[[Mapping[Episode, int]], None] = lambda _: None
        self.behind = False

    def is_behind(self, now: float) -> bool:
        return self.behind

    def enqueue_call(self, episode: Episode, number: int, record: bytes) -> None:
        raise AssertionError("no call is recorded here")

    def enqueue(
        self, episode: Episode, first_seq: int, events: Sequence[bytes], *, closed: bool
    ) -> None:
        self.notes.append((episode, first_seq, len(events), closed))


class Stage:
    def __init__(self, clock: FakeClock, **config: float) -> None:
        self.clock = clock
        self.journal = Notes()
        wishes = msgspec.structs.replace(EpisodesConfig(), **config)
        self.episodes = EpisodeRegistry(clock, self.journal, wishes)
        self.woken: asyncio.Queue[int] = asyncio.Queue()

    def wake(self) -> None:
        self.woken.put_nowait(len(self.tape().events))

    async def wakes(self) -> int:
        """How many parts there were when the viewer was woken next."""
        async with asyncio.timeout(30):
            return await self.woken.get()

    def tape(self) -> EpisodeBuffer:
        tape = self.episodes.find(CHAT)
        assert tape is not None
        return tape

    def shown(self) -> list[Part]:
        return [payload.part for payload in payloads(self.tape())]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with asyncio.TaskGroup() as group:
            run = group.create_task(self.episodes.run())
            yield
            run.cancel()


def payloads(tape: EpisodeBuffer) -> list[PartPayload]:
    return [msgspec.json.decode(event, type=MessagePart).message_part for event in tape.events]


def said(tape: EpisodeBuffer) -> str:
    lives = decode_live_parts(tape.events)
    return "".join(live.part.text for live in lives if isinstance(live.part, TextPart))


def delta(call_id: str, piece: str) -> ToolCallPart:
    return ToolCallPart(tool_call_id=ToolCallId(call_id), tool_name="execute", args_delta=piece)


@pytest.fixture
def stage(clock: FakeClock) -> Stage:
    return Stage(clock)


async def test_the_first_part_is_shown_at_once_and_those_behind_it_together(
    stage: Stage, clock: FakeClock
) -> None:
    recorder = stage.episodes.open(FIRST)
    stage.episodes.watch(CHAT, stage.wake)
    async with stage.running():
        recorder.add("assistant", [text("Once")])
        assert await stage.wakes() == 1
        recorder.add("assistant", [text(" upon")])
        recorder.add("assistant", [text(" a time")])
        assert stage.woken.empty()
        assert await clock.advance_past("coalesce") == pytest.approx(0.025)
        assert await stage.wakes() == 2
    assert stage.shown() == [text("Once"), text(" upon a time")]


async def test_viewers_wait_for_a_journal_that_is_behind(stage: Stage, clock: FakeClock) -> None:
    """An interrupt after this process has died keeps what the journal has."""
    recorder = stage.episodes.open(FIRST)
    stage.episodes.watch(CHAT, stage.wake)
    recorder.add("assistant", [text("a")])
    assert (stage.tape().shown, stage.woken.qsize()) == (1, 1)
    stage.journal.behind = True
    clock.advance(0.03)
    recorder.add("assistant", [text("b")])
    assert (stage.tape().shown, stage.woken.qsize()) == (1, 1)
    assert len(stage.journal.notes) == 2, "the journal gets it at once"
    clock.advance(0.03)
    recorder.add("assistant", [text("c")])
    stage.journal.on_written({FIRST: 1})
    assert stage.tape().shown == 1
    stage.journal.on_written({FIRST: 2})
    assert (stage.tape().shown, stage.woken.qsize()) == (2, 2), "still behind, but for this one"
    stage.journal.behind = False
    stage.journal.on_written({})
    assert (stage.tape().shown, stage.woken.qsize()) == (3, 3)


async def test_a_part_after_a_pause_does_not_wait(stage: Stage, clock: FakeClock) -> None:
    recorder = stage.episodes.open(FIRST)
    recorder.add("assistant", [text("a")])
    clock.advance(0.03)
    recorder.add("assistant", [text("b")])
    assert stage.shown() == [text("a"), text("b")]


async def test_nothing_ticks_while_there_is_nothing_to_do(stage: Stage, clock: FakeClock) -> None:
    recorder = stage.episodes.open(FIRST)
    stage.episodes.watch(CHAT, stage.wake)
    async with stage.running():
        recorder.add("assistant", [text("a")])
        recorder.add("assistant", [text("b")])
        await clock.advance_past("coalesce")
        assert [await stage.wakes(), await stage.wakes()] == [1, 2]
        recorder.close()
        await clock.wait_for_sleeper("forget_parts")
        assert not clock.sleeping("coalesce")
        stage.episodes.unwatch(CHAT)
        await clock.advance_past("forget_parts")
        stage.episodes.open(OTHER).close()  # comes after: whoever forgets has had its turn
        assert await clock.wait_for_sleeper("forget_parts") == 30
        assert stage.episodes.find(CHAT) is None


async def test_parts_are_numbered_without_holes(stage: Stage) -> None:
    """Also where something is hidden, and where the speaker changes."""
    recorder = stage.episodes.open(FIRST)
    recorder.add("assistant", [text("a"), UnknownPart(raw=Raw(b'{"type":"hologram"}')), text("b")])
    recorder.add("tool", [result("c1")])
    recorder.add("assistant", [text("c")])
    recorder.close()
    numbered = [(p.seq, p.role, p.history_version, p.attempt) for p in payloads(stage.tape())]
    assert numbered == [
        (1, "assistant", 3, 1),
        (2, "assistant", 3, 1),
        (3, "tool", 3, 1),
        (4, "assistant", 3, 1),
    ]


async def test_only_deltas_of_the_same_thing_are_joined(stage: Stage) -> None:
    recorder = stage.episodes.open(FIRST)
    whole = call("c1", args='{"command":"ls"}')
    recorder.add("assistant", [ReasoningPart(text="hm"), ReasoningPart(text=", well")])
    recorder.add("assistant", [text("I "), text("look")])
    recorder.add("assistant", [delta("c1", '{"a"'), delta("c1", ":1}"), delta("c2", "{")])
    recorder.add("assistant", [whole, whole])
    preview = ToolResultPart(tool_call_id=ToolCallId("c1"), tool_name="execute", result_delta="x")
    recorder.add("tool", [preview, preview])
    recorder.close()
    assert stage.shown() == [
        ReasoningPart(text="hm, well"),
        text("I look"),
        delta("c1", '{"a":1}'),
        delta("c2", "{"),
        whole,
        whole,
        msgspec.structs.replace(preview, result_delta="xx"),
    ]


async def test_an_event_is_one_line_and_shows_nothing_internal(stage: Stage) -> None:
    recorder = stage.episodes.open(FIRST)
    signed = ReasoningPart(text="hm\n", provider_metadata=Raw(b'{"signature":"s"}'))
    recorder.add("assistant", [signed, call("c1", args='{\n  "command":\r\n "ls"\n}')])
    recorder.close()
    assert not [event for event in stage.tape().events if b"\n" in event or b"\r" in event]
    reasoning, called = stage.shown()
    assert reasoning == ReasoningPart(text="hm\n")
    assert isinstance(called, ToolCallPart)
    assert isinstance(called.args, Raw)
    assert msgspec.json.decode(called.args) == {"command": "ls"}


async def test_half_a_character_is_mended(stage: Stage) -> None:
    recorder = stage.episodes.open(FIRST)
    recorder.add("assistant", [text("a\ud83d")])
    recorder.add("assistant", [text("b\ud83d"), text("\ude00")])
    recorder.close()
    assert stage.shown() == [text("a\ufffd"), text("b\U0001f600")]


async def test_an_episode_that_is_too_long_ends_with_one_mark(stage: Stage) -> None:
    recorder = stage.episodes.open(FIRST)
    piece = "x" * 100_000
    for _ in range(30):
        recorder.add("assistant", [text(piece)])
    recorder.close()
    shown = stage.shown()
    assert shown[-1] == PREVIEW_TRUNCATED_PART
    assert PREVIEW_TRUNCATED_PART not in shown[:-1]
    assert len(shown) == 11
    assert stage.tape().size < MAX_PREVIEW_BYTES + 1000
    assert said(stage.tape()) == piece * 10, "what is read back has no mark in it"
    assert [p.seq for p in payloads(stage.tape())] == list(range(1, 12))


async def test_one_part_that_is_too_long_is_not_kept(stage: Stage) -> None:
    recorder = stage.episodes.open(FIRST)
    recorder.add("assistant", [text("x" * 2 * MAX_PREVIEW_BYTES)])
    recorder.add("assistant", [text("more")])
    recorder.close()
    assert stage.shown() == [PREVIEW_TRUNCATED_PART]


async def test_much_at_once_does_not_wait_for_the_timer(stage: Stage) -> None:
    recorder = stage.episodes.open(FIRST)
    for _ in range(50):
        recorder.add("assistant", [text("x" * 1000)])
    assert len(said(stage.tape())) > 30_000


async def test_late_parts_of_an_old_episode_bounce(stage: Stage) -> None:
    old = stage.episodes.open(FIRST)
    old.add("assistant", [text("old")])
    new = stage.episodes.open(SECOND)
    old.add("assistant", [text(" and late")])
    new.add("assistant", [text("new")])
    old.close()
    assert (stage.tape().episode, stage.shown()) == (SECOND, [text("new")])
    assert stage.journal.notes == [
        (FIRST, 1, 1, False),
        (FIRST, 2, 0, True),
        (SECOND, 1, 1, False),
    ]


async def test_an_episode_that_is_opened_again_goes_on_where_it_was(
    stage: Stage, clock: FakeClock
) -> None:
    stage.episodes.watch(CHAT, stage.wake)
    async with stage.running():
        first = stage.episodes.open(FIRST)
        first.add("assistant", [text("a")])
        assert await stage.wakes() == 1
        first.close()
        await clock.wait_for_sleeper("forget_parts")
        again = stage.episodes.open(FIRST)
        again.add("assistant", [text("b")])
        await clock.advance_past("coalesce")
        assert await stage.wakes() == 2
        stage.episodes.unwatch(CHAT)
        await clock.advance_past("forget_parts")
        stage.episodes.open(OTHER).close()  # comes after: whoever forgets has had its turn
        await clock.wait_for_sleeper("forget_parts")
        assert [p.seq for p in payloads(stage.tape())] == [1, 2], "and is not forgotten meanwhile"
        again.close()
    assert [note for note in stage.journal.notes if note[0] == FIRST] == [
        (FIRST, 1, 1, False),
        (FIRST, 2, 0, True),
        (FIRST, 2, 1, False),
        (FIRST, 3, 0, True),
    ]


async def test_a_late_runner_does_not_push_the_current_episode_aside(stage: Stage) -> None:
    current = stage.episodes.open(SECOND)
    stage.episodes.open(FIRST).add("assistant", [text("late")])
    current.add("assistant", [text("now")])
    assert stage.shown() == [text("now")]


async def test_an_older_name_can_come_again_after_a_database_has_lost_changes(stage: Stage) -> None:
    stage.episodes.open(SECOND).close()
    stage.episodes.open(FIRST).add("assistant", [text("again")])
    assert stage.shown() == [text("again")]


async def test_a_closed_episode_is_kept_for_a_while_and_as_long_as_it_is_watched(
    stage: Stage, clock: FakeClock
) -> None:
    recorder = stage.episodes.open(FIRST)
    stage.episodes.watch(CHAT, stage.wake)
    async with stage.running():
        recorder.add("assistant", [text("a")])
        recorder.close()
        await clock.wait_for_sleeper("forget_parts")
        stage.episodes.open(OTHER).close()
        clock.advance(29)
        assert stage.shown() == [text("a")]
        await clock.wait_for_sleeper("forget_parts")
        clock.advance(1)
        stage.episodes.open(msgspec.structs.replace(OTHER, attempt=2)).close()
        await clock.wait_for_sleeper("forget_parts")
        assert stage.shown() == [text("a")], "somebody watches"
        assert stage.episodes.total == stage.tape().size
        stage.episodes.unwatch(CHAT)
        assert stage.episodes.find(CHAT) is None
        assert stage.episodes.total == 0


async def test_when_memory_is_short_what_is_over_goes_first(clock: FakeClock) -> None:
    stage = Stage(clock, max_total_bytes=3000)
    over = stage.episodes.open(OTHER)
    over.add("assistant", [text("x" * 1000)])
    over.close()
    recorder = stage.episodes.open(FIRST)
    recorder.add("assistant", [text("y" * 1000)])
    assert stage.episodes.find(OTHER.chat_id) is not None
    clock.advance(1)
    recorder.add("assistant", [text("z" * 1000)])
    assert stage.episodes.find(OTHER.chat_id) is None
    clock.advance(1)
    recorder.add("assistant", [text("w" * 1000)])
    clock.advance(1)
    recorder.add("assistant", [text("more")])
    assert stage.shown()[-1] == PREVIEW_TRUNCATED_PART, (
        "if that is not enough, what grows stops growing"
    )
    assert len(stage.shown()) == 4
    assert stage.episodes.total == stage.tape().size


async def test_closing_tells_the_journal_what_was_still_pending(stage: Stage) -> None:
    recorder = stage.episodes.open(FIRST)
    recorder.add("assistant", [text("a")])
    recorder.add("assistant", [text("b")])
    recorder.close()
    recorder.close()
    assert stage.journal.notes == [(FIRST, 1, 1, False), (FIRST, 2, 1, True)]
