"""The next action for hand-written histories, in the order in which the rules apply."""

from typing import Literal

import pytest
from msgspec.structs import replace

from chatd.domain.answer.assembler import EMPTY_OBJECT
from chatd.domain.chat.call_waits import QUESTION_TOOL, CallWait, WaitKind
from chatd.domain.chat.messages import Message, TokenUsage
from chatd.domain.chat.parts import ToolCallPart
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
from chatd.domain.tool_policy.decision import decide, denial_text
from chatd.domain.tool_policy.rules import PolicyLayer, ToolPolicy, ToolRule
from tests.support.factories import OWNER, WORKER, call, chat, message, pending, result, text
from tests.support.seeds import QUESTIONS
from tests.support.tables import table

RULES = TurnRules(
    max_steps=3,
    client_tools=frozenset({"ask_client", "pick_file"}),
    stop_after_tools=frozenset({"propose_plan"}),
    context_limit=100,
)
MISMATCH = Fail(error=PENDING_CALLS_MISMATCH_ERROR)
COMPLETE = Finish(reason="complete")
SEARCH = call("p", "web_search", provider_executed=True)
FOUND = result("p", "web_search", provider_executed=True)


def running(*calls: str, client: tuple[str, ...] = (), **columns: object) -> Chat:
    """A running chat with these pending calls, as "id" or "id:tool"."""
    pending_calls = tuple(
        pending(call_id, name or "execute", client=name in client)
        for call_id, _, name in (spec.partition(":") for spec in calls)
    )
    return chat(status="running", worker_id=WORKER, epoch=1, pending_calls=pending_calls, **columns)


def history(lines: str) -> list[Message]:
    """Numbered messages, such as "user, calls@90 a b:tool, done a": an answer of 90 tokens that
    calls two tools, and the result of the first."""
    rows: list[Message] = []
    for line in lines.split(", ") if lines else ():
        rows += _messages(len(rows) + 1, *line.split())
    return rows


def _messages(first_id: int, kind: str, *specs: str) -> list[Message]:
    kind, _, tokens = kind.partition("@")
    named = [(call_id, name or "execute") for call_id, _, name in (s.partition(":") for s in specs)]
    match kind:
        case "user":
            return [message(first_id, "user", text())]
        case "answer" | "calls":
            calls = [call(call_id, name) for call_id, name in named]
            usage = TokenUsage(input_tokens=int(tokens or 0))
            return [message(first_id, "assistant", text("let me see"), *calls, usage=usage)]
        case "done" | "failed":
            ((call_id, name),) = named
            return [message(first_id, "tool", result(call_id, name, is_error=kind == "failed"))]
        case "deleted":
            return [replace(row, deleted=True) for row in _messages(first_id, *specs)]
        case _:
            assert kind == "summary"
            called = call("s", "chat_summarized")
            columns = {"visibility": "user", "compressed": True}
            return [
                message(first_id, "user", text(), visibility="model", compressed=True),
                message(first_id + 1, "assistant", called, **columns),
                message(first_id + 2, "tool", result("s", "chat_summarized"), compressed=True),
            ]


def run(*calls: str) -> RunTools:
    specs = (spec.partition(":") for spec in calls)
    found = tuple(call(call_id, name or "execute") for call_id, _, name in specs)
    return RunTools(calls=found)


def asked(*calls: str, kind: WaitKind, timeout_s: float, always: bool = False) -> RequireAction:
    found = run(*calls).calls
    waits = tuple(
        CallWait(
            call_id=it.tool_call_id, kind=kind, timeout_s=timeout_s, args=it.args, always=always
        )
        for it in found
    )
    return RequireAction(calls=found, waits=waits)


def approved(row: Chat) -> Chat:
    calls = tuple(replace(it, approved_by=OWNER) for it in row.pending_calls)
    return replace(row, pending_calls=calls)


CLIENT = ("ask_client", "pick_file")
ALONE = "user, calls x:propose_plan"


