"""Transitions for answers to pending calls: client results, a person's answers, approvals.

The chat stays in A until no call waits. A denied call, an answered question and a client's result
get their tool result at once; an approval is a mark on the call, which then runs.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.chat.call_waits import (
    answer_questions,
    answerable_calls,
    call_fingerprint,
    read_questions,
    wait_of,
    waiting_calls,
)
from chatd.domain.chat.change import CallDecision, Change, error_result, require_allowed
from chatd.domain.chat.commands import AnswerCalls, CallAnswer, ClientResult, SubmitToolResults
from chatd.domain.chat.messages import Draft, PendingCall
from chatd.domain.chat.parts import ToolResultPart, validate_json
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import Transition
from chatd.domain.errors import CallNotWaiting, Forbidden, InvalidInput
from chatd.domain.ids import ToolCallId, UserId, WorkerId
from chatd.domain.text import clip, replace_surrogates
from chatd.domain.tool_policy.decision import decide, rule_for_call
from chatd.domain.tool_policy.rules import PolicyLayer, ToolPolicy, ToolRule, check_rule

MAX_REASON_CHARS: Final = 4000


def submit_tool_results(chat: Chat, command: SubmitToolResults, worker: WorkerId | None) -> Change:
    """A -> R|P, or A if other calls wait. The results must answer each client call once."""
    require_allowed(chat, Transition.SUBMIT_TOOL_RESULTS)
    calls = tuple(call for call in waiting_calls(chat) if wait_of(call) == "client")
    answers = _match_results(calls, command.results)
    drafts = {call.id: _client_result(call, answers[call.id]) for call in calls}
    return continue_after(Change.of(chat), drafts, chat.pending_calls, worker)


def answer_calls(chat: Chat, command: AnswerCalls, worker: WorkerId | None) -> Change:
    """A -> R|P, or A if other calls wait. Raises CallNotWaiting if one is answered already."""
    require_allowed(chat, Transition.ANSWER_CALLS)
    asked = {call.id: call for call in answerable_calls(chat)}
    if not command.answers:
        raise InvalidInput("answers", "at least one answer")
    change, results = Change.of(chat), dict[ToolCallId, Draft]()
    marked = {call.id: call for call in chat.pending_calls}
    for answer in command.answers:
        call = asked.pop(answer.tool_call_id, None)
        is_same = answer.fingerprint in (
            None,
            None if call is None else call_fingerprint(chat, call),
        )
        if call is None or not is_same:
            raise CallNotWaiting(answer.tool_call_id)
        _check_answer(call, answer)
        change = change.record_decision(_decision(answer, command.answered_by))
        if answer.decision == "approve":
            marked[call.id] = _approved(call, command.answered_by)
            change = _remember(change, call, answer, command.answered_by)
        else:
            results[call.id] = _result(call, answer)
    return continue_after(change, results, marked.values(), worker)


def continue_after(
    change: Change,
    results: Mapping[ToolCallId, Draft],
    calls: Iterable[PendingCall],
    worker: WorkerId | None,
) -> Change:
    """Append the results; run the chat if no call waits any more."""
    left = tuple(call for call in calls if call.id not in results)
    ordered = tuple(results[call.id] for call in change.after.pending_calls if call.id in results)
    change = change.append_all(ordered, left)
    if any(wait_of(call) is not None for call in left):
        return change.wait_for_action()
    if not left:
        change = change.join_steering()
    return change.mark_touched().run(worker)


def _check_answer(call: PendingCall, answer: CallAnswer) -> None:
    kind = wait_of(call) or "approval"
    fitting = {"approval": ("approve", "deny"), "question": ("answer", "deny")}
    if answer.decision not in fitting.get(kind, ()):
        needs = {"client": "a tool result", "question": "an answer", "approval": "an approval"}
        raise InvalidInput(
            "answers", f"{call.id!r} waits for {needs[kind]}, not {answer.decision!r}"
        )
    if len(answer.reason) > MAX_REASON_CHARS:
        raise InvalidInput("answers", f"a reason has at most {MAX_REASON_CHARS} characters")


def _approved(call: PendingCall, by: UserId) -> PendingCall:
    return msgspec.structs.replace(call, approved_by=by)


def _decision(answer: CallAnswer, by: UserId) -> CallDecision:
    return CallDecision(tool_call_id=answer.tool_call_id, decision=answer.decision, answered_by=by)


def _remember(change: Change, call: PendingCall, answer: CallAnswer, by: UserId) -> Change:
    """Add the chat's rule. Only the owner may change what the chat does without asking."""
    if not answer.always:
        return change
    if by != change.after.owner_id:
        raise Forbidden("Only the owner of the chat can stop it from asking.")
    if not call.always:
        raise InvalidInput(
            "answers", "a policy above the chat's asks for this call every time: approve it once"
        )
    rule = rule_for_call(call.name, call.args)
    if answer.rule_args is not None:
        rule = ToolRule(tool=call.name, action="auto", args=answer.rule_args)
    if rule is None or not _covers(check_rule(rule, "answers.rule_args"), call):
        raise InvalidInput("answers", "the rule does not match the call that it is to allow")
    return change.add_rule(rule)


def _covers(rule: ToolRule, call: PendingCall) -> bool:
    layer = PolicyLayer(name="chat", policy=ToolPolicy(rules=(rule,)))
    return rule.action == "auto" and decide((layer,), call.name, call.args).rule is not None


def _result(call: PendingCall, answer: CallAnswer) -> Draft:
    reason = clip(replace_surrogates(answer.reason).strip(), MAX_REASON_CHARS)
    if answer.decision == "deny":
        return error_result(call, _denied_text(call, reason))
    output = answer_questions(read_questions(call.args), answer.replies)
    return tool_result(call, output)


def _denied_text(call: PendingCall, reason: str) -> str:
    if wait_of(call) == "question":
        said = f" The user said: {reason}" if reason else ""
        return f"The user did not answer the questions.{said} Continue with your best judgement."
    said = f" The reason: {reason}" if reason else ""
    return (
        f"The user denied this call, so it did not run.{said}"
        " Do not repeat it unchanged; do something else, or say why it is needed."
    )


def tool_result(call: PendingCall, output: Raw, *, is_error: bool = False) -> Draft:
    part = ToolResultPart(
        tool_call_id=call.id,
        tool_name=call.name,
        result=output,
        is_error=is_error,
        changed_args=UNSET if call.hooks is None else call.hooks.args,
    )
    return Draft(role="tool", content=(part,))


def _match_results(
    calls: tuple[PendingCall, ...], results: tuple[ClientResult, ...]
) -> dict[str, ClientResult]:
    answers: dict[str, ClientResult] = {}
    pending_ids = {call.id for call in calls}
    for result in results:
        if result.tool_call_id not in pending_ids:
            raise InvalidInput("results", f"no pending tool call {result.tool_call_id!r}")
        if result.tool_call_id in answers:
            raise InvalidInput("results", f"tool call {result.tool_call_id!r} answered twice")
        answers[result.tool_call_id] = result
    missing = sorted(pending_ids - answers.keys())
    if missing:
        raise InvalidInput("results", f"no result for tool calls {', '.join(missing)}")
    return answers


def _client_result(call: PendingCall, answer: ClientResult) -> Draft:
    try:
        output = validate_json(answer.output)
    except ValueError as error:
        raise InvalidInput("results", f"output of {call.id!r} is {error}") from error
    return tool_result(call, output, is_error=answer.is_error)
