"""What a chat refuses to have set on it."""

from uuid import UUID

import pytest

from chatd.domain.chat.commands import ChatUpdate, check_chat_update
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId
from tests.support.factories import CHAT, chat

CHILD: dict[str, object] = {"id": ChatId(UUID(int=9)), "parent_chat_id": CHAT}


@pytest.mark.parametrize(
    "wanted",
    [
        ChatUpdate(),
        ChatUpdate(title="New", labels={}, pin_order=3),
        ChatUpdate(archived=True),
        ChatUpdate(archived=True, pin_order=0),
    ],
)
def test_a_root_chat_takes_what_makes_sense(wanted: ChatUpdate) -> None:
    check_chat_update(chat(), wanted)


def test_an_archived_chat_can_be_brought_back_and_pinned_at_once() -> None:
    check_chat_update(chat(archived=True), ChatUpdate(archived=False, pin_order=1))


@pytest.mark.parametrize("archived", [False, True])
def test_what_is_so_already_is_no_mistake(*, archived: bool) -> None:
    check_chat_update(chat(archived=archived), ChatUpdate(archived=archived))


@pytest.mark.parametrize(
    ("columns", "wanted", "field", "code"),
    [
        ({}, ChatUpdate(archived=True, pin_order=1), "pin_order", "invalid_input"),
        ({"archived": True}, ChatUpdate(pin_order=1), "pin_order", "invalid_input"),
        (CHILD, ChatUpdate(pin_order=1), "pin_order", "invalid_input"),
    ],
)
def test_what_makes_no_sense_is_refused(
    columns: dict[str, object], wanted: ChatUpdate, field: str, code: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_chat_update(chat(**columns), wanted)
    assert (refused.value.field, refused.value.code) == (field, code)
