"""Pages of older messages beside the events that arrive meanwhile."""

from datetime import UTC, datetime

import msgspec
import pytest

from chatd.client.errors import ApiError
from chatd.client.followed_chat import read_page
from chatd.client.resources import MessagePage
from chatd.client.state import OlderPage, ReceivedChat, add_older_page, reduce_all, start
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import TextPart, UnknownPart
from chatd.domain.chat_views.events import (
    Event,
    HistoryReset,
    MessageEvent,
    MessagesDeleted,
    VersionReached,
)
from chatd.domain.ids import MessageId
from tests.support.factories import CHAT
from tests.support.outcomes import present


def message(number: int) -> PublicMessage:
    return PublicMessage(
        id=MessageId(number),
        chat_id=CHAT,
        role="user",
        content=(TextPart(text=str(number)),),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def shown(*numbers: int) -> list[Event]:
    return [MessageEvent(chat_id=CHAT, message=message(number)) for number in numbers]


def reached(version: int, *, has_older: bool = False) -> Event:
    cursor = f"{version}-abc"
    return VersionReached(chat_id=CHAT, version=version, cursor=cursor, has_older=has_older)


def page(*numbers: int, version: int, has_more: bool = False) -> OlderPage:
    return OlderPage(messages=tuple(map(message, numbers)), has_more=has_more, version=version)


def ids_of(received: ReceivedChat) -> list[int]:
    return [one.id for one in received.shown.messages]


@pytest.fixture
def newest() -> ReceivedChat:
    """Messages 5 and 6, with older ones, at version 10."""
    return reduce_all(start(CHAT), [*shown(5, 6), reached(10, has_older=True)])


def test_a_page_comes_before_what_is_shown_in_the_order_of_ids(newest: ReceivedChat) -> None:
    added = present(add_older_page(newest, 5, page(4, 3, version=10, has_more=True)))
    assert (ids_of(added), added.shown.has_older) == ([3, 4, 5, 6], True)
    whole = present(add_older_page(added, 3, page(2, 1, version=10)))
    assert (ids_of(whole), whole.shown.has_older) == ([1, 2, 3, 4, 5, 6], False)


def test_a_message_that_is_shown_already_does_not_come_twice(newest: ReceivedChat) -> None:
    added = present(add_older_page(newest, 5, page(6, 5, 4, version=10)))
    assert ids_of(added) == [4, 5, 6]


def test_an_event_for_a_message_below_the_oldest_waits_for_its_page(newest: ReceivedChat) -> None:
    changed = reduce_all(newest, [*shown(2, 7), reached(11)])
    assert ids_of(changed) == [5, 6, 7]
    assert changed.shown.has_older


@pytest.mark.parametrize(
    "events",
    [
        [MessagesDeleted(chat_id=CHAT, ids=(MessageId(6),)), reached(11)],
        [HistoryReset(chat_id=CHAT), *shown(5), reached(11, has_older=True)],
    ],
    ids=["messages were deleted", "history was reset"],
)
def test_a_page_from_before_a_deletion_is_read_again(
    newest: ReceivedChat, events: list[Event]
) -> None:
    rewritten = reduce_all(newest, events)
    assert add_older_page(rewritten, 5, page(4, version=10)) is None
    assert add_older_page(rewritten, 5, page(4, version=11)) is not None


def test_a_page_for_another_place_is_read_again(newest: ReceivedChat) -> None:
    added = present(add_older_page(newest, 5, page(4, version=10, has_more=True)))
    assert add_older_page(added, 5, page(4, version=10)) is None
    assert add_older_page(start(CHAT), 5, page(4, version=10)) is None


def test_a_part_of_an_unknown_type_stays_in_its_place() -> None:
    raw = msgspec.to_builtins(message(3), builtin_types=(datetime,))
    raw["content"] = [{"type": "of_later", "data": 7}, *raw["content"]]
    found = read_page(MessagePage(items=(msgspec.Raw(msgspec.json.encode(raw)),), version=1))
    later, text = found.messages[0].content
    assert isinstance(later, UnknownPart)
    assert text == TextPart(text="3")


def test_a_message_that_cannot_be_read_is_an_error_of_the_reply() -> None:
    with pytest.raises(ApiError) as caught:
        read_page(MessagePage(items=(msgspec.Raw(b'{"id":"x"}'),)))
    assert caught.value.code == "unexpected_reply"
