"""How the turn of a run ended, from the state of its chat."""

import pytest
from msgspec.structs import replace

from chatd.cli.api_session import ExitCode, exit_code_of_error, exit_code_of_refusal
from chatd.cli.chats.run_turn import SentMessage, TurnOutcome, turn_outcome
from chatd.client.state import ShownChat
from chatd.domain.chat.parts import NoticePart, TextPart
from chatd.domain.chat.row import ChatError
from tests.support.shown_chats import answered, asked, called, queued, returned, said, shown

SENT = SentMessage(version=5, message_id=1)
QUEUED = SentMessage(version=5, queue_id=3, after=2, content=(TextPart(text="next"),))
PLAN = '{"ok": true, "file_id": "f1"}'


def ended(state: ShownChat, sent: SentMessage = SENT) -> TurnOutcome:
    outcome = turn_outcome(state, sent)
    assert outcome is not None
    return outcome


@pytest.mark.parametrize(
    "state",
    [
        ShownChat(chat_id=shown().chat_id),
        shown(said(1, "hi"), status="waiting", version=4),
        shown(said(1, "hi"), status="pending"),
        shown(said(1, "hi"), status="running"),
        shown(said(1, "hi"), answered(2, "par", None), status="interrupting"),
        shown(said(1, "hi"), called(2, "execute"), status="running"),
    ],
    ids=["not loaded", "older than the message", "pending", "running", "interrupting", "tools"],
)
def test_a_turn_that_goes_on_has_no_outcome(state: ShownChat) -> None:
    assert turn_outcome(state, SENT) is None


def test_the_answer_is_what_follows_the_last_results() -> None:
    messages = (
        said(1, "fix it"),
        called(2, "execute", text="I look first."),
        returned(3, "execute"),
        answered(4, "It is ", "pause"),
        answered(5, "fixed.\n"),
    )
    outcome = ended(shown(*messages))
    assert (outcome.ending, outcome.exit_code) == ("done", 0)
    assert (outcome.answer, outcome.message_id) == ("It is fixed.", 5)


def test_a_later_message_of_a_user_ends_the_turn() -> None:
    """Another client may send the next one while this one still looks."""
    messages = (said(1, "one"), answered(2, "first"), said(3, "two"))
    assert ended(shown(*messages, status="running")).answer == "first"


@pytest.mark.parametrize(
    ("code", "ending", "exit_code"),
    [("step_limit", "failed", 4), ("empty_answer", "failed", 4), ("model_replaced", "done", 0)],
)
def test_a_notice_at_the_end_says_why_a_turn_ended_early(
    code: str, ending: str, exit_code: int
) -> None:
    notice = replace(answered(3, ""), role="system", content=(NoticePart(code=code, text="Why."),))
    outcome = ended(shown(said(1, "go"), answered(2, "so far"), notice))
    assert (outcome.ending, outcome.exit_code) == (ending, exit_code)
    assert (outcome.answer, outcome.reason) == ("so far", "Why." if exit_code else "")


def test_a_message_that_steers_belongs_to_the_turn() -> None:
    messages = (said(1, "one"), called(2, "execute"), returned(3, "execute"), said(4, "and"))
    assert turn_outcome(shown(*messages, status="running"), SENT) is None
    outcome = ended(shown(*messages, answered(5, "both")))
    assert outcome.answer == "both"


@pytest.mark.parametrize(
    "messages",
    [
        (said(1, "hi"),),
        (said(1, "hi"), answered(2, "It is", None)),
        (said(1, "hi"), called(2, "execute"), returned(3, "execute", failed=True)),
    ],
    ids=["before the answer", "in the answer", "in a tool"],
)
def test_a_turn_without_an_end_of_its_answer_was_interrupted(messages: tuple[object, ...]) -> None:
    outcome = ended(shown(*messages))  # pyright: ignore[reportArgumentType]
    assert (outcome.ending, outcome.exit_code) == ("interrupted", ExitCode.INTERRUPTED)


