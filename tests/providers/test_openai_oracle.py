"""OpenAI's own client agrees with us, on what streams mean and on what requests say.

Importing it takes most of the time here.
"""

from collections.abc import AsyncGenerator

import msgspec
import pytest
from msgspec import Raw
from openai import APIError

from chatd.domain.chat.parts import ReasoningPart, TextPart, ToolCallPart
from chatd.domain.model.protocol import (
    ComputerTool,
    Finished,
    ForcedTool,
    ModelEvent,
    PromptFile,
    PromptMessage,
    StreamFailed,
    ToolCallDone,
    ToolSpec,
)
from chatd.providers.openai_chat.answer import Answer
from chatd.providers.openai_chat.decode import Decoder as ChatDecoder
from chatd.providers.openai_chat.dialect import OPENAI
from chatd.providers.openai_chat.encode import encode as encode_chat
from chatd.providers.openai_responses.decode import Decoder as ResponsesDecoder
from chatd.providers.openai_responses.encode import encode as encode_responses
from chatd.providers.openai_responses.encode import tool_names
from chatd.providers.openai_tools import names_of
from chatd.providers.options_openai import OpenAIOptions
from chatd.providers.schema import ToolNames
from tests.support.providers.openai_chat import NAMES as CHAT_NAMES
from tests.support.providers.openai_chat import FakeChat
from tests.support.providers.openai_chat import stream as chat_stream
from tests.support.providers.openai_responses import NAMES, FakeResponses, stream
from tests.support.providers.openai_sdk import (
    Judged,
    chat_request,
    judge_chat,
    judge_responses,
    openai_client,
    responses_request,
)
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.reading import answer_of, read_whole

ORIGIN = "openai"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
RESPONSES_REASONS = {
    "completed": "stop",
    "max_output_tokens": "length",
    "content_filter": "content-filter",
}
CHAT_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool-calls",
    "content_filter": "content-filter",
}

# It does not mind if a stream is cut off, and cannot read what is no answer of OpenAI's.
FAILING = {"error", "error_nested", "failed", "openrouter_error"}
FOREIGN = {"gemini", "gemini_vertex", "mistral", "ollama", "no_ids", "no_resources"}
# It takes a piece of JSON in every event, also in one whose name it does not know.
READ = [name for name in NAMES if name not in FAILING | {"cut", "unknown"}]
CHAT_READ = [name for name in CHAT_NAMES if name not in FAILING | FOREIGN | {"cut"}]


@pytest.fixture
async def responses() -> AsyncGenerator[FakeResponses]:
    async with FakeResponses.running() as server:
        yield server


@pytest.fixture
async def chat() -> AsyncGenerator[FakeChat]:
    async with FakeChat.running() as server:
        yield server


def read_response(name: str) -> list[ModelEvent]:
    return read_whole(lambda: ResponsesDecoder(ORIGIN, ToolNames([])), stream(name))


def read_chat(name: str) -> list[ModelEvent]:
    return read_whole(lambda: ChatDecoder(Answer(ORIGIN, ToolNames([]))), chat_stream(name))


def text_of(events: list[ModelEvent]) -> str:
    return "".join(part.text for part in answer_of(events).content if isinstance(part, TextPart))


# What streams mean


@pytest.mark.parametrize("name", READ)
async def test_openai_reads_a_response_as_we_do(responses: FakeResponses, name: str) -> None:
    responses.script(stream(name))
    async with openai_client(responses.url) as client:
        judged = await judge_responses(client)
    events = read_response(name)
    content = answer_of(events).content
    if name != "whole_items":  # it knows nothing of text that does not come in pieces
        assert text_of(events) == judged.text + judged.refusal
    if name != "nameless":  # its thoughts are no summary
        assert [p.text for p in content if isinstance(p, ReasoningPart)] == judged.reasoning
    calls = [e for e in events if isinstance(e, ToolCallDone) and e.name != "computer"]
    ours = [(c.id, c.name, c.input) for c in calls if not c.provider_executed]
    assert ours == [(i, name, args or "{}") for i, name, args in judged.calls]
    searches = [
        p.tool_call_id for p in content if isinstance(p, ToolCallPart) and p.provider_executed
    ]
    assert searches == judged.searches
    end = events[-1]
    assert isinstance(end, Finished)
    expected = RESPONSES_REASONS[judged.finish or ""]
    if judged.refusal:
        expected = "content-filter"
    if any(isinstance(e, ToolCallDone) and not e.provider_executed for e in events):
        expected = "tool-calls"
    assert end.reason == expected
    _check_usage(end, judged)


@pytest.mark.parametrize("name", CHAT_READ)
async def test_openai_reads_a_completion_as_we_do(chat: FakeChat, name: str) -> None:
    chat.script(chat_stream(name))
    async with openai_client(chat.url) as client:
        judged = await judge_chat(client)
    events = read_chat(name)
    if name != "half_character":  # it passes the half on
        assert text_of(events) == judged.text + judged.refusal
    calls = [e for e in events if isinstance(e, ToolCallDone)]
    assert [(c.id, c.name, c.input) for c in calls] == judged.calls
    end = events[-1]
    assert isinstance(end, Finished)
    expected = "content-filter" if judged.refusal else CHAT_REASONS[judged.finish or ""]
    assert end.reason == expected
    _check_usage(end, judged)


