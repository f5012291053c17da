"""The strict fakes accept the request of any history: rows, prompt, encoder and HTTP together."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from chatd.domain.model.protocol import ModelRequest, ProviderError
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from tests.support.domain.histories import FILES, any_history
from tests.support.providers import anthropic, gemini, openai_chat, openai_responses
from tests.support.providers.client import (
    ClientRig,
    anthropic_rig,
    chat_rig,
    compatible_rig,
    gemini_rig,
    responses_rig,
)
from tests.support.providers.stream_reader import collect
from tests.support.tables import table

HISTORIES = 120
TARGET = PromptTarget(provider="here", files=FILES, strict_tools=True)


@pytest.mark.covers("T18")
@table(
    "new_rig model answer",
    {
        "anthropic": (anthropic_rig, "claude-opus-4-6", anthropic.stream("text")),
        "google": (gemini_rig, "gemini-2.5-pro", gemini.stream("text")),
        "responses": (responses_rig, "gpt-5", openai_responses.stream("text")),
        "chat": (chat_rig, "gpt-4o", openai_chat.stream("text")),
        "compatible": (compatible_rig, "qwen3", openai_chat.stream("text")),
    },
)
async def test_a_request_of_any_history_is_accepted(
    new_rig: Callable[[], AbstractAsyncContextManager[ClientRig[Any]]], model: str, answer: bytes
) -> None:
    uses_responses = None if new_rig is not chat_rig else False
    async with (
        new_rig() as rig,
        rig.provider(name="here", use_responses_api=uses_responses) as provider,
    ):
        for seed in range(HISTORIES):
            rig.fake.script(answer)
            messages = build_prompt(any_history(seed), TARGET)
            try:
                await collect(provider, ModelRequest(model=model, messages=messages))
            except ProviderError as failed:
                failed.add_note(f"seed {seed}: {failed.fault}")
                raise
        assert len(rig.fake.requests) == HISTORIES
