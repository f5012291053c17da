"""Messages: read by page, send, edit, and answer tools that the client runs."""

from typing import Final

from chatd.aio.backoff import retry_unavailable
from chatd.api import checks
from chatd.api.auth import own
from chatd.api.call import LARGE_BODY, NOTHING, Call, Reply, Route, Takes, reply
from chatd.api.doors import Doors
from chatd.api.models import chosen
from chatd.api.operations import (
    REPLAYED,
    appended_result,
    replayed_result,
    run_operation,
    send_result,
)
from chatd.api.wire import (
    EditBody,
    MessagePage,
    ModelWish,
    PageQuery,
    SendBody,
    SentReply,
    ToolResultsBody,
)
from chatd.domain.chat.commands import EditMessage, SendMessage, SubmitToolResults
from chatd.domain.chat.events import public_message, public_queued
from chatd.domain.chat.messages import UserInput
from chatd.domain.chat.parts import Part
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import ChatId, MessageId
from chatd.store.chat import updates
from chatd.store.chat.transactor import AppliedChange
from chatd.store.chat.updates import Page, Range

_SEND: Final = Takes(SendBody, LARGE_BODY)
_EDIT: Final = Takes(EditBody, LARGE_BODY)
_RESULTS: Final = Takes(ToolResultsBody)


class MessageRoutes:
    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path="/chats/{chat_id}/messages",
                name="list_messages",
                summary="Messages of a chat, by page, and the queue with the first page",
                handle=self.page,
                query=PageQuery,
                gives={200: MessagePage},
            ),
            Route(
                method="POST",
                path="/chats/{chat_id}/messages",
                name="send_message",
                summary="Send a message; if the chat is busy, do as `busy_behavior` says",
                handle=self.send,
                takes=_SEND,
                gives={200: SentReply},
                refuses=(409, 429),
                keyed=True,
                starts_work=True,
            ),
            Route(
                method="PATCH",
                path="/chats/{chat_id}/messages/{message_id}",
                name="edit_message",
                summary="Put another message in place of one of mine; all after it goes",
                handle=self.edit,
                takes=_EDIT,
                gives={200: SentReply},
                refuses=(409,),
                starts_work=True,
            ),
            Route(
                method="POST",
                path="/chats/{chat_id}/tool-results",
                name="submit_tool_results",
                summary="Answer every open call of a tool that the client runs",
                handle=self.results,
                takes=_RESULTS,
                gives={204: None},
                refuses=(409,),
                starts_work=True,
            ),
        )

    async def page(self, call: Call) -> Reply:
        query = call.query(PageQuery)
        which = _range(query)
        found = await retry_unavailable(
            self._doors.env.clock, lambda: updates.page(self._doors.pool, call.chat_id, which)
        )
        if found is None:
            raise NotFound("There is no such chat.")
        own(call.caller, found.chat)
        return reply(_public(call.chat_id, found))

    async def send(self, call: Call) -> Reply:
        body = await call.body(_SEND)
        checks.no_mcp_servers(body.mcp_server_ids)
        request = call.request("send", call.chat_id, body)
        prompt = await self._prompt(call, checks.content(body.content), body)
        command = SendMessage(prompt=prompt, when_busy=body.busy_behavior)
        doors, caller = self._doors, call.caller
        outcome = await run_operation(doors, caller, call.chat_id, command, request)
        if isinstance(outcome, AppliedChange) and outcome.request is not None:
            found = await replayed_result(doors, caller, outcome.chat, outcome.request)
            return reply(found, headers=REPLAYED)
        return reply(await send_result(doors, caller, outcome))

    async def edit(self, call: Call) -> Reply:
        body = await call.body(_EDIT)
        prompt = await self._prompt(call, checks.content(body.content), body)
        command = EditMessage(message_id=call.message_id, prompt=prompt)
        outcome = await run_operation(self._doors, call.caller, call.chat_id, command)
        return reply(appended_result(outcome))

    async def results(self, call: Call) -> Reply:
        body = await call.body(_RESULTS)
        command = SubmitToolResults(results=checks.tool_results(body.results))
        await run_operation(self._doors, call.caller, call.chat_id, command)
        return NOTHING

    async def _prompt(self, call: Call, content: tuple[Part, ...], wish: ModelWish) -> UserInput:
        return UserInput(
            content=content,
            created_by=call.caller.user_id,
            model_config_id=await chosen(self._doors.models, wish),
            reasoning_effort=wish.reasoning_effort,
        )


def _range(query: PageQuery) -> Range:
    before, after = query.before_id, query.after_id
    if before is not None and after is not None and before <= after:
        raise InvalidInput("before_id", "must be above after_id")
    return Range(
        before=None if before is None else MessageId(before),
        after=None if after is None else MessageId(after),
        limit=query.limit,
    )


def _public(chat_id: ChatId, page: Page) -> MessagePage:
    seen = (public_message(chat_id, row) for row in page.messages)
    return MessagePage(
        messages=tuple(message for message in seen if message is not None),
        queued_messages=tuple(public_queued(chat_id, row) for row in page.queue),
        has_more=page.has_more,
        version=page.chat.snapshot_version,
    )
