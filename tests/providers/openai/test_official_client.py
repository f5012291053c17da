"""OpenAI's client decodes streams and types requests as chatd does.

Importing it takes most of the time here.
"""

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
from chatd.providers.openai.chat_answer import ChatAnswerBuilder
from chatd.providers.openai.chat_decoder import ChatDecoder
from chatd.providers.openai.chat_dialect import OPENAI_DIALECT
from chatd.providers.openai.chat_request import encode_request as encode_chat
from chatd.providers.openai.openai_models import OpenAIOptions
from chatd.providers.openai.openai_tools import build_tool_names
from chatd.providers.openai.responses_decoder import ResponsesDecoder
from chatd.providers.openai.responses_request import encode_request as encode_responses
from chatd.providers.openai.responses_request import responses_tool_names
from chatd.providers.tool_schema import ToolNames
from tests.support.providers.openai_chat import NAMES as CHAT_NAMES
from tests.support.providers.openai_chat import FakeChat
from tests.support.providers.openai_chat import stream as chat_stream
from tests.support.providers.openai_responses import NAMES, FakeResponses, stream
from tests.support.providers.openai_sdk import (
    OpenAiReading,
    chat_request,
    judge_chat,
    judge_responses,
    openai_client,
    responses_request,
)
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.stream_reader import answer_of, read_whole

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

# OpenAI's client accepts cut streams, and cannot read the variants of other servers.
FAILING = {"error", "error_nested", "failed", "openrouter_error"}
FOREIGN = {"gemini", "gemini_vertex", "mistral", "ollama", "no_ids", "no_resources"}
# OpenAI's client requires JSON in every event, even of unknown names.
READ = [name for name in NAMES if name not in FAILING | {"cut", "unknown"}]
CHAT_READ = [name for name in CHAT_NAMES if name not in FAILING | FOREIGN | {"cut"}]


def read_response(name: str) -> list[ModelEvent]:
    return read_whole(lambda: ResponsesDecoder(ORIGIN, ToolNames([])), stream(name))


def read_chat(name: str) -> list[ModelEvent]:
    return read_whole(
        lambda: ChatDecoder(ChatAnswerBuilder(ORIGIN, ToolNames([]))), chat_stream(name)
    )


def text_of(events: list[ModelEvent]) -> str:
    return "".join(part.text for part in answer_of(events).content if isinstance(part, TextPart))


# Streams


@pytest.mark.parametrize("name", READ)
async def test_openais_client_decodes_a_response_the_same(
    responses: FakeResponses, name: str
) -> None:
    responses.script(stream(name))
    async with openai_client(responses.url) as client:
        judged = await judge_responses(client)
    events = read_response(name)
    content = answer_of(events).content
    if name != "whole_items":  # the client ignores text without deltas
        assert text_of(events) == judged.text + judged.refusal
    if name != "nameless":  # its reasoning is not a summary
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
        expected = "refusal"
    if any(isinstance(e, ToolCallDone) and not e.provider_executed for e in events):
        expected = "length" if expected == "length" else "tool-calls"
    assert end.reason == expected
    _check_usage(end, judged)


@pytest.mark.parametrize("name", CHAT_READ)
async def test_openais_client_decodes_a_completion_the_same(chat: FakeChat, name: str) -> None:
    chat.script(chat_stream(name))
    async with openai_client(chat.url) as client:
        judged = await judge_chat(client)
    events = read_chat(name)
    if name != "half_character":  # the client keeps the half
        assert text_of(events) == judged.text + judged.refusal
    calls = [e for e in events if isinstance(e, ToolCallDone)]
    assert [(c.id, c.name, c.input) for c in calls] == judged.calls
    end = events[-1]
    assert isinstance(end, Finished)
    expected = "refusal" if judged.refusal else CHAT_REASONS[judged.finish or ""]
    assert end.reason == expected
    _check_usage(end, judged)


def _check_usage(end: Finished, judged: OpenAiReading) -> None:
    usage = end.usage
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens
    assert (read, usage.cache_read_tokens) == (judged.prompt_tokens, judged.cached_tokens)
    assert usage.output_tokens == judged.output_tokens
    assert usage.reasoning_tokens == judged.reasoning_tokens


@pytest.mark.parametrize("name", ["error", "error_nested"])
async def test_openais_client_fails_on_the_same_responses(
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
async def test_openais_client_fails_on_the_same_completions(chat: FakeChat, name: str) -> None:
    failed = read_chat(name)[-1]
    assert isinstance(failed, StreamFailed)
    chat.script(chat_stream(name))
    async with openai_client(chat.url) as client:
        with pytest.raises(APIError) as raised:
            await judge_chat(client)
    assert raised.value.message == failed.fault.message


# Requests

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


def recorded_answer(name: str) -> list[PromptMessage]:
    return [message("user", "Hi"), *replayed(answer_of(read_response(name)))]


@pytest.mark.parametrize(
    "messages",
    [
        [message("system", "Be kind."), FILES],
        [message("user", "Hi"), *CALLS],
        *(
            recorded_answer(name)
            for name in ("reasoning", "tools", "web_search", "refusal", "nameless")
        ),
        recorded_answer("computer"),
    ],
)
@pytest.mark.parametrize("model", ["gpt-4.1", "gpt-5.4"])
def test_openais_types_know_every_field_of_a_response_request(
    messages: list[PromptMessage], model: str
) -> None:
    for more in (
        {"options": OpenAIOptions()},
        {"options": OPTIONS, "tool_choice": ForcedTool(name="show.time")},
    ):
        options = more["options"]
        assert isinstance(options, OpenAIOptions)
        sent = request(
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
        body = encode_responses(sent, options, responses_tool_names(sent, options), ORIGIN)
        # The API documents the detail of a screenshot; the client's types lack it.
        plain = body.replace(b',"detail":"original"', b"")
        assert responses_request(plain) == msgspec.json.decode(plain)


@pytest.mark.parametrize(
    "messages",
    [
        [message("system", "Be kind."), FILES],
        [message("user", "Hi"), *CALLS],
        *(recorded_answer(name) for name in ("reasoning", "tools", "web_search")),
    ],
)
@pytest.mark.parametrize("model", ["gpt-4o-search-preview", "gpt-5"])
def test_openais_types_know_every_field_of_a_completion_request(
    messages: list[PromptMessage], model: str
) -> None:
    sent = request(
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
    body = encode_chat(sent, options, build_tool_names(sent), OPENAI_DIALECT, ORIGIN)
    assert chat_request(body) == msgspec.json.decode(body)
