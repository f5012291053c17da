"""Messages, prompts, and which calls are open."""

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

ASKS = draft("assistant", text("Look."), call("c1"), call("c2"))


@pytest.mark.parametrize(
    ("history", "still_open"),
    [
        ([], []),
        ([draft("user", text())], []),
        ([ASKS], ["c1", "c2"]),
        ([ASKS, draft("tool", result("c1"))], ["c2"]),
        ([ASKS, draft("tool", result("c2")), draft("tool", result("c1"))], []),
        ([ASKS, draft("tool", result("c1"), result("c2"))], []),
        ([ASKS, draft("system", text("notice"))], ["c1", "c2"]),
        ([ASKS, draft("assistant", text("later"))], []),
        ([draft("tool", result("c1")), ASKS], ["c1", "c2"]),
        ([draft("assistant", call("s", provider_executed=True))], []),
        ([ASKS, draft("tool", result("c1", provider_executed=True))], ["c1", "c2"]),
    ],
)
def test_calls_are_open_until_a_later_message_answers_them(
    history: list[Draft], still_open: list[str]
) -> None:
    assert [part.tool_call_id for part in pending_calls(history)] == still_open


def test_what_the_provider_runs_is_not_ours() -> None:
    content = (
        text("a"),
        call("ours"),
        call("theirs", provider_executed=True),
        result("theirs", provider_executed=True),
        result("ours"),
    )
    assert [part.tool_call_id for part in local_calls(content)] == ["ours"]
    assert [part.tool_call_id for part in local_results(content)] == ["ours"]


@pytest.mark.parametrize(
    ("role", "columns", "begins"),
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
def test_a_turn_is_begun_by_a_person_s_own_prompt(
    role: Role, columns: dict[str, object], *, begins: bool
) -> None:
    row = message(1, role, text(), **columns)
    assert row.starts_turn is begins


def test_a_prompt_becomes_a_message_with_all_that_was_asked() -> None:
    model = ModelConfigId(UUID(int=50))
    asked = prompt("hi", model_config_id=model, reasoning_effort="low")
    expected = Draft(
        role="user",
        content=(text("hi"),),
        created_by=OWNER,
        model_config_id=model,
        reasoning_effort="low",
    )
    assert asked.draft() == expected
    assert queued(1, "hi", model_config_id=model, reasoning_effort="low").draft() == expected


def test_an_episode_is_named_by_history_and_attempt() -> None:
    assert Episode.of(chat(history_version=4, attempt=2)) == Episode(CHAT, 4, 2)