@table(
    "messages row action",
    {
        "in call order": ("user, calls a b", running("a", "b"), run("a", "b")),
        "only those without a result": (
            "user, calls a b c, done b",
            running("a", "c"),
            run("a", "c"),
        ),
        "only those of the last answer": ("user, calls a, done a, calls a", running("a"), run("a")),
        "local ones before the client is asked": (
            "user, calls c:ask_client a",
            running("c:ask_client", "a", client=CLIENT),
            run("a"),
        ),
        "when only the client's are left the client is asked for all of them": (
            "user, calls c:ask_client a d:pick_file, done a",
            running("c:ask_client", "d:pick_file", client=CLIENT),
            asked("c:ask_client", "d:pick_file", kind="client", timeout_s=300),
        ),
        "a new message ends unanswered ones": ("user, calls a, user", running(), Generate()),
        "those of deleted and compressed messages are not pending": (
            "user, deleted calls a, summary",
            running(),
            Generate(),
        ),
        "a mismatch: the row lacks one": ("user, calls a", running(), MISMATCH),
        "a mismatch: the row has one too many": ("user, answer", running("a"), MISMATCH),
        "a mismatch: the row has another": ("user, calls a", running("b"), MISMATCH),
    },
)
def test_pending_calls_are_run(messages: str, row: Chat, action: Action) -> None:
    assert next_action(history(messages), row, RULES) == action


@pytest.mark.parametrize(
    "called",
    [
        pytest.param((call("a", args=None),), id="without arguments: it fails there"),
        pytest.param((SEARCH, call("a")), id="beside a provider-executed call, which is not run"),
    ],
)
def test_unusual_calls_are_run(called: tuple[ToolCallPart, ...]) -> None:
    rows = [*history("user"), message(2, "assistant", *called)]
    assert next_action(rows, running("a"), RULES) == RunTools(calls=called[-1:])


@pytest.mark.parametrize("client", [(), ("ask_client",)])
def test_a_client_call_that_row_and_rules_disagree_on_is_refused_by_the_runner(
    client: tuple[str, ...],
) -> None:
    rules = replace(RULES, client_tools=frozenset[str]()) if client else RULES
    row = running("c:ask_client", client=client)
    assert next_action(history("user, calls c:ask_client"), row, rules) == run("c:ask_client")


ASK = PolicyLayer(
    name="user",
    policy=ToolPolicy(
        rules=(
            ToolRule(tool="execute", action="ask"),
            ToolRule(tool="ask_client", action="ask"),
            ToolRule(tool="forbidden", action="deny", reason="Never."),
        )
    ),
)
ASKING = replace(
    RULES, policy=(ASK,), approval_timeout_s=60.0, client_timeouts_s={"pick_file": 20.0}
)
DENIAL = denial_text(decide((ASK,), "forbidden", EMPTY_OBJECT))


@table(
    "messages row action",
    {
        "a call to approve is asked for": (
            "user, calls a",
            running("a"),
            asked("a", kind="approval", timeout_s=60, always=True),
        ),
        "calls that need no approval run first": (
            "user, calls a b:read_file",
            running("a", "b:read_file"),
            run("b:read_file"),
        ),
        "an approved call runs": ("user, calls a", approved(running("a")), run("a")),
        "a denied call gets its result at once, and nothing waits for it": (
            "user, calls a f:forbidden",
            running("a", "f:forbidden"),
            replace(run("f:forbidden"), denied={"f": DENIAL}),
        ),
        "a call that was approved and is denied now is not run": (
            "user, calls f:forbidden",
            approved(running("f:forbidden")),
            replace(run("f:forbidden"), denied={"f": DENIAL}),
        ),
        "a client's call is approved before the client is asked": (
            "user, calls c:ask_client",
            running("c:ask_client", client=CLIENT),
            asked("c:ask_client", kind="approval", timeout_s=60, always=True),
        ),
        "an approved client's call waits for the client": (
            "user, calls c:ask_client",
            approved(running("c:ask_client", client=CLIENT)),
            asked("c:ask_client", kind="client", timeout_s=300),
        ),
        "a client tool has its own time": (
            "user, calls d:pick_file",
            running("d:pick_file", client=CLIENT),
            asked("d:pick_file", kind="client", timeout_s=20),
        ),
    },
)
def test_a_policy_decides_which_calls_run(messages: str, row: Chat, action: Action) -> None:
    assert next_action(history(messages), row, ASKING) == action


