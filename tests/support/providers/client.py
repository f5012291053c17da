"""A provider's client and the fake API that it calls."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

import msgspec
import pytest

from chatd.domain.model.protocol import ModelEvent, ModelRequest, ProviderError
from chatd.domain.ports import Provider
from chatd.providers.provider_config import ProviderConfig, ProviderKind, Secret
from chatd.providers.registry import build_provider
from tests.support.clock import FakeClock
from tests.support.providers import anthropic, gemini
from tests.support.providers.anthropic import FakeAnthropic
from tests.support.providers.bedrock import CREDENTIALS, REGION, FakeBedrock
from tests.support.providers.gemini import FakeGemini
from tests.support.providers.openai_chat import FakeChat, FakeCompatible, FakeDeepSeek, FakeKimi
from tests.support.providers.openai_responses import KEY as OPENAI_KEY
from tests.support.providers.openai_responses import FakeResponses
from tests.support.providers.prompts import request
from tests.support.providers.server import FakeServer
from tests.support.providers.stream_reader import collect

FakeT = TypeVar("FakeT", bound=FakeServer)


class ClientRig(Generic[FakeT]):
    def __init__(self, fake: FakeT, config: ProviderConfig, model: str) -> None:
        self.fake = fake
        self.config = config
        self.model = model

    @asynccontextmanager
    async def provider(self, **config: object) -> AsyncGenerator[Provider]:
        """A provider with these fields of its config changed."""
        chosen = msgspec.structs.replace(self.config, **config)
        provider = build_provider(chosen, FakeClock())
        try:
            yield provider
        finally:
            await provider.close()

    async def ask(self, sent: ModelRequest | None = None, **config: object) -> list[ModelEvent]:
        async with self.provider(**config) as provider:
            return await collect(provider, sent or request(model=self.model))

    async def failure(self, sent: ModelRequest | None = None, **config: object) -> ProviderError:
        with pytest.raises(ProviderError) as caught:
            await self.ask(sent, **config)
        return caught.value


@asynccontextmanager
async def _rig(
    fake_class: type[FakeT], kind: ProviderKind, model: str, path: str = "", **config: object
) -> AsyncGenerator[ClientRig[FakeT]]:
    async with fake_class.running() as fake:
        plain = ProviderConfig(kind=kind, base_url=f"{fake.url}{path}")
        yield ClientRig(fake, msgspec.structs.replace(plain, **config), model)


def anthropic_rig() -> AbstractAsyncContextManager[ClientRig[FakeAnthropic]]:
    return _rig(FakeAnthropic, "anthropic", "claude-sonnet-4-5", api_key=Secret(anthropic.KEY))


def bedrock_rig() -> AbstractAsyncContextManager[ClientRig[FakeBedrock]]:
    model = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
    return _rig(FakeBedrock, "bedrock", model, region=REGION, aws=CREDENTIALS)


def gemini_rig() -> AbstractAsyncContextManager[ClientRig[FakeGemini]]:
    return _rig(FakeGemini, "google", "gemini-2.5-flash", api_key=Secret(gemini.KEY))


def responses_rig() -> AbstractAsyncContextManager[ClientRig[FakeResponses]]:
    return _rig(FakeResponses, "openai", "gpt-4.1", "/v1", api_key=Secret(OPENAI_KEY))


def chat_rig() -> AbstractAsyncContextManager[ClientRig[FakeChat]]:
    return _rig(FakeChat, "openai", "gpt-3.5-turbo", "/v1", api_key=Secret(OPENAI_KEY))


def deepseek_rig() -> AbstractAsyncContextManager[ClientRig[FakeDeepSeek]]:
    return _rig(FakeDeepSeek, "openai-compat", "deepseek-v4-pro", "/v1")


def kimi_rig() -> AbstractAsyncContextManager[ClientRig[FakeKimi]]:
    return _rig(FakeKimi, "openai-compat", "kimi-k2.6", "/v1")


def compatible_rig() -> AbstractAsyncContextManager[ClientRig[FakeCompatible]]:
    return _rig(FakeCompatible, "openai-compat", "qwen3", "/v1", api_key=Secret(OPENAI_KEY))
