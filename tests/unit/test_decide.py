"""The next action, over hand-written histories, in the order in which reasons are weighed."""

import pytest
from msgspec.structs import replace

from chatd.domain.chat.messages import Message, TokenUsage
from chatd.domain.chat.row import Chat
from chatd.domain.decisions import (
    CONTEXT_FULL_ERROR,
    PENDING_CALLS_MISMATCH_ERROR,
    Action,
    Compact,
    Fail,
    Finish,
    Generate,
    RequireAction,
    RunTools,
    TurnRules,
    next_action,
)
from chatd.domain.prompt.compaction import ContextFill
from tests.support.factories import WORKER, call, chat, message, pending, result, text

RULES = TurnRules(
    max_steps=3,
    client_tools=frozenset({"ask_client", "pick_file"}),
    exclusive_tools=frozenset({"propose_plan"}),
    stop_after_tools=frozenset({"propose_plan"}),
    context_limit=100,
)


def running(*calls: str, client: tuple[str, ...] = (), **columns: object) -> Chat:
    """A chat at work with these calls open, as "id" or "id:tool"."""
    open_ = tuple(
        pending(call_id, name or "execute", client=name in client)
        for call_id, _, name in (spec.partition(":") for spec in calls)
    )
    return chat(status="running", worker_id=WORKER, epoch=1, pending_calls=open_, **columns)


def user(message_id: int) -> Message:
    return message(message_id, "user", text())


def answer(message_id: int, tokens: int = 0) -> Message:
    return message(message_id, "assistant", text(), usage=TokenUsage(input_tokens=tokens))


def asks(message_id: int, *specs: str, tokens: int = 0) -> Message:
    """An answer that calls tools, as "id" or "id:tool"."""
    calls = [
        call(call_id, name or "execute")
        for call_id, _, name in (spec.partition(":") for spec in specs)
    ]
    usage = TokenUsage(input_tokens=tokens)
    return message(message_id, "assistant", text("let me see"), *calls, usage=usage)


def replies(message_id: int, call_id: str, name: str = "execute", *, ok: bool = True) -> Message:
    return message(message_id, "tool", result(call_id, name, is_error=not ok))


def summary(first_id: int) -> list[Message]:
    return [
        message(first_id, "user", text(), visibility="model", compressed=True),
        message(
            first_id + 1,
            "assistant",
            call("s", "chat_summarized"),
            visibility="user",
            compressed=True,
        ),
        message(first_id + 2, "tool", result("s", "chat_summarized"), compressed=True),
    ]


def deleted(row: Message) -> Message:
    return replace(row, deleted=True)


# 1 and 2: open calls


def test_open_calls_are_run_in_call_order() -> None:
    history = [user(1), asks(2, "a", "b")]
    assert next_action(history, running("a", "b"), RULES) == RunTools(calls=(call("a"), call("b")))


def test_only_the_calls_that_have_no_result_are_run() -> None:
    history = [user(1), asks(2, "a", "b", "c"), replies(3, "b")]
    assert next_action(history, running("a", "c"), RULES) == RunTools(calls=(call("a"), call("c")))


def test_a_call_without_arguments_is_run_too_and_fails_there() -> None:
    history = [user(1), message(2, "assistant", call("a", args=None))]
    assert next_action(history, running("a"), RULES) == RunTools(calls=(call("a", args=None),))


def test_what_the_provider_runs_is_not_ours_to_run() -> None:
    search = call("p", "web_search", provider_executed=True)
    history = [user(1), message(2, "assistant", search, call("a"))]
    assert next_action(history, running("a"), RULES) == RunTools(calls=(call("a"),))


def test_only_the_last_answer_can_have_open_calls() -> None:
    history = [user(1), asks(2, "a"), replies(3, "a"), asks(4, "a")]
    assert next_action(history, running("a"), RULES) == RunTools(calls=(call("a"),))


def test_our_own_calls_are_run_before_the_client_is_asked() -> None:
    history = [user(1), asks(2, "c:ask_client", "a")]
    row = running("c:ask_client", "a", client=("ask_client",))
    assert next_action(history, row, RULES) == RunTools(calls=(call("a"),))


def test_when_only_the_clients_calls_are_left_the_client_is_asked_for_all_of_them() -> None:
    history = [user(1), asks(2, "c:ask_client", "a", "d:pick_file"), replies(3, "a")]
    row = running("c:ask_client", "d:pick_file", client=("ask_client", "pick_file"))
    assert next_action(history, row, RULES) == RequireAction(
        calls=(call("c", "ask_client"), call("d", "pick_file"))
    )


