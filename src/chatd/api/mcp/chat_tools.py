"""The tools of the MCP server: chats, for a program that lets chatd work."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from chatd.api.auth import ApiCaller
from chatd.api.deps import ApiDeps
from chatd.api.mcp import arguments, texts
from chatd.api.mcp.chat_results import chat_result, list_result, read_result, wait_result
from chatd.api.mcp.chat_waits import BUSY, ChatWaits
from chatd.api.mcp.messages import Json
from chatd.api.mcp.results import (
    ChatResult,
    ListResult,
    ReadResult,
    SentResult,
    SubmittedResult,
    WaitResult,
)
from chatd.api.mcp.route_calls import RouteCall, RouteCalls
from chatd.api.mcp.tool_declaration import ChatTool, list_tool, read_arguments
from chatd.api.mcp.toolset import ListedTool, ToolCall, ToolReply
from chatd.api.schemas.chats import ChatPage, SubagentPage
from chatd.api.schemas.messages import MessagePage, SentReply
from chatd.domain.access.permissions import has_permission, require_permission
from chatd.domain.chat_views.public_chat import PublicChat
from chatd.domain.errors import NotFound
from chatd.domain.ids import ChatId
from chatd.domain.list_page import MAX_PAGE_SIZE

_ONE: Final = "GET /chats/{chat_id}"
_MESSAGES: Final = "GET /chats/{chat_id}/messages"


class ChatToolSet:
    def __init__(self, deps: ApiDeps, routes: RouteCalls) -> None:
        self._deps = deps
        self._routes = routes
        self._waits = ChatWaits(deps)
        self._tools: Mapping[str, ChatTool[Any]] = {tool.name: tool for tool in self._all()}
        self._listed = {name: list_tool(tool) for name, tool in self._tools.items()}

    @property
    def instructions(self) -> str:
        return texts.INSTRUCTIONS

    def listed(self, caller: ApiCaller) -> Sequence[ListedTool]:
        return [
            self._listed[name]
            for name, tool in self._tools.items()
            if has_permission(caller.actor, self._routes.permission(tool.endpoint))
        ]

    def streams(self, name: str) -> bool | None:
        tool = self._tools.get(name)
        return None if tool is None else tool.streams

    async def call(self, name: str, call: ToolCall) -> ToolReply:
        tool = self._tools[name]
        self._deps.accounts.limits.take(call.caller, tool.group)
        require_permission(call.caller.actor, self._routes.permission(tool.endpoint))
        given = read_arguments(tool.arguments, call.arguments)
        found = msgspec.json.encode(await tool.run(call, given))
        return ToolReply(
            content=[{"type": "text", "text": found.decode()}],
            structured=msgspec.Raw(found),
        )

    def _all(self) -> Sequence[ChatTool[Any]]:
        """The order is that of their use, which some clients show."""
        return (
            ChatTool(
                name="start_chat",
                endpoint="POST /chats",
                arguments=arguments.StartChat,
                result=ChatResult,
                run=self.start_chat,
                group="chats",
            ),
            ChatTool(
                name="send_message",
                endpoint="POST /chats/{chat_id}/messages",
                arguments=arguments.SendMessage,
                result=SentResult,
                run=self.send_message,
            ),
            ChatTool(
                name="wait_for_chat",
                endpoint=_ONE,
                arguments=arguments.WaitForChat,
                result=WaitResult,
                run=self.wait_for_chat,
                streams=True,
            ),
            ChatTool(
                name="read_chat",
                endpoint=_MESSAGES,
                arguments=arguments.ReadChat,
                result=ReadResult,
                run=self.read_chat,
            ),
            ChatTool(
                name="interrupt_chat",
                endpoint="POST /chats/{chat_id}/interrupt",
                arguments=arguments.InterruptChat,
                result=ChatResult,
                run=self.interrupt_chat,
            ),
            ChatTool(
                name="fork_chat",
                endpoint="POST /chats/{chat_id}/fork",
                arguments=arguments.ForkChat,
                result=ChatResult,
                run=self.fork_chat,
            ),
            ChatTool(
                name="list_chats",
                endpoint="GET /chats",
                arguments=arguments.ListChats,
                result=ListResult,
                run=self.list_chats,
            ),
            ChatTool(
                name="submit_results",
                endpoint="POST /chats/{chat_id}/tool-results",
                arguments=arguments.SubmitResults,
                result=SubmittedResult,
                run=self.submit_results,
            ),
            ChatTool(
                name="answer_calls",
                endpoint="POST /chats/{chat_id}/answers",
                arguments=arguments.AnswerCalls,
                result=SubmittedResult,
                run=self.answer_calls,
            ),
        )

    async def start_chat(self, call: ToolCall, given: arguments.StartChat) -> ChatResult:
        body: Json = {
            "content": [{"type": "text", "text": given.message}],
            "model": given.model,
            "reasoning_effort": given.reasoning_effort,
            "system_prompt": given.system_prompt,
            "labels": given.labels,
            "workspace_id": given.workspace_id,
            "mode": given.mode,
            "max_cost_micros": _micros(given.max_cost_usd),
        }
        wanted = RouteCall(endpoint="POST /chats", body=body, key=given.key or call.key)
        chat = await self._routes.fetch(call, wanted, PublicChat)
        return chat_result(chat, texts.WAIT)

    async def send_message(self, call: ToolCall, given: arguments.SendMessage) -> SentResult:
        body: Json = {
            "content": [{"type": "text", "text": given.message}],
            "busy_behavior": given.when_busy,
            "model": given.model,
            "mode": given.mode,
        }
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/messages",
            path=_path(given.chat_id),
            body=body,
            key=given.key or call.key,
        )
        sent = await self._routes.fetch(call, wanted, SentReply)
        return SentResult(
            chat_id=str(sent.chat_id),
            queued=sent.queued,
            message_id=sent.message_id,
            next=texts.WAIT,
        )

    async def wait_for_chat(self, call: ToolCall, given: arguments.WaitForChat) -> WaitResult:
        shown = await self._waits.wait(call, ChatId(given.chat_id), given.timeout_s)
        if shown.status not in BUSY:
            return wait_result(shown)
        # A chat can work for as long as a subagent waits for somebody.
        wanted = RouteCall(
            endpoint="GET /chats/{chat_id}/subagents",
            path=_path(given.chat_id),
            query={"limit": MAX_PAGE_SIZE},
        )
        page = await self._routes.fetch(call, wanted, SubagentPage)
        return wait_result(shown, [one for one in page.items if one.status == "requires_action"])

    async def read_chat(self, call: ToolCall, given: arguments.ReadChat) -> ReadResult:
        path = _path(given.chat_id)
        query: Json = {"limit": given.limit, "before_id": given.before, "after_id": given.after}
        if given.message_id is not None:
            number = given.message_id
            query = {"limit": 1, "before_id": number + 1, "after_id": number - 1}
        wanted = RouteCall(endpoint=_MESSAGES, path=path, query=query)
        page = await self._routes.fetch(call, wanted, MessagePage)
        if given.message_id is not None and not page.items:
            raise NotFound("There is no such message in this chat.")
        chat = await self._routes.fetch(call, RouteCall(endpoint=_ONE, path=path), PublicChat)
        return read_result(chat, page, given)

    async def interrupt_chat(self, call: ToolCall, given: arguments.InterruptChat) -> ChatResult:
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/interrupt",
            path=_path(given.chat_id),
            body={"queue": given.queue},
        )
        chat = await self._routes.fetch(call, wanted, PublicChat)
        return chat_result(chat, texts.next_step(chat.status))

    async def fork_chat(self, call: ToolCall, given: arguments.ForkChat) -> ChatResult:
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/fork",
            path=_path(given.chat_id),
            body={"message_id": given.message_id},
            key=given.key or call.key,
        )
        chat = await self._routes.fetch(call, wanted, PublicChat)
        return chat_result(chat, texts.SEND)

    async def list_chats(self, call: ToolCall, given: arguments.ListChats) -> ListResult:
        query = {
            "q": given.query,
            "status": given.status,
            "limit": given.limit,
            "cursor": given.cursor,
        }
        page = await self._routes.fetch(
            call, RouteCall(endpoint="GET /chats", query=query), ChatPage
        )
        return list_result(page)

    async def submit_results(
        self, call: ToolCall, given: arguments.SubmitResults
    ) -> SubmittedResult:
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/tool-results",
            path=_path(given.chat_id),
            body={"results": given.results},
            key=given.key or call.key,
        )
        await self._routes.send(call, wanted)
        return SubmittedResult(chat_id=str(given.chat_id), next=texts.WAIT)

    async def answer_calls(self, call: ToolCall, given: arguments.AnswerCalls) -> SubmittedResult:
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/answers",
            path=_path(given.chat_id),
            body={"answers": given.answers},
            key=given.key or call.key,
        )
        chat = await self._routes.fetch(call, wanted, PublicChat)
        is_over = chat.status != "requires_action"
        return SubmittedResult(
            chat_id=str(chat.id), next=texts.WAIT if is_over else texts.next_step(chat.status)
        )


def _path(chat_id: UUID) -> Mapping[str, str]:
    return {"chat_id": str(chat_id)}


def _micros(dollars: float | None) -> int | None:
    return None if dollars is None else max(1, round(dollars * 1_000_000))
