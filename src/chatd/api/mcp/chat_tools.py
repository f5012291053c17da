"""The tools of the MCP server: chats, for a program that lets chatd work."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Generic, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.api.accounts.request_limits import RouteGroup
from chatd.api.deps import ApiDeps
from chatd.api.mcp import results, tool_schemas
from chatd.api.mcp.chat_waits import ChatWaits
from chatd.api.mcp.protocol import Json
from chatd.api.mcp.results import chat_result, list_result, read_result, wait_result
from chatd.api.mcp.tool_schemas import (
    BUSY,
    ChatResult,
    ListResult,
    ReadResult,
    SentResult,
    SubmittedResult,
    WaitResult,
)
from chatd.api.mcp.toolset import ListedTool, RouteCall, RouteCalls, ToolCall, ToolHints, ToolReply
from chatd.api.request import ApiCaller
from chatd.api.schemas.chats import ChatPage, SubagentPage
from chatd.api.schemas.messages import MessagePage, SentReply
from chatd.domain.access.permissions import has_permission, require_permission
from chatd.domain.chat_views.public_chat import PublicChat
from chatd.domain.decode_errors import describe_decode_error
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import ChatId
from chatd.domain.list_page import MAX_PAGE_SIZE

INSTRUCTIONS: Final = (
    "chatd runs AI agent chats that go on by themselves, also while no client is connected. Begin"
    " with start_chat, then call wait_for_chat until `done` is true; if the time is over, call it"
    " again. send_message continues a chat, and read_chat shows its history. If no reply came to"
    " start_chat, send_message or fork_chat, repeat the call with the same `key`: nothing happens"
    " twice. To stop waiting does not stop a chat: interrupt_chat does."
)

A = TypeVar("A", bound=Struct)


class ChatTool(Struct, Generic[A], frozen=True, kw_only=True):
    """One tool. Its schemas and its reader follow from the types of its arguments and its result.

    `hints` must be true, or the client is misled. `endpoint` is the route that the tool calls,
    whose permission it needs.
    """

    name: str
    description: str
    hints: ToolHints
    endpoint: str
    arguments: type[A]
    result: type[Struct]
    run: Callable[[ToolCall, A], Awaitable[Struct]]
    group: RouteGroup = "requests"
    streams: bool = False


def list_tool(tool: ChatTool[Any]) -> ListedTool:
    return ListedTool(
        name=tool.name,
        title=tool.hints.title,
        description=tool.description,
        input_schema=_schema(tool.arguments),
        output_schema=_schema(tool.result),
        annotations=tool.hints,
    )


@cache
def _schema(kind: type[Struct]) -> Json:
    """An object at the top, as clients demand, and the types that it uses below. Made once in a
    process, which may have several servers (tests have hundreds)."""
    _, found = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    components = cast("dict[str, Json]", found)
    top = {name: value for name, value in components.pop(kind.__name__).items() if name != "title"}
    return {**top, "$defs": components} if components else top


def read_arguments(kind: type[A], given: Json) -> A:
    """Raises InvalidInput."""
    try:
        return msgspec.json.decode(msgspec.json.encode(given), type=kind)
    except msgspec.ValidationError as error:
        field, text = describe_decode_error(error, kind)
        raise InvalidInput(field or "arguments", text) from None
    except RecursionError:
        raise InvalidInput("arguments", "are nested too deeply") from None


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
        return INSTRUCTIONS

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
                description=(
                    "Start a chat with its first message. An AI agent begins to work on it at"
                    " once and goes on by itself. Returns the chat_id without waiting: call"
                    " wait_for_chat for the answer."
                ),
                hints=ToolHints(title="Start a chat", read_only_hint=False, open_world_hint=True),
                endpoint="POST /chats",
                arguments=tool_schemas.StartChat,
                result=ChatResult,
                run=self.start_chat,
                group="chats",
            ),
            ChatTool(
                name="send_message",
                description=(
                    "Send a message to a chat. A chat that waits begins to answer at once;"
                    " when_busy decides what happens in one that works. Call wait_for_chat for the"
                    " answer."
                ),
                # It can remove a turn: when_busy=rollback.
                hints=ToolHints(
                    title="Send a message",
                    read_only_hint=False,
                    destructive_hint=True,
                    open_world_hint=True,
                ),
                endpoint="POST /chats/{chat_id}/messages",
                arguments=tool_schemas.SendMessage,
                result=SentResult,
                run=self.send_message,
            ),
            ChatTool(
                name="wait_for_chat",
                description=(
                    "Wait until a chat has answered, has failed or needs results, and return its"
                    " answer. The time is bounded: with done=false the chat still works, so call"
                    " it again. A wait reads only: to cancel it does not stop the chat."
                ),
                hints=ToolHints(
                    title="Wait for an answer", read_only_hint=True, idempotent_hint=True
                ),
                endpoint=_ONE,
                arguments=tool_schemas.WaitForChat,
                result=WaitResult,
                run=self.wait_for_chat,
                streams=True,
            ),
            ChatTool(
                name="read_chat",
                description=(
                    "Read messages of a chat as text, the newest ones first to come. Long"
                    " messages are cut; message_id and offset read the rest."
                ),
                hints=ToolHints(title="Read a chat", read_only_hint=True, idempotent_hint=True),
                endpoint=_MESSAGES,
                arguments=tool_schemas.ReadChat,
                result=ReadResult,
                run=self.read_chat,
            ),
            ChatTool(
                name="interrupt_chat",
                description=(
                    "Stop what a chat does now. What it has said so far is kept, and a message"
                    " continues it."
                ),
                hints=ToolHints(
                    title="Interrupt a chat", read_only_hint=False, idempotent_hint=True
                ),
                endpoint="POST /chats/{chat_id}/interrupt",
                arguments=tool_schemas.InterruptChat,
                result=ChatResult,
                run=self.interrupt_chat,
            ),
            ChatTool(
                name="fork_chat",
                description=(
                    "Copy a chat, up to a message, into a new one that waits for a message. The"
                    " first one is not changed."
                ),
                hints=ToolHints(title="Copy a chat", read_only_hint=False),
                endpoint="POST /chats/{chat_id}/fork",
                arguments=tool_schemas.ForkChat,
                result=ChatResult,
                run=self.fork_chat,
            ),
            ChatTool(
                name="list_chats",
                description="List your chats, or search them.",
                hints=ToolHints(title="List chats", read_only_hint=True, idempotent_hint=True),
                endpoint="GET /chats",
                arguments=tool_schemas.ListChats,
                result=ListResult,
                run=self.list_chats,
            ),
            ChatTool(
                name="submit_results",
                description=(
                    "Give a chat with the status requires_action the results of all its"
                    " pending_calls of the kind client, which wait_for_chat lists. The chat then"
                    " goes on."
                ),
                hints=ToolHints(title="Submit results", read_only_hint=False, open_world_hint=True),
                endpoint="POST /chats/{chat_id}/tool-results",
                arguments=tool_schemas.SubmitResults,
                result=SubmittedResult,
                run=self.submit_results,
            ),
            ChatTool(
                name="answer_calls",
                description=(
                    "Approve or deny calls of a chat (pending_calls of the kind approval), or"
                    " answer its questions (kind question). They are meant for a person: ask your"
                    " user first. The chat goes on when no call waits."
                ),
                # A call that is approved may do anything.
                hints=ToolHints(
                    title="Approve or answer",
                    read_only_hint=False,
                    destructive_hint=True,
                    open_world_hint=True,
                ),
                endpoint="POST /chats/{chat_id}/answers",
                arguments=tool_schemas.AnswerCalls,
                result=SubmittedResult,
                run=self.answer_calls,
            ),
        )

    async def start_chat(self, call: ToolCall, given: tool_schemas.StartChat) -> ChatResult:
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
        return chat_result(chat, results.WAIT)

    async def send_message(self, call: ToolCall, given: tool_schemas.SendMessage) -> SentResult:
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
            next=results.WAIT,
        )

    async def wait_for_chat(self, call: ToolCall, given: tool_schemas.WaitForChat) -> WaitResult:
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

    async def read_chat(self, call: ToolCall, given: tool_schemas.ReadChat) -> ReadResult:
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

    async def interrupt_chat(self, call: ToolCall, given: tool_schemas.InterruptChat) -> ChatResult:
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/interrupt",
            path=_path(given.chat_id),
            body={"queue": given.queue},
        )
        chat = await self._routes.fetch(call, wanted, PublicChat)
        return chat_result(chat, results.next_step(chat.status))

    async def fork_chat(self, call: ToolCall, given: tool_schemas.ForkChat) -> ChatResult:
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/fork",
            path=_path(given.chat_id),
            body={"message_id": given.message_id},
            key=given.key or call.key,
        )
        chat = await self._routes.fetch(call, wanted, PublicChat)
        return chat_result(chat, results.SEND)

    async def list_chats(self, call: ToolCall, given: tool_schemas.ListChats) -> ListResult:
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
        self, call: ToolCall, given: tool_schemas.SubmitResults
    ) -> SubmittedResult:
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/tool-results",
            path=_path(given.chat_id),
            body={"results": given.results},
            key=given.key or call.key,
        )
        await self._routes.send(call, wanted)
        return SubmittedResult(chat_id=str(given.chat_id), next=results.WAIT)

    async def answer_calls(
        self, call: ToolCall, given: tool_schemas.AnswerCalls
    ) -> SubmittedResult:
        wanted = RouteCall(
            endpoint="POST /chats/{chat_id}/answers",
            path=_path(given.chat_id),
            body={"answers": given.answers},
            key=given.key or call.key,
        )
        chat = await self._routes.fetch(call, wanted, PublicChat)
        is_over = chat.status != "requires_action"
        return SubmittedResult(
            chat_id=str(chat.id), next=results.WAIT if is_over else results.next_step(chat.status)
        )


def _path(chat_id: UUID) -> Mapping[str, str]:
    return {"chat_id": str(chat_id)}


def _micros(dollars: float | None) -> int | None:
    return None if dollars is None else max(1, round(dollars * 1_000_000))