@pytest.mark.parametrize("client", [(), ("ask_client",)])
def test_a_call_of_which_only_the_row_or_only_the_rules_say_it_is_the_clients_is_refused_by_us(
    client: tuple[str, ...],
) -> None:
    rules = replace(RULES, client_tools=frozenset[str]()) if client else RULES
    history = [user(1), asks(2, "c:ask_client")]
    row = running("c:ask_client", client=client)
    assert next_action(history, row, rules) == RunTools(calls=(call("c", "ask_client"),))


def test_an_exclusive_tool_called_alone_is_run() -> None:
    history = [user(1), asks(2, "x:propose_plan")]
    row = running("x:propose_plan")
    assert next_action(history, row, RULES) == RunTools(calls=(call("x", "propose_plan"),))


def test_an_exclusive_tool_called_with_others_refuses_the_whole_batch() -> None:
    history = [user(1), asks(2, "a", "x:propose_plan")]
    assert next_action(history, running("a", "x:propose_plan"), RULES) == RunTools(
        calls=(call("a"), call("x", "propose_plan")), refused=True
    )


def test_the_clients_calls_are_refused_with_the_batch_and_the_client_is_not_asked() -> None:
    history = [user(1), asks(2, "c:ask_client", "x:propose_plan")]
    row = running("c:ask_client", "x:propose_plan", client=("ask_client",))
    assert next_action(history, row, RULES) == RunTools(
        calls=(call("c", "ask_client"), call("x", "propose_plan")), refused=True
    )


@pytest.mark.parametrize(
    ("history", "row"),
    [
        pytest.param([user(1), asks(2, "a")], running(), id="the row lacks one"),
        pytest.param([user(1), answer(2)], running("a"), id="the row has one too many"),
        pytest.param([user(1), asks(2, "a")], running("b"), id="the row has another"),
    ],
)
def test_open_calls_that_do_not_match_the_row_fail_the_turn(
    history: list[Message], row: Chat
) -> None:
    assert next_action(history, row, RULES) == Fail(error=PENDING_CALLS_MISMATCH_ERROR)


def test_a_new_message_leaves_behind_a_call_that_nobody_answered() -> None:
    history = [user(1), asks(2, "a"), user(3)]
    assert next_action(history, running(), RULES) == Generate()


def test_calls_of_deleted_and_compressed_messages_are_not_open() -> None:
    history = [user(1), deleted(asks(2, "a")), *summary(3)]
    assert next_action(history, running(), RULES) == Generate()


# 3: compaction on demand


@pytest.mark.covers("compaction-6")
def test_a_requested_compaction_comes_before_the_end_of_the_turn() -> None:
    history = [user(1), answer(2, 10)]
    row = running(compaction_requested=True)
    assert next_action(history, row, RULES) == Compact(
        source="manual", fill=ContextFill(tokens=10, limit=100), threshold=70
    )


@pytest.mark.covers("compaction-6")
def test_a_requested_compaction_waits_for_open_calls() -> None:
    history = [user(1), asks(2, "a")]
    row = running("a", compaction_requested=True)
    assert next_action(history, row, RULES) == RunTools(calls=(call("a"),))


@pytest.mark.covers("compaction-3")
def test_a_requested_compaction_needs_neither_a_limit_nor_a_threshold() -> None:
    rules = TurnRules(context_limit=None, compaction_threshold=100)
    row = running(compaction_requested=True)
    assert next_action([user(1), answer(2)], row, rules) == Compact(
        source="manual", fill=ContextFill(), threshold=100
    )


@pytest.mark.covers("compaction-6")
def test_a_requested_compaction_of_nothing_ends_the_turn() -> None:
    history = [user(1), answer(2), *summary(3)]
    row = running(compaction_requested=True)
    assert next_action(history, row, RULES) == Finish(reason="complete")


# 4 to 6: the end of a turn


@pytest.mark.covers("commit-3")
def test_a_tool_that_ends_the_turn_ends_it() -> None:
    history = [user(1), asks(2, "x:propose_plan"), replies(3, "x", "propose_plan")]
    assert next_action(history, running(), RULES) == Finish(reason="stop_after_tool")


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            [user(1), asks(2, "x:propose_plan"), replies(3, "x", "propose_plan", ok=False)],
            id="it failed",
        ),
        pytest.param([user(1), asks(2, "a"), replies(3, "a")], id="another tool"),
        pytest.param(
            [user(1), asks(2, "x:propose_plan"), replies(3, "x", "propose_plan"), user(4)],
            id="of an earlier turn",
        ),
        pytest.param(
            [
                user(1),
                deleted(asks(2, "x:propose_plan")),
                deleted(replies(3, "x", "propose_plan")),
            ],
            id="deleted",
        ),
    ],
)
def test_otherwise_the_model_goes_on(history: list[Message]) -> None:
    assert next_action(history, running(), RULES) == Generate()


@pytest.mark.covers("commit-3")
def test_an_answer_without_calls_completes_the_turn() -> None:
    assert next_action([user(1), answer(2)], running(), RULES) == Finish(reason="complete")


