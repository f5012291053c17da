"""Creating a chat."""

from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.commands import CreateChat
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import create
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId, ModelConfigId
from tests.support.factories import CHAT, OWNER, WORKER, call, draft, prompt, result, text

FAST = ModelConfigId(UUID(int=50))
SYSTEM = draft("system", text("Be kind."), visibility="model")


def new(**columns: object) -> CreateChat:
    command = CreateChat(id=CHAT, owner_id=OWNER, title="A chat", prompt=prompt())
    return msgspec.structs.replace(command, **columns)


def test_a_new_chat_is_acquired_by_the_worker_with_a_slot() -> None:
    chat = create(new(), WORKER).after
    assert (chat.state, chat.worker_id, chat.epoch, chat.attempt) == (State.R0, WORKER, 1, 1)
    assert (chat.snapshot_version, chat.history_version, chat.queue_version) == (1, 1, 0)


def test_a_new_chat_is_pending_without_a_slot() -> None:
    chat = create(new(), None).after
    assert (chat.state, chat.worker_id, chat.epoch, chat.attempt) == (State.P0, None, 0, 0)


@pytest.mark.covers("O8")
def test_instructions_come_before_the_first_prompt() -> None:
    change = create(new(before=(SYSTEM, draft("system", text("You have a workspace.")))), None)
    assert [(m.id, m.draft.role) for m in change.messages] == [
        (1, "system"),
        (2, "system"),
        (3, "user"),
    ]
    assert change.after.turn_message_id == 3
    assert change.before is None


@pytest.mark.covers("O15")
def test_a_chat_may_start_without_a_prompt() -> None:
    change = create(new(prompt=None, before=(SYSTEM,)), WORKER)
    assert change.after.turn_message_id is None
    assert not change.after.compaction_requested
    assert change.after.next_message_id == 2


@pytest.mark.covers("O15")
def test_a_chat_needs_a_message() -> None:
    with pytest.raises(InvalidInput, match="at least one message"):
        create(new(prompt=None), WORKER)


def test_a_chat_cannot_start_with_a_pending_call() -> None:
    calling = draft("assistant", call("c1"))
    with pytest.raises(InvalidInput, match="unanswered tool call"):
        create(new(before=(calling,)), WORKER)
    answered = create(new(before=(calling, draft("tool", result("c1")))), WORKER)
    assert answered.after.pending_calls == ()


def test_a_subagent_has_its_root_and_parent() -> None:
    parent = ChatId(UUID(int=9))
    child = create(new(parent_chat_id=parent, root_chat_id=parent), None).after
    assert (child.parent_chat_id, child.root_chat_id, child.is_root) == (parent, parent, False)
    assert create(new(), None).after.root_chat_id == CHAT


def test_the_model_of_a_chat_is_that_of_its_prompt() -> None:
    chat = create(new(prompt=prompt(model_config_id=FAST, reasoning_effort="high")), None).after
    assert (chat.model_config_id, chat.reasoning_effort) == (FAST, "high")


def test_the_values_of_a_create_command_are_in_the_row() -> None:
    command = new(
        model_config_id=FAST, reasoning_effort="low", labels={"team": "red"}, mode="computer_use"
    )
    chat = create(command, None).after
    assert (chat.model_config_id, chat.reasoning_effort) == (FAST, "low")
    assert (chat.labels, chat.mode, chat.title) == ({"team": "red"}, "computer_use", "A chat")
