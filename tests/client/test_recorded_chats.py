"""The client library's reducer against recorded logs, which the page replays too."""

from pathlib import Path

import msgspec
import pytest

from chatd.client.frames import read_event
from chatd.client.state import ReceivedChat, ShownChat, drop_partial_group, reduce_all, start
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat_views.events import Event
from chatd.domain.ids import ChatId
from tests.support import event_fixtures
from tests.support.event_recorder import RecordedChat
from tests.support.outcomes import present


def events_of(raw: list[msgspec.Raw]) -> list[Event]:
    return [present(read_event(bytes(one))) for one in raw]


def expected(log: RecordedChat) -> dict[str, object]:
    return {
        "version": log.chat["version"],
        "status": log.chat["status"],
        "messages": log.messages,
        "queue": log.queued_messages,
        "error": log.chat["last_error"],
        "live": None,
    }


def shown_of(shown: ShownChat) -> dict[str, object]:
    """As plain JSON: arguments of calls are kept as text, with its spaces."""
    names = ("version", "status", "messages", "queue", "error", "live")
    plain: object = msgspec.json.decode(
        msgspec.json.encode({name: getattr(shown, name) for name in names})
    )
    return msgspec.convert(plain, dict[str, object])


def empty(log: RecordedChat) -> ReceivedChat:
    return start(msgspec.convert(log.chat_id, ChatId))


@pytest.mark.parametrize("path", event_fixtures.files(), ids=lambda path: path.stem)
def test_a_whole_log_gives_the_servers_own_state(path: Path) -> None:
    log = event_fixtures.load(path)
    received = empty(log)
    for connection in log.connections:
        received = reduce_all(drop_partial_group(received), events_of(connection))
    assert shown_of(received.shown) == expected(log)


@pytest.mark.parametrize("path", event_fixtures.files(), ids=lambda path: path.stem)
def test_a_log_cut_anywhere_and_resumed_gives_the_servers_own_state(path: Path) -> None:
    log = event_fixtures.load(path)
    resumes = {cursor: events_of(raw) for cursor, raw in log.resumes.items()}
    received = empty(log)
    for connection in log.connections:
        received = drop_partial_group(received)
        for event in events_of(connection):
            received = reduce_all(received, [event])
            resumed = drop_partial_group(received)
            resumed = reduce_all(resumed, resumes[resumed.shown.cursor])
            assert shown_of(resumed.shown) == expected(log)


def test_the_scenes_are_recorded() -> None:
    names = {path.stem for path in event_fixtures.files()}
    assert names >= {"text", "interrupt", "queue", "steer", "edit", "retry", "error", "takeover"}


def test_an_event_of_an_unknown_type_is_skipped() -> None:
    assert read_event(b'{"type":"of_a_later_release","chat_id":"x"}') is None


def test_an_answer_that_another_worker_goes_on_with_stays_until_its_text_is_there_again() -> None:
    """A failed answer is dropped at once."""
    chat_id = "00000000-0000-0000-0000-000000000001"

    def event(**fields: object) -> Event:
        return present(read_event(msgspec.json.encode({"chat_id": chat_id, **fields})))

    def part(attempt: int, seq: int, words: str) -> Event:
        payload = {"role": "assistant", "part": {"type": "text", "text": words}}
        place = {"history_version": 1, "attempt": attempt, "seq": seq}
        return event(type="message_part", message_part={**payload, **place})

    def reset(attempt: int) -> list[Event]:
        begun = event(type="preview_reset", history_version=1, attempt=attempt)
        return [begun, event(type="version", version=attempt, cursor=str(attempt))]

    def text_after(*events: Event) -> str:
        live = reduce_all(received, events).shown.live
        parts = () if live is None else live.parts
        return "".join(one.text for one in parts if isinstance(one, TextPart))

    running = event(type="status", status={"status": "running"})
    first = (running, *reset(1), part(1, 1, "half an "), part(1, 2, "ans"))
    received = reduce_all(start(msgspec.convert(chat_id, ChatId)), first)
    retry = event(type="retry", retry={"attempt": 1, "delay_ms": 1000, "error": "busy"})
    assert text_after(*reset(2)) == "half an ans"
    assert text_after(*reset(2), part(2, 1, "half an ans")) == "half an ans"
    assert text_after(*reset(2), part(2, 1, "half an ans"), part(2, 2, "wer")) == "half an answer"
    assert text_after(*reset(2), part(2, 1, "another one")) == "another one"
    assert text_after(retry, *reset(2)) == ""
