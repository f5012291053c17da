"""Provider for Anthropic's Messages API."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest, ProviderError, ProviderFault
from chatd.providers.anthropic.anthropic_decoder import AnthropicDecoder
from chatd.providers.anthropic.anthropic_request import (
    API_VERSION,
    EncodedRequest,
    can_continue,
    encode_request,
)
from chatd.providers.http import ProviderSession, encode_off_loop
from chatd.providers.provider_config import (
    ProviderConfig,
    base_url,
    config_fault,
    join_url,
    list_headers,
    request_headers,
    require_key,
)

ANTHROPIC_URL: Final = "https://api.anthropic.com"

ModelEventStream = AbstractAsyncContextManager[AsyncIterator[ModelEvent]]


@asynccontextmanager
async def stream_without_refused_thinking(
    attempt: Callable[..., ModelEventStream],
) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
    """Stream, and once more without thinking if the API refuses the thinking of the history.

    Newer models bind thinking to all that precedes it. A changed tool or a changed prompt would
    otherwise block the chat for good. Some servers of older models refuse to think after tool calls
    without thinking. The API has not run a request that it refused.
    """
    async with AsyncExitStack() as stack:
        try:
            events = await stack.enter_async_context(attempt(sends_thinking=True))
        except ProviderError as failed:
            if not is_refused_thinking(failed.fault):
                raise
            events = await stack.enter_async_context(attempt(sends_thinking=False))
        yield events


def is_refused_thinking(fault: ProviderFault) -> bool:
    body = fault.body or ""
    is_named = "signature" in body or "must start with a thinking block" in body
    return fault.status_code == 400 and is_named and "thinking" in body


class AnthropicProvider:
    """Satisfies `domain.ports.Provider`."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        # Operators write the base URL with or without the version.
        base = base_url(config, ANTHROPIC_URL).removesuffix("/v1")
        self._base = base
        self._url = join_url(base, "/v1/messages")
        names = {name.lower() for name in config.headers}
        self._auth: dict[str, str] = {}
        if not names & {"authorization", "x-api-key"}:
            self._auth = {"x-api-key": require_key(config).reveal()}
        self._session = ProviderSession(config.label, config.secrets, config.http)

    @property
    def name(self) -> str:
        return self._config.label

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        def attempt(*, sends_thinking: bool) -> ModelEventStream:
            return self._stream(request, sends_thinking=sends_thinking)

        async with stream_without_refused_thinking(attempt) as events:
            yield events

    def can_continue(self, request: ModelRequest) -> bool:
        return can_continue(request)

    @asynccontextmanager
    async def _stream(
        self, request: ModelRequest, *, sends_thinking: bool
    ) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        try:
            encoded = await encode_off_loop(
                request, lambda: encode_request(request, sends_thinking=sends_thinking)
            )
        except InvalidInput as error:
            raise config_fault(self._config, error.message) from None
        async with self._session.stream(
            url=self._url,
            headers=self._headers(request, encoded),
            body=encoded.body,
            decoder=AnthropicDecoder(encoded.names),
        ) as events:
            yield events

    async def read_model_list(self) -> bytes:
        auth = {"anthropic-version": API_VERSION, **self._auth}
        url = join_url(self._base, "/v1/models")
        url = f"{url}{'&' if '?' in url else '?'}limit=1000"
        return await self._session.read(url, list_headers(self._config, auth))

    async def close(self) -> None:
        await self._session.close()

    def _headers(self, request: ModelRequest, encoded: EncodedRequest) -> dict[str, str]:
        auth = {"anthropic-version": API_VERSION, **self._auth}
        headers = request_headers(self._config, request, auth)
        betas = [*encoded.betas, *filter(None, [headers.get("anthropic-beta")])]
        return {**headers, "anthropic-beta": ",".join(betas)} if betas else headers
