"""Anthropic's client decodes streams as chatd does, and its types accept chatd's requests.

Importing it takes most of the time here.
"""

from collections.abc import Iterable
from typing import TypeGuard

import msgspec
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import (
    Message,
    MessageParam,
    ServerToolUseBlock,
    ToolUseBlock,
    message_create_params,
)
from anthropic.types.beta import message_create_params as beta_params
from msgspec import Raw, structs
from pydantic import BaseModel, TypeAdapter

from chatd.domain.chat.parts import ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.model.protocol import Finished
from chatd.providers.anthropic.anthropic_decoder import AnthropicDecoder
from chatd.providers.anthropic.anthropic_request import encode_request
from chatd.providers.anthropic.anthropic_wire import unpack_metadata
from tests.support.providers.anthropic import KEY, STREAMS, FakeAnthropic, stream
from tests.support.providers.anthropic_requests import MODELS, VARIANTS, requests
from tests.support.providers.stream_reader import answer_of, read_whole

WELL_ENDED = sorted(
    path.stem
    for path in STREAMS.glob("*.sse")
    if path.stem not in ("cut_off", "error_midway", "no_reason", "unknown_things", "max_tokens")
)
HELLO: list[MessageParam] = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]


async def official(name: str) -> Message:
    async with (
        FakeAnthropic.running() as fake,
        AsyncAnthropic(api_key=KEY, base_url=fake.url, max_retries=0) as client,
    ):
        fake.play(name)
        async with client.messages.stream(max_tokens=9, model="m", messages=HELLO) as events:
            return await events.get_final_message()


@pytest.mark.parametrize("name", WELL_ENDED)
async def test_anthropics_client_decodes_the_same(name: str) -> None:
    theirs = await official(name)
    ours = answer_of(read_whole(AnthropicDecoder, stream(name)))
    texts = [block.text for block in theirs.content if block.type == "text"]
    assert "".join(texts) == "".join(p.text for p in ours.content if isinstance(p, TextPart))
    thoughts = [(b.thinking, b.signature) for b in theirs.content if b.type == "thinking"]
    own = [
        (part.text, unpack_metadata(part.provider_metadata).signature)
        for part in ours.content
        if isinstance(part, ReasoningPart) and unpack_metadata(part.provider_metadata).signature
    ]
    assert own == thoughts
    assert calls(ours.content) == their_calls(theirs)
    results = [b for b in theirs.content if b.type == "web_search_tool_result"]
    assert [b.tool_use_id for b in results] == [
        part.tool_call_id for part in ours.content if isinstance(part, ToolResultPart)
    ]
    assert ours.finished is not None
    same_ending(ours.finished, theirs)


def calls(content: tuple[object, ...]) -> list[tuple[str, str, object]]:
    return [
        (part.tool_call_id, part.tool_name, msgspec.json.decode(part.args))
        for part in content
        if isinstance(part, ToolCallPart) and isinstance(part.args, Raw)
    ]


def their_calls(message: Message) -> list[tuple[str, str, object]]:
    found: list[tuple[str, str, object]] = []
    for block in message.content:
        if isinstance(block, ToolUseBlock) and block.toolset_name:
            found.append((block.id, "computer", {"action": block.name, **block.input}))
        elif isinstance(block, ToolUseBlock | ServerToolUseBlock):
            found.append((block.id, block.name, block.input))
    return found


def same_ending(ours: Finished, theirs: Message) -> None:
    usage = theirs.usage
    assert ours.response_id == theirs.id
    assert ours.usage.input_tokens == usage.input_tokens
    assert ours.usage.output_tokens == usage.output_tokens
    assert ours.usage.cache_creation_tokens == (usage.cache_creation_input_tokens or 0)
    assert ours.usage.cache_read_tokens == (usage.cache_read_input_tokens or 0)
    details = usage.output_tokens_details
    assert ours.usage.reasoning_tokens == (details.thinking_tokens if details else 0)
    assert isinstance(ours.provider_metadata, Raw)
    metadata = msgspec.json.decode(ours.provider_metadata, type=dict[str, dict[str, object]])
    assert metadata["anthropic"]["stop_reason"] == theirs.stop_reason


# Requests

# The newest types have no sampling fields, which old models still need.
REMOVED_FIELDS = ("temperature", "top_p", "top_k")
PARAMS = TypeAdapter[object](message_create_params.MessageCreateParamsStreaming)
BETA_PARAMS = TypeAdapter[object](beta_params.MessageCreateParamsStreaming)


def validated(judge: TypeAdapter[object], body: object) -> object:
    """The validated body, without fields that the types do not know."""
    return materialized(judge.validate_python(body))


def is_dict(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def is_iterable(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, Iterable) and not isinstance(value, str)


def materialized(value: object) -> object:
    """Read iterables, which the validator leaves unread, and models, which it accepts as input."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if is_dict(value):
        return {key: materialized(inner) for key, inner in value.items()}
    return [materialized(inner) for inner in value] if is_iterable(value) else value


@pytest.mark.parametrize("variant", VARIANTS)
def test_anthropics_types_accept_the_requests(variant: str) -> None:
    for model in MODELS[::3]:
        for name, asked in requests(model).items():
            if name == "files":
                continue
            made = encode_request(structs.replace(asked, **VARIANTS[variant]))
            sent = msgspec.json.decode(made.body, type=dict[str, object])
            body = {key: value for key, value in sent.items() if key not in REMOVED_FIELDS}
            judge = BETA_PARAMS if made.betas else PARAMS
            assert validated(judge, body) == body, (model, name)