def test_an_answer_with_only_the_providers_own_calls_completes_the_turn() -> None:
    search = (
        call("p", "web_search", provider_executed=True),
        result("p", "web_search", provider_executed=True),
    )
    history = [user(1), message(2, "assistant", *search, text())]
    assert next_action(history, running(), RULES) == Finish(reason="complete")


def test_an_answer_that_carries_a_result_of_ours_does_not_complete_the_turn() -> None:
    history = [user(1), message(2, "assistant", call("a"), result("a"))]
    assert next_action(history, running(), RULES) == Generate()


def test_a_summary_after_an_answer_does_not_reopen_the_turn() -> None:
    history = [user(1), answer(2), *summary(3)]
    assert next_action(history, running(), RULES) == Finish(reason="complete")


@pytest.mark.covers("commit-3")
def test_something_only_the_model_sees_begins_no_turn() -> None:
    note = message(3, "user", text("files changed"), visibility="model")
    history = [user(1), answer(2), note, answer(4), answer(5), replies(6, "z")]
    assert next_action(history, running(), RULES) == Finish(reason="max_steps")


@pytest.mark.covers("commit-3")
@pytest.mark.parametrize(
    ("steps", "expected"),
    [(2, Generate()), (3, Finish(reason="max_steps")), (4, Finish(reason="max_steps"))],
)
def test_a_turn_has_at_most_so_many_steps(steps: int, expected: Action) -> None:
    history = [user(1), asks(2, "old"), replies(3, "old"), user(4)]
    for step in range(steps):
        history += [asks(5 + 2 * step, "a"), replies(6 + 2 * step, "a")]
    assert next_action(history, running(), RULES) == expected


def test_a_summary_in_the_turn_does_not_start_its_count_again() -> None:
    history = [user(1), asks(2, "a"), replies(3, "a"), *summary(4)]
    history += [asks(7, "b"), replies(8, "b"), asks(9, "c"), replies(10, "c")]
    assert next_action(history, running(), RULES) == Finish(reason="max_steps")


@pytest.mark.parametrize("max_steps", [1, 0, -1])
def test_a_turn_has_at_least_one_step(max_steps: int) -> None:
    rules = TurnRules(max_steps=max_steps)
    assert next_action([user(1)], running(), rules) == Generate()
    done = [user(1), asks(2, "a"), replies(3, "a")]
    assert next_action(done, running(), rules) == Finish(reason="max_steps")


def test_by_default_a_turn_may_be_long_and_no_limit_of_context_is_known() -> None:
    history = [user(1)]
    for step in range(1199):
        history += [asks(2 + 2 * step, "a", tokens=10**9), replies(3 + 2 * step, "a")]
    assert next_action(history, running(), TurnRules()) == Generate()
    history += [asks(5000, "a"), replies(5001, "a")]
    assert next_action(history, running(), TurnRules()) == Finish(reason="max_steps")


# 7 and 8: before a model call


def test_a_full_context_is_compacted_before_the_next_call() -> None:
    history = [user(1), answer(2, 70), user(3)]
    assert next_action(history, running(), RULES) == Compact(
        source="auto", fill=ContextFill(tokens=70, limit=100), threshold=70
    )


def test_a_finished_turn_is_not_compacted_until_the_next_message() -> None:
    history = [user(1), answer(2, 99)]
    assert next_action(history, running(), RULES) == Finish(reason="complete")


def test_after_the_summary_the_model_is_called() -> None:
    history = [user(1), asks(2, "a", tokens=90), replies(3, "a"), *summary(4)]
    assert next_action(history, running(), RULES) == Generate()


@pytest.mark.covers("compaction-5")
def test_a_summary_that_did_not_help_fails_the_turn() -> None:
    history = [user(1), *summary(2), asks(5, "a", tokens=80), replies(6, "a")]
    assert next_action(history, running(), RULES) == Fail(error=CONTEXT_FULL_ERROR)


def test_a_threshold_that_makes_no_sense_is_the_default() -> None:
    rules = replace(RULES, compaction_threshold=250)
    assert next_action([user(1), answer(2, 70), user(3)], running(), rules) == Compact(
        source="auto", fill=ContextFill(tokens=70, limit=100), threshold=70
    )


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([user(1)], id="a prompt"),
        pytest.param([user(1), answer(2), user(3)], id="the next prompt"),
        pytest.param([user(1), asks(2, "a"), replies(3, "a")], id="a result"),
        pytest.param([user(1), deleted(answer(2)), deleted(user(3))], id="after an edit"),
        pytest.param([message(1, "system", text(), visibility="model")], id="instructions only"),
        pytest.param([], id="nothing"),
    ],
)
def test_otherwise_the_model_is_called(history: list[Message]) -> None:
    assert next_action(history, running(), RULES) == Generate()
