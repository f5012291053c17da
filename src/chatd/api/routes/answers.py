"""The route by which a person answers questions and approves or denies calls."""

from typing import Final

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import CHAT_STATE_CODES
from chatd.api.operations import REPLAYED, run_operation
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.answers import AnswersBody, CallAnswerIn
from chatd.domain.chat.commands import AnswerCalls, CallAnswer
from chatd.domain.chat.public_chat import PublicChat, public_chat
from chatd.domain.errors import CallNotWaiting, TransitionNotAllowed
from chatd.domain.ids import ToolCallId
from chatd.domain.text import utc_text
from chatd.store import tool_policies
from chatd.store.chat.operation import AppliedChange

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
        pool, actor = self._deps.pool, request.caller.actor
        ids = [answer.tool_call_id for answer in answers]
        if isinstance(refused, CallNotWaiting):
            ids = [ToolCallId(refused.tool_call_id)]
        for call_id in ids:
            found = await self._deps.retry(
                lambda call_id=call_id: tool_policies.find_answer(
                    pool, actor, request.chat_id, call_id
                )
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
