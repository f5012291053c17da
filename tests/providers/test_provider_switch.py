"""A chat changes its model: the strict fake of every provider accepts the history of every other,
with reasoning, provider-executed tools, images and calls with odd ids."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.answer import Answer
from chatd.domain.answer.assembler import used_call_ids
from chatd.domain.chat.messages import Message, local_calls
from chatd.domain.chat.parts import FilePart, ReasoningPart, TextPart, ToolCallPart
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import Finished, ModelRequest, ProviderError, ToolSpec
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from tests.support.factories import call, message, result, text
from tests.support.providers import anthropic, bedrock, gemini, openai_chat, openai_responses
from tests.support.providers.client import (
    ClientRig,
    anthropic_rig,
    bedrock_rig,
    chat_rig,
    compatible_rig,
    deepseek_rig,
    gemini_rig,
    kimi_rig,
    responses_rig,
)
from tests.support.providers.recorded import APIS
from tests.support.providers.stream_reader import collect
from tests.support.tables import table

PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
ODD_IDS: Final = ("call:1/ä b", "x" * 90, "functions.read_file:0", "1")
THEIRS, OURS = (ModelConfigId(UUID(int=number)) for number in (1, 2))
TOOLS = tuple(
    ToolSpec(name=name, description="", input_schema=Raw(b'{"type":"object"}'))
    for name in ("get_weather", "read_file", "show.time", "write_file", "computer")
)


def recorded_answers(api: str) -> Iterator[Answer]:
    """All whole answers that are recorded of this API."""
    for name in APIS[api].names:
        events = APIS[api].read(name)
        if isinstance(events[-1], Finished):
            yield APIS[api].answer(name)


def history_of(api: str) -> list[Message]:
    """A chat whose answers this API wrote: every recorded answer, each call with a result."""
    rows: list[Message] = []

    def add(role: Any, *parts: Any, **columns: object) -> None:
        rows.append(message(len(rows) + 1, role, *parts, **columns))

    for number, answer in enumerate(recorded_answers(api)):
        picture = FilePart(media_type="image/png", data=PNG, name="a.png")
        add("user", text(f"Question {number}"), *([picture] if number % 2 else []))
        content = _with_unique_ids(answer, rows)
        add("assistant", *content, model_config_id=THEIRS)
        for one in local_calls(content):
            shown = f'{{"data":"{PNG}","mime_type":"image/png","text":"seen"}}'
            add("tool", result(one.tool_call_id, one.tool_name, shown, is_media=True))
    add("user", text("And then?"))
    add("assistant", *(call(one, "read_file", "{}") for one in ODD_IDS), model_config_id=THEIRS)
    for one in ODD_IDS:
        add("tool", result(one, "read_file", '{"output":"done"}'))
    add("user", text("Go on."))
    return rows


def _with_unique_ids(answer: Answer, rows: list[Message]) -> tuple[Any, ...]:
    used = used_call_ids(rows)
    return tuple(
        msgspec.structs.replace(part, tool_call_id=f"{part.tool_call_id}-{len(rows)}")
        if isinstance(part, ToolCallPart) and part.tool_call_id in used
        else part
        for part in answer.content
    )


@pytest.mark.covers("T18")
@pytest.mark.parametrize("source", sorted(APIS))
@table(
    "new_rig model answer strict",
    {
        "anthropic": (anthropic_rig, "claude-opus-4-6", anthropic.stream("text"), True),
        "newest anthropic": (anthropic_rig, "claude-sonnet-5-5", anthropic.stream("text"), True),
        "bedrock": (bedrock_rig, "claude-opus-4-6", bedrock.stream("text"), True),
        "google": (gemini_rig, "gemini-3-pro-preview", gemini.stream("text"), False),
        "responses": (responses_rig, "gpt-5", openai_responses.stream("text"), False),
        "chat": (chat_rig, "gpt-4o", openai_chat.stream("text"), False),
        "compatible": (compatible_rig, "qwen3", openai_chat.stream("text"), False),
        "deepseek": (deepseek_rig, "deepseek-v4-pro", openai_chat.stream("text"), False),
        "kimi": (kimi_rig, "kimi-k2.6", openai_chat.stream("text"), False),
    },
)
async def test_the_history_of_every_provider_is_accepted_by_every_other(
    source: str,
    new_rig: Callable[[], AbstractAsyncContextManager[ClientRig[Any]]],
    model: str,
    answer: bytes,
    *,
    strict: bool,
) -> None:
    history = history_of(source)
    target = PromptTarget(
        provider="here", origins={THEIRS: "there", OURS: "here"}, strict_tools=strict
    )
    sent = ModelRequest(model=model, messages=build_prompt(history, target), tools=TOOLS)
    uses_responses = None if new_rig is not chat_rig else False
    async with (
        new_rig() as rig,
        rig.provider(name="here", use_responses_api=uses_responses) as provider,
    ):
        rig.fake.script(answer)
        try:
            await collect(provider, sent)
        except ProviderError as failed:
            failed.add_note(str(failed.fault))
            raise


@pytest.mark.parametrize("source", sorted(APIS))
def test_nothing_that_only_the_other_provider_can_read_is_sent(source: str) -> None:
    history = history_of(source)
    whole = build_prompt(history, PromptTarget(provider="there", origins={THEIRS: "there"}))
    switched = build_prompt(history, PromptTarget(provider="here", origins={THEIRS: "there"}))
    assert any(_is_vendor_content(part) for sent in whole for part in sent.parts)
    assert not any(_is_vendor_content(part) for sent in switched for part in sent.parts)


def _is_vendor_content(part: Any) -> bool:
    return getattr(part, "provider_metadata", msgspec.UNSET) is not msgspec.UNSET or getattr(
        part, "provider_executed", False
    )


def test_the_recorded_histories_have_what_switches_break_on() -> None:
    """The table above is worth as much as its histories."""
    parts = [part for api in APIS for row in history_of(api) for part in row.content]
    assert any(isinstance(part, ReasoningPart) for part in parts)
    assert any(isinstance(part, ToolCallPart) and part.provider_executed for part in parts)
    assert any(isinstance(part, FilePart) for part in parts)
    assert any(isinstance(part, TextPart) for part in parts)
