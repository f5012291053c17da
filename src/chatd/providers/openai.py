"""Providers that speak OpenAI's wires: OpenAI, Azure, and everything compatible.

Which of the two wires a model is asked on is decided here and nowhere else;
the options that are understood, and everything sent, follow from it.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from msgspec import structs

from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.providers.openai_chat.client import ChatClient
from chatd.providers.openai_chat.params import ChatOptions
from chatd.providers.openai_link import Link, address
from chatd.providers.openai_models import Transport, transport_of
from chatd.providers.openai_responses.client import ResponsesClient
from chatd.providers.options_openai import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    VercelOptions,
)
from chatd.providers.settings import ProviderSettings


class OpenAIProvider:
    """Satisfies `domain.ports.Provider`. `base` overrides the address, for whom it is fixed."""

    def __init__(self, settings: ProviderSettings, base: str | None = None) -> None:
        self._settings = settings
        self._link = Link(settings, base or address(settings))
        self._responses = ResponsesClient(self._link)
        self._chat = ChatClient(self._link)

    @property
    def name(self) -> str:
        return self._settings.label

    def transport(self, request: ModelRequest) -> Transport:
        """The model's own option counts most, then the provider's, then the model's name."""
        return self._resolved(request)[0]

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        transport, options = self._resolved(request)
        if transport == "responses":
            opened = self._responses.stream(request, _for_responses(options))
        else:
            opened = self._chat.stream(request, options)
        async with opened as events:
            yield events

    async def close(self) -> None:
        await self._link.close()

    def _resolved(self, request: ModelRequest) -> tuple[Transport, ChatOptions]:
        configured = self._settings.use_responses_api
        match self._settings.kind:
            case "openrouter":
                return "chat", self._link.options(OpenRouterOptions, request)
            case "vercel":
                return "chat", self._link.options(VercelOptions, request)
            case "openai-compat":
                compat = self._link.options(CompatOptions, request)
                return "responses" if configured else "chat", compat
            case _:
                options = self._link.options(OpenAIOptions, request)
                wanted = options.use_responses_api
                wanted = configured if wanted is None else wanted
                return transport_of(request.model, use_responses_api=wanted), options


def _for_responses(options: ChatOptions) -> OpenAIOptions:
    if isinstance(options, OpenAIOptions):
        return options
    known = structs.asdict(options) if isinstance(options, CompatOptions) else {}
    return OpenAIOptions(**known)