def test_a_proposed_plan_is_a_done_turn_with_its_file() -> None:
    messages = (
        said(1, "plan"),
        called(2, "propose_plan", text="Here."),
        returned(3, "propose_plan", PLAN),
    )
    outcome = ended(shown(*messages))
    assert (outcome.ending, outcome.exit_code, outcome.plan_file_id) == ("plan", 0, "f1")


def test_a_chat_that_waits_for_a_person_needs_action() -> None:
    call = asked(2)
    state = shown(
        said(1, "hi"), called(2, "execute"), status="requires_action", requested_calls=(call,)
    )
    outcome = ended(state)
    assert (outcome.ending, outcome.exit_code, outcome.calls) == ("needs_action", 6, (call,))


def test_a_failed_turn_says_why() -> None:
    error = ChatError(message="No key.", kind="missing_key", provider="anthropic")
    outcome = ended(shown(said(1, "hi"), status="error", error=error))
    assert (outcome.exit_code, outcome.reason) == (ExitCode.MODEL_ERROR, "No key.")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("usage_limit", ExitCode.LIMIT),
        ("overloaded", ExitCode.MODEL_ERROR),
        ("generic", ExitCode.MODEL_ERROR),
        ("output_limit", ExitCode.MODEL_ERROR),
        ("internal", ExitCode.FAILURE),
        ("crashed", ExitCode.FAILURE),
        ("queue_held", ExitCode.FAILURE),
    ],
)
def test_an_error_of_a_chat_has_an_exit_code(kind: str, code: ExitCode) -> None:
    assert exit_code_of_error(ChatError(message="x", kind=kind)) == code


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (401, "unauthorized", ExitCode.SIGN_IN),
        (403, "missing_scope", ExitCode.SIGN_IN),
        (403, "forbidden", ExitCode.FAILURE),
        (409, "usage_limit_exceeded", ExitCode.LIMIT),
        (409, "chat_busy", ExitCode.FAILURE),
        (400, "invalid_input", ExitCode.USAGE),
        (404, "not_found", ExitCode.FAILURE),
        (503, "unavailable", ExitCode.FAILURE),
    ],
)
def test_a_refusal_has_an_exit_code(status: int, code: str, exit_code: ExitCode) -> None:
    assert exit_code_of_refusal(status, code) == exit_code


@pytest.mark.parametrize("sent", [SENT, SentMessage(version=1)], ids=["sent", "new chat"])
def test_a_turn_longer_than_what_the_client_has_still_ends(sent: SentMessage) -> None:
    """A reset of the history brings only the newest messages."""
    rest = (returned(41, "execute"), called(42, "execute"), returned(43, "execute"))
    assert turn_outcome(shown(*rest, status="running", has_older=True), sent) is None
    outcome = ended(shown(*rest, answered(44, "Done."), has_older=True), sent)
    assert (outcome.ending, outcome.answer) == ("done", "Done.")


# A message that waited in the queue


def test_a_queued_message_has_no_outcome_while_the_chat_is_busy() -> None:
    state = shown(said(1, "a"), answered(2, "b"), status="running", queue=(queued(3, "next"),))
    assert turn_outcome(state, QUEUED) is None


def test_a_queued_message_is_found_in_history_by_its_content() -> None:
    messages = (answered(2, "b"), said(3, "of somebody else"), answered(4, "c"), said(5, "next"))
    assert turn_outcome(shown(*messages, status="running"), QUEUED) is None
    assert ended(shown(*messages, answered(6, "mine")), QUEUED).answer == "mine"


def test_a_message_that_left_the_queue_unanswered_is_a_failure() -> None:
    outcome = ended(shown(said(1, "a"), answered(2, "b")), QUEUED)
    assert (outcome.ending, outcome.exit_code) == ("failed", ExitCode.FAILURE)
    assert "left the queue" in outcome.reason


def test_a_message_behind_an_error_does_not_wait_for_ever() -> None:
    error = ChatError(message="Overloaded.", kind="overloaded")
    state = shown(answered(2, "b"), status="error", error=error, queue=(queued(3, "next"),))
    assert ended(state, QUEUED).exit_code == ExitCode.MODEL_ERROR