@pytest.mark.parametrize("args", ["nonsense", None])
def test_a_call_that_cannot_run_is_not_asked_for(args: str | None) -> None:
    called = call("a", args=args)
    rows = [*history("user"), message(2, "assistant", called)]
    assert next_action(rows, running("a"), ASKING) == RunTools(calls=(called,))


@pytest.mark.parametrize(("args", "is_asked"), [(QUESTIONS, True), ('{"questions":[]}', False)])
def test_questions_are_asked_if_they_can_be(args: str, *, is_asked: bool) -> None:
    called = call("q", QUESTION_TOOL, args=args)
    rows = [*history("user"), message(2, "assistant", called)]
    rules = replace(ASKING, question_tools=frozenset({QUESTION_TOOL}), question_timeout_s=7.0)
    row = running(f"q:{QUESTION_TOOL}")
    wait = CallWait(call_id=called.tool_call_id, kind="question", timeout_s=7.0, args=called.args)
    expected = RequireAction(calls=(called,), waits=(wait,))
    assert next_action(rows, row, rules) == (expected if is_asked else RunTools(calls=(called,)))


def compact(source: Literal["auto", "manual"], tokens: int | None, threshold: int = 70) -> Compact:
    fill = ContextFill() if tokens is None else ContextFill(tokens=tokens, limit=100)
    return Compact(source=source, fill=fill, threshold=threshold)


NO_LIMIT = TurnRules(context_limit=None, compaction_threshold=100)


@pytest.mark.covers("compaction-3", "compaction-6")
@table(
    "messages row rules action",
    {
        "comes before the end of the turn": (
            "user, answer@10",
            running(),
            RULES,
            compact("manual", 10),
        ),
        "waits for pending calls": ("user, calls a", running("a"), RULES, run("a")),
        "needs neither a limit nor a threshold": (
            "user, answer",
            running(),
            NO_LIMIT,
            compact("manual", None, 100),
        ),
        "of nothing ends the turn": ("user, answer, summary", running(), RULES, COMPLETE),
    },
)
def test_a_requested_compaction(messages: str, row: Chat, rules: TurnRules, action: Action) -> None:
    row = replace(row, compaction_requested=True)
    assert next_action(history(messages), row, rules) == action


PROPOSED = f"{ALONE}, done x:propose_plan"
THREE_STEPS = "user, calls a, done a, summary, calls b, done b, calls c, done c"


@pytest.mark.covers("commit-3", "compaction-5")
@table(
    "messages action",
    {
        # The end of a turn
        "a tool that ends the turn ends it": (PROPOSED, Finish(reason="stop_after_tool")),
        "not if it failed": (f"{ALONE}, failed x:propose_plan", Generate()),
        "not another tool": ("user, calls a, done a", Generate()),
        "not that of an earlier turn": (f"{PROPOSED}, user", Generate()),
        "not a deleted one": (
            "user, deleted calls x:propose_plan, deleted done x:propose_plan",
            Generate(),
        ),
        "an answer without calls completes the turn": ("user, answer", COMPLETE),
        "a summary after an answer does not reopen the turn": ("user, answer, summary", COMPLETE),
        "a summary does not reset the count of steps": (THREE_STEPS, Finish(reason="max_steps")),
        # Before a model call
        "a full context is compacted": ("user, answer@70, user", compact("auto", 70)),
        "a finished turn is not compacted until the next message": ("user, answer@99", COMPLETE),
        "after the summary the model is called": ("user, calls@90 a, done a, summary", Generate()),
        "a summary that did not help fails the turn": (
            "user, summary, calls@95 a, done a",
            Fail(error=CONTEXT_FULL_ERROR),
        ),
        "a summary that did not help is not repeated while there is room": (
            "user, summary, calls@80 a, done a",
            Generate(),
        ),
        # All other cases
        "the model answers a prompt": ("user", Generate()),
        "the model answers the next prompt": ("user, answer, user", Generate()),
        "the model is called after an edit": ("user, deleted answer, deleted user", Generate()),
        "the model is called without a message": ("", Generate()),
    },
)
def test_the_history_decides(messages: str, action: Action) -> None:
    assert next_action(history(messages), running(), RULES) == action


