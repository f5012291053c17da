"""What a chat refuses to have set on it."""

from uuid import UUID

import pytest

from chatd.domain.chat.commands import UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.chat.user_transitions import update_chat
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId
from tests.support.factories import CHAT, chat

CHILD: dict[str, object] = {"id": ChatId(UUID(int=9)), "parent_chat_id": CHAT}


def check(target: Chat, command: UpdateChat) -> None:
    update_chat([target], target.id, command)


@pytest.mark.parametrize(
    "wanted",
    [
        UpdateChat(),
        UpdateChat(title="New", labels={}, pin_order=3),
        UpdateChat(archived=True),
        UpdateChat(archived=True, pin_order=0),
    ],
)
def test_a_root_chat_takes_what_makes_sense(wanted: UpdateChat) -> None:
    check(chat(), wanted)


def test_an_archived_chat_can_be_brought_back_and_pinned_at_once() -> None:
    check(chat(archived=True), UpdateChat(archived=False, pin_order=1))


@pytest.mark.parametrize("archived", [False, True])
def test_what_is_so_already_is_no_mistake(*, archived: bool) -> None:
    check(chat(archived=archived), UpdateChat(archived=archived))


@pytest.mark.parametrize(
    ("columns", "wanted", "field", "code"),
    [
        ({}, UpdateChat(archived=True, pin_order=1), "pin_order", "invalid_input"),
        ({"archived": True}, UpdateChat(pin_order=1), "pin_order", "invalid_input"),
        (CHILD, UpdateChat(pin_order=1), "pin_order", "invalid_input"),
    ],
)
def test_what_makes_no_sense_is_refused(
    columns: dict[str, object], wanted: UpdateChat, field: str, code: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(chat(**columns), wanted)
    assert (refused.value.field, refused.value.code) == (field, code)
