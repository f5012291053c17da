"""The rules of subagents, in tables."""

from uuid import UUID

import pytest

from chatd.domain.answer.tool_calls import call_key
from chatd.domain.chat.parts import ReasoningPart, TextPart
from chatd.domain.chat.row import AgentWait, Chat, ChatError
from chatd.domain.chat.states import State
from chatd.domain.ids import ChatId, ModelConfigId, ToolCallId
from chatd.domain.subagents import (
    DEFAULT_AGENT_WAIT_S,
    MAX_AGENT_WAIT_S,
    MAX_REPORT_BYTES,
    ModelPreferences,
    SubagentCounts,
    SubagentLimits,
    SubagentType,
    can_spawn,
    clean_wait_s,
    derive_chat_id,
    join_waits,
    mode_of,
    remaining_wait,
    report_text,
    spawn_objection,
    subagent_instructions,
    subagent_title,
    wait_result,
)
from tests.support.factories import CHAT, chat
from tests.support.seeds import seed_state

CHILD = ChatId(UUID(int=9))
A, B, C = (ModelConfigId(UUID(int=number)) for number in (1, 2, 3))


def child_in(state: State, **columns: object) -> Chat:
    row = seed_state(state, chat_id=CHILD).chat
    return chat(
        id=CHILD,
        parent_chat_id=CHAT,
        status=row.status,
        archived=row.archived,
        worker_id=row.worker_id,
        queue_len=row.queue_len,
        **columns,
    )


def test_the_id_of_a_subagent_follows_from_its_call() -> None:
    """Must not change: a worker of another version that runs a call again finds the same chat."""
    key = call_key(CHAT, 7, ToolCallId("call_1"))
    assert derive_chat_id(key) == derive_chat_id(key)
    keys = {key, call_key(CHAT, 8, ToolCallId("call_1")), call_key(CHAT, 7, ToolCallId("call_2"))}
    assert len({derive_chat_id(each) for each in keys}) == 3
    fixed = derive_chat_id("00000000-0000-0000-0000-000000000001:7:call_1")
    assert str(fixed) == "5d535782-0cba-5ef8-ac0d-284a49d4c262"


@pytest.mark.parametrize(
    ("columns", "may"),
    [
        ({}, True),
        ({"mode": "plan"}, True),
        ({"mode": "explore"}, False),
        ({"parent_chat_id": CHAT, "id": CHILD}, False),
    ],
    ids=["a root", "a root that plans", "a root that explores", "a subagent"],
)
def test_only_a_root_that_does_not_explore_can_spawn(
    columns: dict[str, object], *, may: bool
) -> None:
    assert can_spawn(chat(**columns)) is may


@pytest.mark.parametrize(
    ("above", "type_", "mode"),
    [
        (None, "general", None),
        (None, "explore", "explore"),
        ("plan", "general", "plan"),
        ("plan", "explore", "plan"),
    ],
)
def test_a_subagent_may_do_no_more_than_its_parent(
    above: str | None, type_: SubagentType, mode: str | None
) -> None:
    assert mode_of(chat(mode=above), type_) == mode


@pytest.mark.parametrize(
    ("title", "prompt", "expected"),
    [
        ("  Look\naround ", "x", "Look around"),
        ("", "one two three", "one two three"),
        (" ", "one two three four five six seven", "one two three four five six…"),
        ("x" * 100, "", "x" * 79 + "…"),
    ],
)
def test_a_subagent_has_the_given_title_or_the_first_words(
    title: str, prompt: str, expected: str
) -> None:
    assert subagent_title(title, prompt) == expected


@pytest.mark.parametrize(
    ("running", "total", "says"),
    [(1, 1, None), (2, 2, "wait_agent"), (0, 3, "message_agent"), (2, 3, "message_agent")],
)
def test_a_refusal_names_the_tool_that_helps(running: int, total: int, says: str | None) -> None:
    limits = SubagentLimits(running=2, total=3)
    objection = spawn_objection(SubagentCounts(running=running, total=total), limits)
    assert objection is None if says is None else says in str(objection)


