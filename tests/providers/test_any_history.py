"""The strict fakes accept the request of any history: rows, prompt, encoder and HTTP together."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from chatd.domain.chat.messages import Message
from chatd.domain.model.protocol import ModelRequest, ProviderError
from chatd.domain.ports import Provider
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.providers.config import ProviderConfig, ProviderKind
from chatd.providers.registry import build_provider
from chatd.providers.secret import Secret
from tests.support.clock import FakeClock
from tests.support.domain.histories import FILES, any_history
from tests.support.providers import anthropic, gemini, openai_chat, openai_responses
from tests.support.providers.anthropic import FakeAnthropic
from tests.support.providers.gemini import FakeGemini
from tests.support.providers.openai_chat import FakeChat, FakeCompatible
from tests.support.providers.openai_responses import FakeResponses
from tests.support.providers.server import FakeServer

HISTORIES = 120


class Wire(NamedTuple):
    fake: type[FakeServer]
    kind: ProviderKind
    key: str
    model: str
    path: str = ""


WIRES = {
    "anthropic": Wire(FakeAnthropic, "anthropic", anthropic.KEY, "claude-opus-4-6"),
    "google": Wire(FakeGemini, "google", gemini.KEY, "gemini-2.5-pro"),
    "responses": Wire(FakeResponses, "openai", openai_responses.KEY, "gpt-5", "/v1"),
    "chat": Wire(FakeChat, "openai", openai_responses.KEY, "gpt-4o", "/v1"),
    "compatible": Wire(FakeCompatible, "openai-compat", openai_responses.KEY, "qwen3", "/v1"),
}


@asynccontextmanager
async def sent(wire: str) -> AsyncGenerator[tuple[FakeServer, Provider, str]]:
    played = WIRES[wire]
    async with played.fake.running() as fake:
        settings = ProviderConfig(
            kind=played.kind,
            name="here",
            api_key=Secret(played.key),
            base_url=f"{fake.url}{played.path}",
            use_responses_api=wire == "responses" if played.kind == "openai" else None,
        )
        provider = build_provider(settings, FakeClock())
        try:
            yield fake, provider, played.model
        finally:
            await provider.close()


async def find_rejection(provider: Provider, model: str, history: list[Message]) -> str | None:
    reader = PromptTarget(provider="here", files=FILES, strict_tools=True)
    request = ModelRequest(model=model, messages=build_prompt(history, reader))
    try:
        async with provider.stream(request) as events:
            async for _ in events:
                pass
    except ProviderError as failed:
        return f"{failed.fault.status_code} {failed.fault.message} {failed.fault.body}"
    return None


def answer(wire: str) -> bytes:
    match wire:
        case "anthropic":
            return anthropic.stream("text")
        case "google":
            return (openai_chat.STREAMS.parent / "gemini" / "text.sse").read_bytes()
        case "responses":
            return openai_responses.stream("text")
        case _:
            return (
                openai_chat.chunk(content="ok")
                + openai_chat.chunk(finish="stop")
                + openai_chat.DONE
            )


@pytest.mark.covers("T18")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_request_of_any_history_is_accepted(wire: str) -> None:
    async with sent(wire) as (fake, provider, model):
        for seed in range(HISTORIES):
            fake.script(answer(wire))
            rejection = await find_rejection(provider, model, any_history(seed))
            assert rejection is None, f"seed {seed}: {rejection}"
        assert len(fake.requests) == HISTORIES
