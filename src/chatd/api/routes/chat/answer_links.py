"""The two routes by which a link in a notification shows one call and answers it once, without a
session.

The secret comes in the body, as with public links: it stands in no address. They look at no cookie
and no token, so no page of another site gains anything by sending these requests, and a preview or
a prefetch of the link, which cannot send its fragment, changes nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal, TypeVar

from msgspec import Meta, Struct

from chatd.api.accounts.request_limits import Buckets, address_group
from chatd.api.deps import ApiDeps
from chatd.api.error_codes import CHAT_STATE_CODES
from chatd.api.operations import run_operation
from chatd.api.request import ApiCaller, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.domain.access.secret_text import is_opaque_secret
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import AnswerCalls, CallAnswer
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.answer_links import (
    LinkDecision,
    describe_call,
    find_linked,
)
from chatd.domain.description import UPDATED_AT, describe
from chatd.domain.errors import CallNotWaiting, NotFound, RequestReused, TransitionNotAllowed
from chatd.domain.ids import RequestId
from chatd.store.account import answer_links, audit
from chatd.store.account.answer_links import FoundAnswerLink
from chatd.store.chat import chats
from chatd.store.deployment import tool_policies

PRESSES_PER_MINUTE: Final = 60
"""Of one address on this replica."""
_SECRET: Final = "qd0zZ5Yk3Gf1x8o2Vw6b9Jm4Tn7RcLsHpEaUiQyXtBg"
_GONE: Final = "There is nothing under this link: it has expired, or is incomplete."

Secret = Annotated[str, Meta(max_length=200), describe("What follows # in the link.", _SECRET)]


class LinkedCallBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which call."""

    openapi_example: ClassVar[Mapping[str, object]] = {"secret": _SECRET}

    secret: Secret


class LinkedAnswerBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to the call of a link."""

    openapi_example: ClassVar[Mapping[str, object]] = {"secret": _SECRET, "decision": "approve"}

    secret: Secret
    decision: Annotated[LinkDecision, describe("Whether the call may run.", "approve")]


class LinkedCallReply(Struct, frozen=True, kw_only=True):
    """A call, and what became of it."""

    state: Annotated[
        Literal["waiting", "answered", "gone"],
        describe("`gone`: the chat no longer waits for it, and nobody has answered.", "waiting"),
    ]
    title: Annotated[str, describe("The title of the chat.", "Fix the test")]
    chat_path: Annotated[str, describe("Where the chat is on this server.", "/c/0193c5a0")]
    tool: Annotated[str, describe("The tool; empty if the call does not wait.", "execute")] = ""
    text: Annotated[
        str, describe("What it would do, without what looks like a secret.", "git push")
    ] = ""
    reason: Annotated[
        str, describe("Why the policy asks; may be empty.", "Pushes need a review")
    ] = ""
    decision: Annotated[
        Literal["approve", "deny", "answer"] | None,
        describe("What was answered; null: nothing yet.", "approve"),
    ] = None
    answered_at: Annotated[datetime | None, describe("When it was answered.", UPDATED_AT)] = None


_Asked = TypeVar("_Asked", LinkedCallBody, LinkedAnswerBody)
_SHOW: Final = BodySpec(LinkedCallBody)
_ANSWER: Final = BodySpec(LinkedAnswerBody)


class AnswerLinkRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._presses = Buckets(deps.env.clock)

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /public/call",
                permission="public",
                summary="Show the call of a link in a notification; changes nothing",
                handle=self.show_linked_call,
                body_spec=_SHOW,
                replies={200: LinkedCallReply},
                errors=("not_found", "rate_limited"),
            ),
            ApiRoute(
                endpoint="POST /public/call/answer",
                permission="public",
                summary="Approve or deny the call of a link in a notification, once",
                description=(
                    "The first answer counts; every later one gets what was answered. Only while"
                    " the settings have `answer_links`."
                ),
                handle=self.answer_linked_call,
                body_spec=_ANSWER,
                replies={200: LinkedCallReply},
                errors=("forbidden", "not_found", "rate_limited", *CHAT_STATE_CODES),
                starts_work=True,
            ),
        )

    async def show_linked_call(self, request: ApiRequest) -> ApiReply:
        found, _ = await self._admitted(request, _SHOW)
        return reply(await self._state(found))

    async def answer_linked_call(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        found, body = await self._admitted(request, _ANSWER)
        ip = deps.accounts.site.address(request.scope)
        is_first = False
        if found.link.decision in (None, "approve") and found.link.decision != body.decision:
            if find_linked(await self._chat(found), found.link) is None:
                return reply(await self._state(found))
            async with deps.pool.transaction() as session:
                is_first = await answer_links.claim(session, found, body.decision, ip=ip)
            found = await self._find(body.secret)
        if (decision := found.link.decision) is None:
            raise NotFound(_GONE)  # it has expired at this moment
        try:
            await self._answer(found, decision)
        except (CallNotWaiting, TransitionNotAllowed, RequestReused):
            if is_first:  # another answer was faster
                await deps.retry(lambda: self._record_refusal(found, ip))
        return reply(await self._state(found))

    async def _answer(self, found: FoundAnswerLink, decision: LinkDecision) -> None:
        """The same request however often it is repeated: it is written once."""
        link = found.link
        answer = CallAnswer(
            tool_call_id=link.tool_call_id, decision=decision, fingerprint=link.fingerprint
        )
        key = IdempotencyKey(
            scope=link.chat_id, id=RequestId(link.id), op="answer", fingerprint=decision
        )
        command = AnswerCalls(answered_by=link.user_id, answers=(answer,))
        caller = ApiCaller(actor=found.actor, username=found.username)
        await run_operation(self._deps, caller, link.chat_id, command, key)

    async def _record_refusal(self, found: FoundAnswerLink, ip: str | None) -> None:
        link = found.link
        await audit.record(
            self._deps.pool,
            found.actor,
            action="call.answer_by_link",
            object_type="chat",
            object_id=link.chat_id,
            ip=ip,
            detail={"tool_call_id": link.tool_call_id, "link_id": str(link.id)},
            outcome="refused",
        )

    async def _state(self, found: FoundAnswerLink) -> LinkedCallReply:
        deps, link = self._deps, found.link
        chat = await self._chat(found)
        shown = LinkedCallReply(state="gone", title=chat.title, chat_path=f"/c/{chat.id}")
        if (call := find_linked(chat, link)) is not None:  # also if a press was not finished
            told = describe_call(call)
            return LinkedCallReply(
                state="waiting",
                title=chat.title,
                chat_path=f"{shown.chat_path}?call={link.tool_call_id}",
                tool=told.tool,
                text=told.text,
                reason=call.reason,
            )
        answer = await deps.read(
            tool_policies.find_answer, found.actor, link.chat_id, link.tool_call_id
        )
        if answer is None or answer.answered_at < link.created_at:  # of an earlier call with its id
            return shown
        return LinkedCallReply(
            state="answered",
            title=chat.title,
            chat_path=shown.chat_path,
            decision=answer.decision,
            answered_at=answer.answered_at,
        )

    async def _chat(self, found: FoundAnswerLink) -> Chat:
        chat = await self._deps.read(chats.get, found.actor, found.link.chat_id)
        if chat is None:
            raise NotFound(_GONE)
        return chat

    async def _find(self, secret: str) -> FoundAnswerLink:
        found = await self._deps.read(answer_links.find, secret)
        if found is None:
            raise NotFound(_GONE)
        return found

    async def _admitted(
        self, request: ApiRequest, spec: BodySpec[_Asked]
    ) -> tuple[FoundAnswerLink, _Asked]:
        """Raises RateLimited before anything is looked up, and NotFound."""
        address = self._deps.accounts.site.address(request.scope)
        self._presses.take(address_group(address), PRESSES_PER_MINUTE)
        body = await request.body(spec)
        if not is_opaque_secret(body.secret):
            raise NotFound(_GONE)
        return await self._find(body.secret), body
