"""A replica with the tools of subagents, and a model that answers each chat by its own script."""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from chatd.app.replica import Replica
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError
from chatd.domain.ids import ChatId, ModelConfigId, UserId
from chatd.domain.ports import Tool, ToolContext
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.subagents import SubagentLimits, SubagentModel, SubagentType
from chatd.engine.subagents import SubagentService
from chatd.store.chat import chats, messages
from chatd.tools.chat_tools import ChatTools
from chatd.tools.subagents import SubagentTools
from tests.support.engine_rig import EngineRig, engine_rig_with
from tests.support.factories import HARNESS
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import FakeServer, RecordedRequest, Reply, Step


class ParentsModel:
    """Satisfies `ports.SubagentModels`: every subagent has the model of its parent."""

    async def choose(
        self, chat: Chat, type_: SubagentType, wanted: str, effort: str = ""
    ) -> ModelConfigId | None:
        del type_
        if wanted:
            raise ToolError(f"There is no model {wanted!r}.")
        return chat.model_config_id

    async def usable(self, owner_id: UserId) -> Sequence[SubagentModel]:
        del owner_id
        return ()


class SubagentSource:
    """Satisfies `ports.ToolSource`: the tools of subagents, and others."""

    def __init__(
        self, replica: Replica, others: Sequence[Tool] = (), limits: SubagentLimits | None = None
    ) -> None:
        service = SubagentService(
            replica.database.pool,
            replica.transactor,
            replica.env,
            reserve_slot=replica.reserve_slot,
            models=ParentsModel(),
            limits=limits or SubagentLimits(),
        )
        self._others = others
        self._tools = ChatTools([SubagentTools(service)], _no_instructions)

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return (*self._others, *await self._tools.tools(chat))

    async def instructions(self, chat: Chat) -> Instructions:
        return await self._tools.instructions(chat)

    async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
        assert self._tools is not None
        return await self._tools.save_result(context, output)


async def _no_instructions(chat: Chat) -> Instructions:
    del chat
    return Instructions()


@asynccontextmanager
async def subagent_rig(
    dsn: str,
    api: FakeServer,
    *,
    others: Sequence[Tool] = (),
    limits: SubagentLimits | None = None,
    **options: object,
) -> AsyncGenerator[EngineRig]:
    """`options` are those of `engine_rig`."""

    def build_tools(replica: Replica) -> SubagentSource:
        return SubagentSource(replica, others, limits)

    async with engine_rig_with(dsn, api, build_tools=build_tools, **options) as rig:
        yield rig


Say = Callable[[RecordedRequest], tuple[Step, ...] | Reply]
"""What the model answers to a request."""


class ScriptedChats(FakeCompatible):
    """Answers by the first message of a user in the request, so that chats may run side by side.
    The last answer to a message is repeated."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, deque[Say]] = {}

    def on(self, prompt: str, *lines: Say) -> None:
        self._lines[prompt] = deque(lines)

    def answer(self, request: RecordedRequest) -> Reply:
        if (refusal := self.refuse(request)) is not None:
            return refusal
        lines = self._lines[first_prompt(request)]
        line = lines.popleft() if len(lines) > 1 else lines[0]
        said = line(request)
        return said if isinstance(said, Reply) else Reply(steps=said)

    def asked(self, prompt: str) -> list[RecordedRequest]:
        return [request for request in self.requests if first_prompt(request) == prompt]


def messages_of(request: RecordedRequest) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", request.json["messages"])


def first_prompt(request: RecordedRequest) -> str:
    """Messages that follow each other are sent as one."""
    texts = [str(one["content"]) for one in messages_of(request) if one["role"] == "user"]
    return texts[0].split("\n\n")[0]


def say(*steps: str | Step) -> Say:
    pieces = [chunk(content=step) if isinstance(step, str) else step for step in steps]
    return lambda _request: (*pieces, chunk(finish="stop"), DONE)


def refuse(status: int, message: str) -> Say:
    body = msgspec.json.encode({"error": {"message": message}})
    headers = {"content-type": "application/json"}
    return lambda _request: Reply(status=status, headers=headers, steps=(body,))


ToolCall = tuple[str, str, Mapping[str, object]]
"""Id, name, arguments."""


def call(*calls: ToolCall, text: str = "") -> Say:
    def steps(_request: RecordedRequest) -> tuple[Step, ...]:
        wanted = [
            {
                "index": index,
                "id": id_,
                "type": "function",
                "function": {"name": name, "arguments": msgspec.json.encode(args).decode()},
            }
            for index, (id_, name, args) in enumerate(calls)
        ]
        words = (chunk(content=text),) if text else ()
        return (*words, chunk(tool_calls=wanted), chunk(finish="tool_calls"), DONE)

    return steps


def to_child(call_id: str, tool: str, **fields: object) -> Say:
    """Call a tool for the first subagent of the chat."""

    def steps(request: RecordedRequest) -> tuple[Step, ...] | Reply:
        child = spawn_results(request)[0]["chat_id"]
        return call((call_id, tool, {"chat_id": child, **fields}))(request)

    return steps


def spawn(*prompts: str, **fields: object) -> Say:
    calls: list[ToolCall] = [
        (f"s{number}", "spawn_agent", {"type": "general", "prompt": prompt, **fields})
        for number, prompt in enumerate(prompts)
    ]
    return call(*calls)


def wait_all(**fields: object) -> Say:
    """Wait for every subagent that this request has the id of."""

    def steps(request: RecordedRequest) -> tuple[Step, ...] | Reply:
        calls: list[ToolCall] = [
            (f"w{number}", "wait_agent", {"chat_id": result["chat_id"], **fields})
            for number, result in enumerate(spawn_results(request))
        ]
        return call(*calls)(request)

    return steps


def spawn_results(request: RecordedRequest) -> list[dict[str, object]]:
    found = [
        msgspec.json.decode(str(one["content"]), type=dict[str, object])
        for one in messages_of(request)
        if one["role"] == "tool" and str(one["tool_call_id"]).startswith("s")
    ]
    return [result for result in found if "chat_id" in result]


async def suspended(rig: EngineRig, chat_id: ChatId) -> Chat:
    """Wait until the turn of the chat waits for its subagents."""
    await rig.events.wait("turn_suspended", chat_id=chat_id)
    await rig.events.wait("chat_task_left", chat_id=chat_id)
    chat = await rig.chat(chat_id)
    assert chat.is_suspended
    return chat


async def children_of(rig: EngineRig, parent: ChatId) -> list[Chat]:
    """By the order of their creation."""
    found = await chats.list_children(rig.pool, HARNESS, [parent])
    return sorted(found, key=lambda child: (child.created_at, child.title))


async def result_of(rig: EngineRig, chat_id: ChatId, call_id: str) -> dict[str, object]:
    """The result of a call, as the model got it."""
    for message in await messages.load_history(rig.pool, HARNESS, chat_id):
        for part in message.content:
            if isinstance(part, ToolResultPart) and part.tool_call_id == call_id and part.result:
                return msgspec.json.decode(bytes(part.result), type=dict[str, object])
    raise AssertionError(f"no result of {call_id}")