@table(
    "last action",
    {
        "only the provider's own calls: complete": (
            message(2, "assistant", SEARCH, FOUND, text()),
            COMPLETE,
        ),
        "a local result: not complete": (
            message(2, "assistant", call("a"), result("a")),
            Generate(),
        ),
        "instructions only": (message(1, "system", text(), visibility="model"), Generate()),
    },
)
def test_the_last_message_decides(last: Message, action: Action) -> None:
    rows = [last] if last.role == "system" else [*history("user"), last]
    assert next_action(rows, running(), RULES) == action


@pytest.mark.covers("commit-3")
def test_a_message_for_the_model_alone_starts_no_turn() -> None:
    rows = history("user, answer, user, answer, answer, done z")
    rows[2] = message(3, "user", text("files changed"), visibility="model")
    assert next_action(rows, running(), RULES) == Finish(reason="max_steps")


@pytest.mark.covers("commit-3")
@pytest.mark.parametrize(
    ("steps", "expected"),
    [(2, Generate()), (3, Finish(reason="max_steps")), (4, Finish(reason="max_steps"))],
)
def test_a_turn_has_at_most_max_steps(steps: int, expected: Action) -> None:
    rows = history("user, calls old, done old, user" + ", calls a, done a" * steps)
    assert next_action(rows, running(), RULES) == expected


@pytest.mark.parametrize("max_steps", [1, 0, -1])
def test_a_turn_has_at_least_one_step(max_steps: int) -> None:
    rules = TurnRules(max_steps=max_steps)
    assert next_action(history("user"), running(), rules) == Generate()
    done = history("user, calls a, done a")
    assert next_action(done, running(), rules) == Finish(reason="max_steps")


def test_the_default_rules_allow_long_turns_and_know_no_context_limit() -> None:
    steps = "user" + ", calls@199999 a, done a" * 1199
    assert next_action(history(steps), running(), TurnRules()) == Generate()
    rows = history(f"{steps}, calls a, done a")
    assert next_action(rows, running(), TurnRules()) == Finish(reason="max_steps")


def test_an_invalid_threshold_is_replaced_by_the_default() -> None:
    rules = replace(RULES, compaction_threshold=250)
    rows = history("user, answer@70, user")
    assert next_action(rows, running(), rules) == compact("auto", 70)


SURPLUS = "Not run: of the calls of one answer the first 2 run, and 4 are kept."


def test_calls_beyond_the_limit_of_an_answer_do_not_run_and_nobody_is_asked_for_them() -> None:
    rules = replace(RULES, max_calls=2, question_tools=frozenset({QUESTION_TOOL}))
    names = ("a", "b", "c:ask_client")
    found = next_action(history("user, calls a b c:ask_client"), running(*names), rules)
    assert isinstance(found, RunTools)
    assert found.calls == run(*names).calls
    assert {call_id: text[: len(SURPLUS)] for call_id, text in found.denied.items()} == {
        "c": SURPLUS
    }


def test_a_call_beyond_the_limit_stays_refused_when_the_others_have_their_results() -> None:
    lines = "user, calls a b c d, done a, done b, done c"
    found = next_action(history(lines), running("d"), replace(RULES, max_calls=2))
    assert isinstance(found, RunTools)
    assert list(found.denied) == ["d"]
