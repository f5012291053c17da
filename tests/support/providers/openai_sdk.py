"""OpenAI's own client, to check our requests and our decoder."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import msgspec
from openai import AsyncOpenAI
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.completion_usage import CompletionUsage
from openai.types.responses import (
    EasyInputMessageParam,
    Response,
    ResponseCompletedEvent,
    ResponseIncompleteEvent,
    ResponseUsage,
)
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from tests.support.providers.openai_responses import KEY

_RESPONSES: TypeAdapter[object] = TypeAdapter(ResponseCreateParamsStreaming)
_CHAT: TypeAdapter[object] = TypeAdapter(CompletionCreateParamsStreaming)

Fields = dict[str, object]


def responses_request(body: bytes) -> Fields:
    """The body by the client's types: unknown fields are dropped, invalid ones raise."""
    return _through(_RESPONSES, body)


def chat_request(body: bytes) -> Fields:
    return _through(_CHAT, body)


def _through(adapter: TypeAdapter[object], body: bytes) -> Fields:
    valid = adapter.validate_python(msgspec.json.decode(body))
    return cast("Fields", _forced(valid))


def _forced(value: object) -> object:
    """Lists are validated only when they are read."""
    if isinstance(value, dict):
        return {key: _forced(inner) for key, inner in cast("Fields", value).items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return [_forced(inner) for inner in cast("Iterable[object]", value)]


@dataclass(kw_only=True)
class OpenAiReading:
    """What OpenAI's client reads from a stream."""

    text: str = ""
    refusal: str = ""
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    searches: list[str] = field(default_factory=list[str])
    finish: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@asynccontextmanager
async def openai_client(url: str) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client:
        yield client


async def judge_chat(client: AsyncOpenAI) -> OpenAiReading:
    judged = OpenAiReading()
    calls: dict[int, list[str]] = {}
    stream = await client.chat.completions.create(
        model="gpt-4.1", messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    async with stream:
        async for chunk in stream:
            _count_chat(judged, chunk.usage)
            for choice in chunk.choices:
                judged.finish = choice.finish_reason or judged.finish
                judged.text += choice.delta.content or ""
                judged.refusal += choice.delta.refusal or ""
                for call in choice.delta.tool_calls or ():
                    known = calls.setdefault(call.index, ["", "", ""])
                    function = call.function
                    pieces = (call.id, function and function.name, function and function.arguments)
                    for at, piece in enumerate(pieces):
                        known[at] += piece or ""
    judged.calls = [(one[0], one[1], one[2]) for one in calls.values()]
    return judged


def _count_chat(judged: OpenAiReading, usage: CompletionUsage | None) -> None:
    if usage is None:
        return
    judged.prompt_tokens = usage.prompt_tokens
    judged.output_tokens = usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        judged.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
    if usage.completion_tokens_details is not None:
        judged.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens or 0


async def judge_responses(client: AsyncOpenAI) -> OpenAiReading:
    """From the complete response that the last event repeats."""
    judged = OpenAiReading()
    stream = await client.responses.create(model="gpt-4.1", input=[_HI], stream=True)
    async with stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                judged.text += event.delta
            elif isinstance(event, ResponseCompletedEvent | ResponseIncompleteEvent):
                _judge_response(judged, event.response)
    return judged


def _judge_response(judged: OpenAiReading, response: Response) -> None:
    judged.finish = response.status
    if response.incomplete_details is not None:
        judged.finish = response.incomplete_details.reason
    for item in response.output:
        if item.type == "reasoning":
            judged.reasoning.append("\n\n".join(part.text for part in item.summary))
        elif item.type == "function_call":
            judged.calls.append((item.call_id, item.name, item.arguments))
        elif item.type == "web_search_call":
            judged.searches.append(item.id)
        elif item.type == "message":
            judged.refusal += "".join(p.refusal for p in item.content if p.type == "refusal")
    _count_responses(judged, response.usage)


_HI = EasyInputMessageParam(role="user", content="Hi", type="message")


def _count_responses(judged: OpenAiReading, usage: ResponseUsage | None) -> None:
    if usage is not None:
        judged.prompt_tokens = usage.input_tokens
        judged.output_tokens = usage.output_tokens
        judged.cached_tokens = usage.input_tokens_details.cached_tokens
        judged.reasoning_tokens = usage.output_tokens_details.reasoning_tokens
