"""The table from commands to transition functions."""

from typing import get_args
from uuid import UUID

import pytest

from chatd.domain.chat.commands import ChatCommand, InterruptChat, SendMessage
from chatd.domain.chat.transitions import TRANSITION_BY_COMMAND, LoadedChat, ReservedSlots, decide
from chatd.domain.ids import ChatId
from tests.support.factories import CHAT, OTHER_WORKER, WORKER, chat, prompt


def test_every_command_on_a_chat_has_a_transition() -> None:
    assert set(TRANSITION_BY_COMMAND) == set(get_args(ChatCommand))


@pytest.mark.parametrize(("is_root", "owner"), [(True, WORKER), (False, OTHER_WORKER)])
def test_the_worker_with_a_slot_of_the_chats_kind_acquires_it(
    *, is_root: bool, owner: object
) -> None:
    parent = None if is_root else CHAT
    row = chat(id=CHAT if is_root else ChatId(UUID(int=9)), parent_chat_id=parent)
    slots = ReservedSlots(root=WORKER, child=OTHER_WORKER)
    change = decide(LoadedChat(chat=row), SendMessage(prompt=prompt()), slots)
    assert change is not None
    assert change.after.worker_id == owner


def test_a_command_without_effect_needs_no_change() -> None:
    assert decide(LoadedChat(chat=chat()), InterruptChat(), ReservedSlots()) is None
