"""The next action for hand-written histories, in the order in which the rules apply."""

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
    """A running chat with these pending calls, as "id" or "id:tool"."""
    pending_calls = tuple(
        pending(call_id, name or "execute", client=name in client)
        for call_id, _, name in (spec.partition(":") for spec in calls)
    )
    return chat(status="running", worker_id=WORKER, epoch=1, pending_calls=pending_calls, **columns)


def user(message_id: int) -> Message:
    return message(message_id, "user", text())


def answer(message_id: int, tokens: int = 0) -> Message:
    return message(message_id, "assistant", text(), usage=TokenUsage(input_tokens=tokens))


def calling(message_id: int, *specs: str, tokens: int = 0) -> Message:
    """An answer that calls tools, as "id" or "id:tool"."""
    calls = [
        call(call_id, name or "execute")
        for call_id, _, name in (spec.partition(":") for spec in specs)
    ]
    usage = TokenUsage(input_tokens=tokens)
    return message(message_id, "assistant", text("let me see"), *calls, usage=usage)


def result_of(message_id: int, call_id: str, name: str = "execute", *, ok: bool = True) -> Message:
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


# 1 and 2: pending calls


def test_pending_calls_are_run_in_call_order() -> None:
    history = [user(1), calling(2, "a", "b")]
    assert next_action(history, running("a", "b"), RULES) == RunTools(calls=(call("a"), call("b")))


def test_only_the_calls_that_have_no_result_are_run() -> None:
    history = [user(1), calling(2, "a", "b", "c"), result_of(3, "b")]
    assert next_action(history, running("a", "c"), RULES) == RunTools(calls=(call("a"), call("c")))


def test_a_call_without_arguments_is_run_too_and_fails_there() -> None:
    history = [user(1), message(2, "assistant", call("a", args=None))]
    assert next_action(history, running("a"), RULES) == RunTools(calls=(call("a", args=None),))


def test_provider_executed_calls_are_not_run() -> None:
    search = call("p", "web_search", provider_executed=True)
    history = [user(1), message(2, "assistant", search, call("a"))]
    assert next_action(history, running("a"), RULES) == RunTools(calls=(call("a"),))


def test_only_the_last_answer_can_have_pending_calls() -> None:
    history = [user(1), calling(2, "a"), result_of(3, "a"), calling(4, "a")]
    assert next_action(history, running("a"), RULES) == RunTools(calls=(call("a"),))


def test_local_calls_run_before_the_client_is_asked() -> None:
    history = [user(1), calling(2, "c:ask_client", "a")]
    row = running("c:ask_client", "a", client=("ask_client",))
    assert next_action(history, row, RULES) == RunTools(calls=(call("a"),))


def test_when_only_the_clients_calls_are_left_the_client_is_asked_for_all_of_them() -> None:
    history = [user(1), calling(2, "c:ask_client", "a", "d:pick_file"), result_of(3, "a")]
    row = running("c:ask_client", "d:pick_file", client=("ask_client", "pick_file"))
    assert next_action(history, row, RULES) == RequireAction(
        calls=(call("c", "ask_client"), call("d", "pick_file"))
    )


@pytest.mark.parametrize("client", [(), ("ask_client",)])
def test_a_client_call_that_row_and_rules_disagree_on_is_refused_by_the_runner(
    client: tuple[str, ...],
) -> None:
    rules = replace(RULES, client_tools=frozenset[str]()) if client else RULES
    history = [user(1), calling(2, "c:ask_client")]
    row = running("c:ask_client", client=client)
    assert next_action(history, row, rules) == RunTools(calls=(call("c", "ask_client"),))


def test_an_exclusive_tool_called_alone_is_run() -> None:
    history = [user(1), calling(2, "x:propose_plan")]
    row = running("x:propose_plan")
    assert next_action(history, row, RULES) == RunTools(calls=(call("x", "propose_plan"),))


def test_an_exclusive_tool_called_with_others_refuses_the_whole_batch() -> None:
    history = [user(1), calling(2, "a", "x:propose_plan")]
    assert next_action(history, running("a", "x:propose_plan"), RULES) == RunTools(
        calls=(call("a"), call("x", "propose_plan")), refused=True
    )


def test_the_clients_calls_are_refused_with_the_batch_and_the_client_is_not_asked() -> None:
    history = [user(1), calling(2, "c:ask_client", "x:propose_plan")]
    row = running("c:ask_client", "x:propose_plan", client=("ask_client",))
    assert next_action(history, row, RULES) == RunTools(
        calls=(call("c", "ask_client"), call("x", "propose_plan")), refused=True
    )


@pytest.mark.parametrize(
    ("history", "row"),
    [
        pytest.param([user(1), calling(2, "a")], running(), id="the row lacks one"),
        pytest.param([user(1), answer(2)], running("a"), id="the row has one too many"),
        pytest.param([user(1), calling(2, "a")], running("b"), id="the row has another"),
    ],
)
def test_pending_calls_that_do_not_match_the_row_fail_the_turn(
    history: list[Message], row: Chat
) -> None:
    assert next_action(history, row, RULES) == Fail(error=PENDING_CALLS_MISMATCH_ERROR)