@pytest.mark.parametrize(
    ("preferences", "order"),
    [
        (ModelPreferences(user=A, deployment=B, parent=C), [A, B, C]),
        (ModelPreferences(deployment=B, parent=C), [B, C]),
        (ModelPreferences(parent=C), [C]),
        (ModelPreferences(), []),
    ],
)
def test_the_users_model_comes_before_the_administrators_and_the_parents(
    preferences: ModelPreferences, order: list[ModelConfigId]
) -> None:
    assert list(preferences.in_order()) == order


@pytest.mark.parametrize(
    ("asked", "waits"),
    [(0, DEFAULT_AGENT_WAIT_S), (-5, DEFAULT_AGENT_WAIT_S), (7, 7), (1e9, MAX_AGENT_WAIT_S)],
)
def test_a_wait_has_a_default_and_an_end(asked: float, waits: float) -> None:
    assert clean_wait_s(asked) == waits


@pytest.mark.parametrize(
    ("state", "waited_s", "delay_ms"),
    [
        (State.R0, 0, 60_000),
        (State.P1, 59, 1000),
        (State.I0, 59.99999, 50),
        (State.R0, -600, 60_000),
        (State.R0, 60, None),
        (State.W, 0, None),
        (State.E0, 0, None),
        (State.E1, 0, None),
        (State.A0, 0, None),
        (State.XW0, 0, None),
    ],
)
def test_only_a_child_that_is_not_settled_is_waited_for_and_not_for_ever(
    state: State, waited_s: float, delay_ms: int | None
) -> None:
    """`interrupting` is not settled: the partial answer is not stored yet. A wait never grows,
    even if the database's clock went back."""
    wait = remaining_wait(child_in(state), waited_s, 60)
    expected = None if delay_ms is None else AgentWait(chat_ids=(CHILD,), delay_ms=delay_ms)
    assert wait == expected


def test_waits_of_one_step_end_with_the_first() -> None:
    one, two = AgentWait(chat_ids=(CHAT,), delay_ms=9), AgentWait(chat_ids=(CHILD,), delay_ms=5)
    assert join_waits([one, two, one]) == AgentWait(chat_ids=(CHAT, CHILD), delay_ms=5)


def test_a_child_in_error_is_reported_with_cause_and_last_words() -> None:
    error = ChatError(message="no key", kind="auth", detail="401", retryable=True)
    found = wait_result(child_in(State.E0, last_error=error, title="Look"), "half of it")
    assert (found.status, found.report, found.title) == ("error", "half of it", "Look")
    assert (found.last_error, found.last_error_kind) == ("no key", "auth")
    assert (found.last_error_retryable, found.last_error_detail) == (True, "401")


@pytest.mark.parametrize(
    ("state", "status", "timed_out", "note"),
    [
        (State.W, "waiting", False, ""),
        (State.R0, "running", True, "still works"),
        (State.P0, "pending", True, "still works"),
        (State.I0, "interrupting", True, "still works"),
        (State.A0, "requires_action", False, "waits for an answer of the user"),
        (State.XW0, "archived", False, "archived"),
    ],
)
def test_a_result_says_what_the_child_does_and_what_to_do(
    state: State, status: str, note: str, *, timed_out: bool
) -> None:
    found = wait_result(child_in(state), "report")
    assert (found.status, found.timed_out) == (status, timed_out)
    assert found.report == ("" if timed_out else "report")
    assert note in found.note


def test_a_report_is_the_text_of_the_answer_within_bounds() -> None:
    parts = (ReasoningPart(text="hm"), TextPart(text="one"), TextPart(text=" "), TextPart(text="2"))
    assert report_text(parts) == "one\n\n2"
    assert len(report_text((TextPart(text="x" * 10**6),)).encode()) <= MAX_REPORT_BYTES
    assert report_text(()) == ""


def test_only_subagents_are_told_that_they_are() -> None:
    assert subagent_instructions(chat()) is None
    general = subagent_instructions(chat(id=CHILD, parent_chat_id=CHAT))
    explore = subagent_instructions(chat(id=CHILD, parent_chat_id=CHAT, mode="explore"))
    assert "You are a subagent" in str(general)
    assert "change nothing" not in str(general)
    assert "change nothing" in str(explore)
