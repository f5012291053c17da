"""Messages, user input and pending calls."""

from uuid import UUID

import pytest

from chatd.domain.chat.messages import Draft, Role, local_calls, local_results, pending_calls
from chatd.domain.chat.row import Episode
from chatd.domain.ids import ModelConfigId
from tests.support.factories import (
    CHAT,
    OWNER,
    call,
    chat,
    draft,
    message,
    prompt,
    queued,
    result,
    text,
)

CALLS = draft("assistant", text("Look."), call("c1"), call("c2"))


@pytest.mark.parametrize(
    ("history", "pending"),
    [
        ([], []),
        ([draft("user", text())], []),
        ([CALLS], ["c1", "c2"]),
        ([CALLS, draft("tool", result("c1"))], ["c2"]),
        ([CALLS, draft("tool", result("c2")), draft("tool", result("c1"))], []),
        ([CALLS, draft("tool", result("c1"), result("c2"))], []),
        ([CALLS, draft("system", text("notice"))], ["c1", "c2"]),
        ([CALLS, draft("assistant", text("later"))], []),
        ([draft("tool", result("c1")), CALLS], ["c1", "c2"]),
        ([draft("assistant", call("s", provider_executed=True))], []),
        ([CALLS, draft("tool", result("c1", provider_executed=True))], ["c1", "c2"]),
    ],
)
def test_calls_are_pending_until_a_later_message_answers_them(
    history: list[Draft], pending: list[str]
) -> None:
    assert [part.tool_call_id for part in pending_calls(history)] == pending


def test_provider_executed_calls_and_results_are_not_local() -> None:
    content = (
        text("a"),
        call("local"),
        call("provider", provider_executed=True),
        result("provider", provider_executed=True),
        result("local"),
    )
    assert [part.tool_call_id for part in local_calls(content)] == ["local"]
    assert [part.tool_call_id for part in local_results(content)] == ["local"]


@pytest.mark.parametrize(
    ("role", "columns", "starts"),
    [
        ("user", {}, True),
        ("user", {"visibility": "user"}, True),
        ("user", {"visibility": "model"}, False),
        ("user", {"compressed": True}, False),
        ("assistant", {}, False),
        ("tool", {}, False),
        ("system", {}, False),
    ],
)
def test_a_users_own_message_starts_a_turn(
    role: Role, columns: dict[str, object], *, starts: bool
) -> None:
    row = message(1, role, text(), **columns)
    assert row.starts_turn is starts


def test_a_user_input_becomes_a_draft_with_its_model_and_effort() -> None:
    model = ModelConfigId(UUID(int=50))
    user_input = prompt("hi", model_config_id=model, reasoning_effort="low")
    expected = Draft(
        role="user",
        content=(text("hi"),),
        created_by=OWNER,
        model_config_id=model,
        reasoning_effort="low",
    )
    assert user_input.draft() == expected
    assert queued(1, "hi", model_config_id=model, reasoning_effort="low").draft() == expected


def test_an_episode_is_named_by_history_and_attempt() -> None:
    assert Episode.of(chat(history_version=4, attempt=2)) == Episode(CHAT, 4, 2)
