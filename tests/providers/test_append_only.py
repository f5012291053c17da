"""Each request of a chat extends the one before it byte for byte, on every wire.

The prompt cache of every vendor depends on it. Marks for the cache move by design and are left
out of the comparison. Edits, summaries and changes of the model or its effort may break it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any, Final

import msgspec
import pytest

from chatd.domain.chat.messages import Draft, Message
from chatd.domain.model.protocol import ModelRequest
from chatd.domain.prompt.builder import PromptTarget, build_prompt, next_update
from chatd.domain.prompt.compaction import summary_request
from chatd.domain.prompt.instructions import Instructions
from tests.providers.test_provider_switch import THEIRS, TOOLS, history_of
from tests.support.factories import message
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
from tests.support.providers.stream_reader import collect
from tests.support.sent_requests import SentRequest
from tests.support.tables import table

MIN_SHARE: Final = 0.99


def requests_of(api: str, target: PromptTarget) -> Iterator[ModelRequest]:
    """The requests of a chat whose instructions change at every third one. The last asks for a
    summary."""
    rows: list[Message] = []
    count = 0

    def add(row: Message | Draft) -> None:
        fields = {"visibility": row.visibility, "model_config_id": row.model_config_id}
        rows.append(message(len(rows) + 1, row.role, *row.content, **fields))

    def request() -> ModelRequest:
        return ModelRequest(
            model="", messages=build_prompt(rows, target), tools=TOOLS, max_output_tokens=32_000
        )

    for row in history_of(api):
        if row.role == "assistant":
            told = Instructions(workspace=f"State {count // 3}.", files="Use tabs.")
            if (notice := next_update(rows, told)) is not None:
                add(notice)
            yield request()
            count += 1
        add(row)
    yield summary_request(request())


WIRES = {
    "anthropic": (anthropic_rig, "claude-opus-4-6", anthropic.stream("text"), "anthropic"),
    "older anthropic": (
        anthropic_rig,
        "claude-sonnet-4-5",
        anthropic.stream("text"),
        "anthropic",
    ),
    "newest anthropic": (
        anthropic_rig,
        "claude-sonnet-5-5",
        anthropic.stream("text"),
        "anthropic",
    ),
    "bedrock": (bedrock_rig, "claude-opus-4-6", bedrock.stream("text"), "anthropic"),
    "google": (gemini_rig, "gemini-3-pro-preview", gemini.stream("text"), "gemini"),
    "responses": (responses_rig, "gpt-5", openai_responses.stream("text"), "responses"),
    "chat": (chat_rig, "gpt-4o", openai_chat.stream("text"), "chat"),
    "compatible": (compatible_rig, "qwen3", openai_chat.stream("text"), "chat"),
    "deepseek": (deepseek_rig, "deepseek-v4-pro", openai_chat.stream("text"), "chat"),
    "kimi": (kimi_rig, "kimi-k2.6", openai_chat.stream("text"), "chat"),
}


@pytest.mark.parametrize("effort", [None, "high"])
@table("new_rig model answer api", WIRES)
async def test_each_request_extends_the_one_before_it(
    new_rig: Callable[[], AbstractAsyncContextManager[ClientRig[Any]]],
    model: str,
    answer: bytes,
    api: str,
    effort: Any,
    record_property: Callable[[str, object], None],
) -> None:
    is_strict = new_rig in (anthropic_rig, bedrock_rig)
    target = PromptTarget(provider="here", origins={THEIRS: "here"}, strict_tools=is_strict)
    uses_responses = None if new_rig is not chat_rig else False
    async with (
        new_rig() as rig,
        rig.provider(name="here", use_responses_api=uses_responses) as provider,
    ):
        for sent in requests_of(api, target):
            rig.fake.script(answer)
            await collect(
                provider, msgspec.structs.replace(sent, model=model, reasoning_effort=effort)
            )
        requests = [SentRequest.of(request.body) for request in rig.fake.requests]
    assert len(requests) > 5
    pairs = list(pairwise(requests))
    share = sum(one.shared_bytes(two) for one, two in pairs) / sum(one.size for one, _ in pairs)
    record_property("share", share)
    broken = [n for n, (one, two) in enumerate(pairs) if one.shared_bytes(two) < one.size]
    assert (broken, share >= MIN_SHARE) == ([], True)
