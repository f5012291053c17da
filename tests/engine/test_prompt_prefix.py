"""One long chat through everything that could change the beginning of its prompts.

Each request must begin like the one before it, on every wire: the provider charges a tenth for what
it has cached."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Final
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from chatd.domain.chat.commands import SendMessage
from chatd.domain.chat.parts import FilePart
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, McpServerId
from chatd.domain.model.protocol import ModelEvent, ModelRequest, PromptMessage, PromptText
from chatd.domain.model.usage import prefix_loss
from chatd.domain.ports import Provider
from chatd.domain.prompt.instructions import Instructions
from chatd.providers.anthropic.anthropic_request import encode_request as encode_anthropic
from chatd.providers.gemini.gemini_models import GoogleOptions
from chatd.providers.gemini.gemini_request import encode_request as encode_gemini
from chatd.providers.gemini.gemini_request import gemini_tool_names
from chatd.providers.openai.chat_dialect import COMPATIBLE_DIALECT, OPENROUTER_DIALECT, ChatDialect
from chatd.providers.openai.chat_request import encode_request as encode_chat
from chatd.providers.openai.openai_models import CompatOptions, OpenAIOptions
from chatd.providers.openai.openai_tools import build_tool_names
from chatd.providers.openai.responses_request import encode_request as encode_responses
from chatd.providers.openai.responses_request import responses_tool_names
from chatd.tools.chat_tools import ChatTools, ToolOrders
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.mcp.rig import McpRig, configured, mcp_rig, tool_server
from tests.support.providers.server import Gate
from tests.support.sent_requests import SentRequest
from tests.support.tools import GatedTool

PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAA"
    "AABJRU5ErkJggg=="
)
MIN_SHARE: Final = 0.99
ADDED_ID: Final = McpServerId(UUID(int=2))


class _Recorder:
    """Satisfies `ports.Provider`: passes requests on, and keeps them."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.sent: list[ModelRequest] = []

    @property
    def name(self) -> str:
        return self._provider.name

    def stream(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        self.sent.append(request)
        return self._provider.stream(request)

    def can_continue(self, request: ModelRequest) -> bool:
        return self._provider.can_continue(request)

    async def close(self) -> None:
        await self._provider.close()


class _Family:
    def __init__(self, *tools: GatedTool) -> None:
        self._tools = tools

    async def tools(self, chat: Chat) -> Sequence[GatedTool]:
        del chat
        return self._tools


class _Talk:
    """Messages of a person to one chat. `excluded` are the requests after which a new beginning is
    expected: an edit, a compaction."""

    def __init__(self, rig: EngineRig, chat_id: ChatId, recorder: _Recorder) -> None:
        self._rig = rig
        self.chat_id = chat_id
        self._recorder = recorder
        self.excluded: set[int] = set()

    async def say(self, text: str, **fields: object) -> None:
        """Send, and wait until the turn has ended."""
        prompt = replace(self._rig.prompt(text), **fields)
        with self._rig.replica.worker.reserve_slot(root=True) as free:
            chat = await self._rig.run(self.chat_id, SendMessage(prompt=prompt), free)
        await self._rig.wait_chat_task_left(self.chat_id, epoch=chat.epoch)

    def expect_a_new_beginning(self) -> None:
        self.excluded.add(len(self._recorder.sent))


Encode = Callable[[ModelRequest], bytes]


def _claude(request: ModelRequest) -> bytes:
    return encode_anthropic(replace(request, model="claude-sonnet-4-5")).body


def _gemini(request: ModelRequest) -> bytes:
    named = replace(request, model="gemini-3-pro-preview")
    return encode_gemini(named, GoogleOptions(), gemini_tool_names(named))


def _responses(request: ModelRequest) -> bytes:
    named, options = replace(request, model="gpt-5"), OpenAIOptions()
    return encode_responses(named, options, responses_tool_names(named, options), "here")


def _chat(model: str, dialect: ChatDialect) -> Encode:
    def encode(request: ModelRequest) -> bytes:
        named = replace(request, model=model)
        return encode_chat(named, CompatOptions(), build_tool_names(named), dialect, "here")

    return encode


WIRES: Final[Mapping[str, Encode]] = {
    "anthropic": _claude,
    "bedrock": lambda request: (
        encode_anthropic(replace(request, model="claude-sonnet-4-5"), "bedrock").body
    ),
    "gemini": _gemini,
    "responses": _responses,
    "chat completions": _chat("qwen3", COMPATIBLE_DIALECT),
    "openrouter": _chat("anthropic/claude-sonnet-4.5", OPENROUTER_DIALECT),
}


async def _live(
    rig: EngineRig, chat_id: ChatId, recorder: _Recorder, told: dict[str, str]
) -> _Talk:
    """What happens in a long chat, except for what MCP servers do."""
    talk = _Talk(rig, chat_id, recorder)
    # A workspace is attached, and its instructions are read.
    told["workspace"] = "You work in /home/user."
    rig.call_tools(("c1", "read_file", "{}"), ("c2", "read_file", "{}"))
    rig.answer("read")
    await talk.say("look around")
    told["files"] = "Use tabs."
    rig.answer("tabs")
    await talk.say("and the rules?")
    # Plan mode begins and ends; a call that it does not allow is refused.
    rig.call_tools(("c3", "process_list", "{}"))
    rig.answer("planned")
    await talk.say("plan it", mode="plan")
    rig.answer("implemented")
    await talk.say("do it", mode="off")
    # Messages wait in the queue, and one steers.
    gate = Gate()
    rig.answer("first", gate, " answer")
    rig.answer("second")
    rig.answer("third")
    await rig.send(chat_id, "one")
    await gate.reached.wait()
    await rig.send(chat_id, "two")
    last = await rig.send(chat_id, "three", "steer")
    gate.open()
    await rig.wait_chat_task_left(chat_id, epoch=last.epoch)
    # A picture, a subagent's report, an interrupt.
    rig.answer("a picture")
    content = (*rig.prompt("see").content, FilePart(media_type="image/png", data=PNG))
    await talk.say("see", content=content)
    rig.call_tools(("c4", "spawn_agent", '{"say":"find it"}'))
    rig.answer("found")
    await talk.say("delegate")
    gate = Gate()
    rig.answer("I was", gate, " saying")
    await rig.send(chat_id, "tell me")
    await gate.reached.wait()
    await rig.wait_shown(chat_id, "I was")
    interrupted = await rig.interrupt(chat_id)
    await rig.wait_chat_task_left(chat_id, epoch=interrupted.epoch)
    gate.open()
    rig.answer("go on")
    await talk.say("go on")
    return talk


async def _add_a_server(
    rig: EngineRig, talk: _Talk, recorder: _Recorder, mcp: McpRig, source: ChatTools
) -> None:
    """Its tools go to the end, where they stay for another replica, and when the server before it
    leaves and returns."""
    before = recorder.sent[-1].tools
    talk.expect_a_new_beginning()
    mcp.directory.list.append(replace(mcp.directory.list[0], id=ADDED_ID, slug="added"))
    rig.answer("more tools")
    await talk.say("use these")
    added = recorder.sent[-1].tools
    assert added[: len(before)] == before
    assert {tool.name.partition("__")[0] for tool in added[len(before) :]} == {"added"}
    source.orders = ToolOrders(rig.pool, rig.replica.env)
    rig.answer("as before")
    await talk.say("another replica")
    assert recorder.sent[-1].tools == added
    for servers in (mcp.directory.list[1:], list(mcp.directory.list)):
        mcp.directory.list = servers
        talk.expect_a_new_beginning()
        rig.answer("changed")
        await talk.say("a server leaves or returns")
    assert recorder.sent[-1].tools == added


async def test_each_request_begins_like_the_one_before_it_on_every_wire(
    dsn: str, record_property: Callable[[str, object], None]
) -> None:
    """Six seconds: an MCP server is started twice."""
    told: dict[str, str] = {}
    tools = _Family(*map(GatedTool, ("read_file", "process_list", "spawn_agent", "propose_plan")))

    async def instructions(chat: Chat) -> Instructions:
        del chat
        return Instructions(workspace=told.get("workspace"), files=told.get("files"))

    with tool_server("http") as process:
        server = configured(process.url)
        async with mcp_rig(server) as mcp:
            families = [tools, mcp.family]
            source = ChatTools(families, instructions)
            async with engine_rig(dsn, source=source) as rig:
                source.orders = ToolOrders(rig.pool, rig.replica.env)
                recorder = _Recorder(rig.model.provider)
                rig.model.provider = recorder
                rig.answer("hello")
                chat_id = await rig.create("hi")
                await rig.wait_chat_task_left(chat_id, epoch=1)
                talk = await _live(rig, chat_id, recorder, told)
                # The MCP server works, dies and returns.
                rig.call_tools(("m1", "tools__echo", '{"text":"hello"}'))
                rig.answer("echoed")
                await talk.say("echo")
                process.kill()
                rig.call_tools(("m2", "tools__echo", '{"text":"hello"}'))
                rig.answer("it is gone")
                await talk.say("echo again")
                with tool_server("http", "--port", str(process.port)):
                    mcp.sessions.forget_failures()
                    rig.call_tools(("m3", "tools__echo", '{"text":"back"}'))
                    rig.answer("it is back")
                    await talk.say("and now?")
                    assert "you said back" in str(recorder.sent[-1].messages)
                    await _add_a_server(rig, talk, recorder, mcp, source)
                # Another effort and another model.
                talk.expect_a_new_beginning()
                rig.answer("with care")
                await talk.say("think", reasoning_effort="high")
                talk.expect_a_new_beginning()
                rig.model.config = replace(rig.model.config, model="fake-2")
                rig.answer("another one")
                await talk.say("who are you?")
                # A compaction begins a new prompt; what follows extends it.
                talk.expect_a_new_beginning()
                rig.answer("a summary")
                compacted = await rig.compact(chat_id)
                await rig.wait_chat_task_left(chat_id, epoch=compacted.epoch)
                talk.expect_a_new_beginning()
                for text in ("after", "and after"):
                    rig.answer("yes")
                    await talk.say(text)
    shares = {name: _share(recorder.sent, encode, talk.excluded) for name, encode in WIRES.items()}
    record_property("shares", msgspec.json.encode(shares).decode())
    assert len(recorder.sent) > 20
    assert {name for name, share in shares.items() if share < MIN_SHARE} == set(), shares


def _share(sent: Sequence[ModelRequest], encode: Encode, excluded: set[int]) -> float:
    """Of the requests that follow another one: how many begin like it."""
    requests = [SentRequest.of(encode(request)) for request in sent]
    kept = [
        one.shared_bytes(two) == one.size
        for number, (one, two) in enumerate(pairwise(requests), start=1)
        if number not in excluded
    ]
    return sum(kept) / len(kept)


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ("a b", "a b c", "none"),
        ("a b", "a x", "history"),
        ("a b", "a", "history"),
    ],
)
def test_a_request_that_does_not_extend_the_previous_one_is_counted(
    before: str, after: str, cause: str
) -> None:
    def request(words: str) -> ModelRequest:
        parts = (PromptMessage(role="user", parts=(PromptText(text=w),)) for w in words.split())
        return ModelRequest(model="m", messages=tuple(parts))

    loss = prefix_loss(request(before), request(after))
    assert (loss.cause, loss.tokens > 0) == (cause, cause != "none")