def test_a_new_message_ends_unanswered_calls() -> None:
    history = [user(1), calling(2, "a"), user(3)]
    assert next_action(history, running(), RULES) == Generate()


def test_calls_of_deleted_and_compressed_messages_are_not_pending() -> None:
    history = [user(1), deleted(calling(2, "a")), *summary(3)]
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
def test_a_requested_compaction_waits_for_pending_calls() -> None:
    history = [user(1), calling(2, "a")]
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
    history = [user(1), calling(2, "x:propose_plan"), result_of(3, "x", "propose_plan")]
    assert next_action(history, running(), RULES) == Finish(reason="stop_after_tool")


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            [user(1), calling(2, "x:propose_plan"), result_of(3, "x", "propose_plan", ok=False)],
            id="it failed",
        ),
        pytest.param([user(1), calling(2, "a"), result_of(3, "a")], id="another tool"),
        pytest.param(
            [user(1), calling(2, "x:propose_plan"), result_of(3, "x", "propose_plan"), user(4)],
            id="of an earlier turn",
        ),
        pytest.param(
            [
                user(1),
                deleted(calling(2, "x:propose_plan")),
                deleted(result_of(3, "x", "propose_plan")),
            ],
            id="deleted",
        ),
    ],
)
def test_the_model_is_called_after_other_tool_results(history: list[Message]) -> None:
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


def test_an_answer_with_a_local_result_does_not_complete_the_turn() -> None:
    history = [user(1), message(2, "assistant", call("a"), result("a"))]
    assert next_action(history, running(), RULES) == Generate()


def test_a_summary_after_an_answer_does_not_reopen_the_turn() -> None:
    history = [user(1), answer(2), *summary(3)]
    assert next_action(history, running(), RULES) == Finish(reason="complete")


@pytest.mark.covers("commit-3")
def test_a_message_for_the_model_alone_starts_no_turn() -> None:
    note = message(3, "user", text("files changed"), visibility="model")
    history = [user(1), answer(2), note, answer(4), answer(5), result_of(6, "z")]
    assert next_action(history, running(), RULES) == Finish(reason="max_steps")


@pytest.mark.covers("commit-3")
@pytest.mark.parametrize(
    ("steps", "expected"),
    [(2, Generate()), (3, Finish(reason="max_steps")), (4, Finish(reason="max_steps"))],
)
def test_a_turn_has_at_most_max_steps(steps: int, expected: Action) -> None:
    history = [user(1), calling(2, "old"), result_of(3, "old"), user(4)]
    for step in range(steps):
        history += [calling(5 + 2 * step, "a"), result_of(6 + 2 * step, "a")]
    assert next_action(history, running(), RULES) == expected


def test_a_summary_does_not_reset_the_count_of_steps() -> None:
    history = [user(1), calling(2, "a"), result_of(3, "a"), *summary(4)]
    history += [calling(7, "b"), result_of(8, "b"), calling(9, "c"), result_of(10, "c")]
    assert next_action(history, running(), RULES) == Finish(reason="max_steps")


@pytest.mark.parametrize("max_steps", [1, 0, -1])
def test_a_turn_has_at_least_one_step(max_steps: int) -> None:
    rules = TurnRules(max_steps=max_steps)
    assert next_action([user(1)], running(), rules) == Generate()
    done = [user(1), calling(2, "a"), result_of(3, "a")]
    assert next_action(done, running(), rules) == Finish(reason="max_steps")


def test_the_default_rules_allow_long_turns_and_know_no_context_limit() -> None:
    history = [user(1)]
    for step in range(1199):
        history += [calling(2 + 2 * step, "a", tokens=10**9), result_of(3 + 2 * step, "a")]
    assert next_action(history, running(), TurnRules()) == Generate()
    history += [calling(5000, "a"), result_of(5001, "a")]
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
    history = [user(1), calling(2, "a", tokens=90), result_of(3, "a"), *summary(4)]
    assert next_action(history, running(), RULES) == Generate()


@pytest.mark.covers("compaction-5")
def test_a_summary_that_did_not_help_fails_the_turn() -> None:
    history = [user(1), *summary(2), calling(5, "a", tokens=80), result_of(6, "a")]
    assert next_action(history, running(), RULES) == Fail(error=CONTEXT_FULL_ERROR)


def test_an_invalid_threshold_is_replaced_by_the_default() -> None:
    rules = replace(RULES, compaction_threshold=250)
    assert next_action([user(1), answer(2, 70), user(3)], running(), rules) == Compact(
        source="auto", fill=ContextFill(tokens=70, limit=100), threshold=70
    )


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([user(1)], id="a prompt"),
        pytest.param([user(1), answer(2), user(3)], id="the next prompt"),
        pytest.param([user(1), calling(2, "a"), result_of(3, "a")], id="a result"),
        pytest.param([user(1), deleted(answer(2)), deleted(user(3))], id="after an edit"),
        pytest.param([message(1, "system", text(), visibility="model")], id="instructions only"),
        pytest.param([], id="nothing"),
    ],
)
def test_the_model_is_called_in_all_other_cases(history: list[Message]) -> None:
    assert next_action(history, running(), RULES) == Generate()
