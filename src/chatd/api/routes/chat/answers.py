"""The route by which a person answers questions and approves or denies calls."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import CHAT_STATE_CODES
from chatd.api.operations import REPLAYED, run_operation
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.administration.runtime_settings import DocumentVersion
from chatd.domain.chat.answer_transitions import MAX_REASON_CHARS
from chatd.domain.chat.call_waits import MAX_QUESTIONS, QuestionReply
from chatd.domain.chat.commands import AnswerCalls, CallAnswer
from chatd.domain.chat_views.public_chat import PublicChat, public_chat
from chatd.domain.description import describe
from chatd.domain.errors import CallNotWaiting, TransitionNotAllowed
from chatd.domain.ids import ToolCallId
from chatd.domain.text import utc_text
from chatd.domain.tool_policy.rules import MAX_RULES, LayerName, PolicyAction, ToolRule
from chatd.store.chat.operation import AppliedChange
from chatd.store.deployment import tool_policies

# Answers of people to questions of the model and to calls that need approval; tool policies.


class CallAnswerIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to one call."""

    tool_call_id: Annotated[str, describe("The call that this answers.", "toolu_01A9")]
    decision: Annotated[
        Literal["approve", "deny", "answer"],
        describe(
            "`approve` lets the call run. `deny` does not; of questions, it declines to answer."
            " `answer` answers questions, with `replies`.",
            "approve",
        ),
    ]
    reason: Annotated[
        str,
        Meta(max_length=MAX_REASON_CHARS),
        describe("Of a denial: what the model is told.", "Use the staging server."),
    ] = ""
    always: Annotated[
        bool,
        describe(
            "Of an approval: do not ask for such calls again in this chat. Only its owner can, and"
            " only where `can_always` is true."
        ),
    ] = False
    rule_args: Annotated[
        Mapping[str, str] | None,
        describe(
            "With `always`: patterns of arguments, as in a tool policy, for which the chat does not"
            " ask. By default, of a command exactly this one, of other tools all calls.",
            {"command": "git push *"},
        ),
    ] = None
    replies: Annotated[
        tuple[QuestionReply, ...],
        Meta(max_length=MAX_QUESTIONS),
        describe("The answers, one for each question, in the order of the questions."),
    ] = ()


class AnswersBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answers to calls that the chat waits for; any of them, or all at once."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "answers": [{"tool_call_id": "toolu_01A9", "decision": "approve"}]
    }

    answers: Annotated[
        tuple[CallAnswerIn, ...],
        Meta(min_length=1, max_length=100),
        describe(
            "The answers. All count, or none.",
            [{"tool_call_id": "toolu_01A9", "decision": "approve"}],
        ),
    ]


class ToolPolicyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool policy, which replaces the one before."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "rules": [
            {"tool": "execute", "action": "ask"},
            {"tool": "execute", "action": "auto", "args": {"command": "git status *"}},
        ]
    }

    rules: Annotated[
        Annotated[tuple[ToolRule, ...], Meta(max_length=MAX_RULES)],
        describe(
            "The rules, in any order. A denial wins; else the narrowest rule that matches.",
            [{"tool": "execute", "action": "ask"}],
        ),
    ] = ()
    may_loosen: Annotated[
        bool,
        describe(
            "Of the deployment and of templates: users and chats may run without approval what this"
            " policy asks for."
        ),
    ] = False
    version: Annotated[
        int | UnsetType,
        describe("Refuse the change if the policy has another version.", 3),
    ] = UNSET


class ToolTrialBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that is decided on and not run."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "tool": "execute",
        "args": {"command": "git push"},
    }

    tool: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)], describe("The tool's name.", "execute")
    ]
    args: Annotated[
        Raw | UnsetType, describe("The arguments of the call.", {"command": "git push"})
    ] = UNSET
    rules: Annotated[
        Annotated[tuple[ToolRule, ...], Meta(max_length=MAX_RULES)] | UnsetType,
        describe("Rules to try instead of the saved ones of this policy.", []),
    ] = UNSET
    may_loosen: Annotated[bool, describe("With `rules` of the deployment: as in the policy.")] = (
        False
    )