def _check_usage(end: Finished, judged: Judged) -> None:
    usage = end.usage
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens
    assert (read, usage.cache_read_tokens) == (judged.prompt_tokens, judged.cached_tokens)
    assert usage.output_tokens == judged.output_tokens
    assert usage.reasoning_tokens == judged.reasoning_tokens


@pytest.mark.parametrize("name", ["error", "error_nested"])
async def test_openai_fails_where_we_do_reading_a_response(
    responses: FakeResponses, name: str
) -> None:
    failed = read_response(name)[-1]
    assert isinstance(failed, StreamFailed)
    responses.script(stream(name))
    async with openai_client(responses.url) as client:
        if name == "error_nested":
            with pytest.raises(APIError) as raised:
                await judge_responses(client)
            assert raised.value.message == failed.fault.message
        else:
            assert (await judge_responses(client)).finish is None


@pytest.mark.parametrize("name", ["error", "openrouter_error"])
async def test_openai_fails_where_we_do_reading_a_completion(chat: FakeChat, name: str) -> None:
    failed = read_chat(name)[-1]
    assert isinstance(failed, StreamFailed)
    chat.script(chat_stream(name))
    async with openai_client(chat.url) as client:
        with pytest.raises(APIError) as raised:
            await judge_chat(client)
    assert raised.value.message == failed.fault.message


# What requests say

TOOLS = (
    ToolSpec(name="show.time", description="d", input_schema=Raw(b'{"type":"object"}')),
    ToolSpec(
        name="read_file",
        description="d",
        input_schema=Raw(b'{"type":"object","properties":{"a":{"type":["string","null"]}}}'),
    ),
)
FILES = message(
    "user",
    "Look:",
    PromptFile(media_type="image/png", data=PNG),
    PromptFile(media_type="application/pdf", data=b"%PDF-1", name="a.pdf"),
    PromptFile(media_type="text/csv", data=b"a,b", name="t.csv"),
)
CALLS = [
    message("assistant", "Let me see.", call("a"), call("b")),
    message("tool", result("a", media=PromptFile(media_type="image/png", data=PNG)), result("b")),
]
OPTIONS = OpenAIOptions(
    reasoning_summary="auto",
    text_verbosity="low",
    parallel_tool_calls=False,
    max_tool_calls=3,
    prompt_cache_key="k",
    service_tier="flex",
    web_search_enabled=True,
    search_context_size="low",
    allowed_domains=("example.org",),
    include=("file_search_call.results",),
    instructions="Hurry.",
    user="u",
    metadata={"a": "b"},
    safety_identifier="s",
    strict_json_schema=True,
)
SCHEMA = Raw(b'{"type":"object","properties":{"title":{"type":"string"}}}')


def said(name: str) -> list[PromptMessage]:
    return [message("user", "Hi"), *replayed(answer_of(read_response(name)))]


@pytest.mark.parametrize(
    "messages",
    [
        [message("system", "Be kind."), FILES],
        [message("user", "Hi"), *CALLS],
        *(said(name) for name in ("reasoning", "tools", "web_search", "refusal", "nameless")),
        said("computer"),
    ],
)
@pytest.mark.parametrize("model", ["gpt-4.1", "gpt-5.4"])
def test_a_response_is_asked_for_in_openais_words(
    messages: list[PromptMessage], model: str
) -> None:
    for more in (
        {"options": OpenAIOptions()},
        {"options": OPTIONS, "tool_choice": ForcedTool(name="show.time")},
    ):
        options = more["options"]
        assert isinstance(options, OpenAIOptions)
        asked = request(
            *messages,
            model=model,
            tools=TOOLS,
            computer=ComputerTool(width_px=1280, height_px=800),
            tool_choice=more.get("tool_choice", "auto"),
            max_output_tokens=100,
            temperature=0.5,
            top_p=0.5,
            reasoning_effort="xhigh",
            output_schema=SCHEMA,
        )
        body = encode_responses(asked, options, tool_names(asked, options), ORIGIN)
        # The size of a screenshot is described but not yet among the client's types.
        plain = body.replace(b',"detail":"original"', b"")
        assert responses_request(plain) == msgspec.json.decode(plain)


@pytest.mark.parametrize(
    "messages",
    [
        [message("system", "Be kind."), FILES],
        [message("user", "Hi"), *CALLS],
        *(said(name) for name in ("reasoning", "tools", "web_search")),
    ],
)
@pytest.mark.parametrize("model", ["gpt-4o-search-preview", "gpt-5"])
def test_a_completion_is_asked_for_in_openais_words(
    messages: list[PromptMessage], model: str
) -> None:
    asked = request(
        *messages,
        model=model,
        tools=TOOLS,
        tool_choice=ForcedTool(name="show.time"),
        max_output_tokens=100,
        temperature=0.5,
        presence_penalty=0.5,
        reasoning_effort="low",
        output_schema=SCHEMA,
    )
    options = msgspec.structs.replace(
        OPTIONS,
        logit_bias={"5": 1},
        top_log_probs=2,
        prediction=Raw(b'{"type":"content","content":"x"}'),
        store=False,
    )
    body = encode_chat(asked, options, names_of(asked), OPENAI, ORIGIN)
    assert chat_request(body) == msgspec.json.decode(body)