class TrialCommand(Struct, frozen=True, kw_only=True):
    """A command that a shell would run."""

    command: Annotated[str, describe("Its words; `…` is what only the shell knows.", "git push")]
    matches: Annotated[
        Literal["no", "may", "yes"], describe("Whether the deciding rule means it.", "yes")
    ]


class ToolTrialReply(Struct, frozen=True, kw_only=True):
    """What would happen to the call, and why."""

    action: Annotated[PolicyAction, describe("What would happen.", "ask")]
    layer: Annotated[
        LayerName | None, describe("The policy that decides; null: no rule fits.", "user")
    ]
    rule: Annotated[
        ToolRule | None,
        describe("The rule that decides; null: none, or one of a policy that you may not read."),
    ]
    reason: Annotated[str, describe("The reason that the rule gives.", "Pushes need a review.")]
    explanation: Annotated[
        str, describe("Why, in words.", "A person is asked first, because a rule says so.")
    ]
    commands: Annotated[
        tuple[TrialCommand, ...], describe("The commands in a text for a shell; at most 50.")
    ]


class ToolPolicyReply(Struct, frozen=True, kw_only=True):
    """A tool policy."""

    version: DocumentVersion
    rules: Annotated[tuple[ToolRule, ...], describe("The rules.")]
    may_loosen: Annotated[
        bool,
        describe("Whether users and chats may run without approval what this policy asks for."),
    ]


_ANSWERS: Final = BodySpec(AnswersBody)
_VERBS: Final = {"approve": "approved", "deny": "denied", "answer": "answered"}


class AnswerRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /chats/{chat_id}/answers",
                permission="chats.write",
                summary="Approve, deny or answer calls that the chat waits for",
                description=(
                    "For a chat whose status is `requires_action`; the event `action_required` and"
                    " `action` of the chat say what it waits for. Each call is answered once: a"
                    " later answer is refused with the name of the first. The chat goes on when no"
                    " call waits."
                ),
                handle=self.answer_calls,
                body_spec=_ANSWERS,
                replies={200: PublicChat},
                errors=(*CHAT_STATE_CODES, "call_not_waiting", "too_many_rules"),
                keyed=True,
                starts_work=True,
            ),
        )

    async def answer_calls(self, request: ApiRequest) -> ApiReply:
        body, deps, caller = await request.body(_ANSWERS), self._deps, request.caller
        answers = tuple(_answer(answer) for answer in body.answers)
        command = AnswerCalls(answered_by=caller.user_id, answers=answers)
        key = request.idempotency_key("answer", request.chat_id, body)
        try:
            outcome = await run_operation(deps, caller, request.chat_id, command, key)
        except (CallNotWaiting, TransitionNotAllowed) as refused:
            raise await self._explained(request, answers, refused) from None
        is_replay = isinstance(outcome, AppliedChange) and outcome.request is not None
        return reply(public_chat(outcome.chat), headers=REPLAYED if is_replay else None)

    async def _explained(
        self,
        request: ApiRequest,
        answers: tuple[CallAnswer, ...],
        refused: CallNotWaiting | TransitionNotAllowed,
    ) -> CallNotWaiting | TransitionNotAllowed:
        """The refusal, with who answered first if a person did."""
        actor = request.caller.actor
        ids = [answer.tool_call_id for answer in answers]
        if isinstance(refused, CallNotWaiting):
            ids = [ToolCallId(refused.tool_call_id)]
        for call_id in ids:
            found = await self._deps.read(
                tool_policies.find_answer, actor, request.chat_id, call_id
            )
            if found is not None:
                who, at = found.username or "A former user", utc_text(found.answered_at)
                text = f"{who} has {_VERBS[found.decision]} the call {call_id!r} already, at {at}."
                return CallNotWaiting(call_id, text)
        return refused


def _answer(given: CallAnswerIn) -> CallAnswer:
    return CallAnswer(
        tool_call_id=ToolCallId(given.tool_call_id),
        decision=given.decision,
        reason=given.reason,
        always=given.always,
        rule_args=given.rule_args,
        replies=given.replies,
    )
