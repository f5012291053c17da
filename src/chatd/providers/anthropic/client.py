"""Provider for Anthropic's Messages API."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.providers.anthropic.decoder import AnthropicDecoder
from chatd.providers.anthropic.request import API_VERSION, EncodedRequest, encode_request
from chatd.providers.config import (
    ProviderConfig,
    base_url,
    config_fault,
    join_url,
    request_headers,
    require_key,
)
from chatd.providers.http import ProviderSession

ANTHROPIC_URL: Final = "https://api.anthropic.com"


class AnthropicProvider:
    """Satisfies `domain.ports.Provider`."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        # Operators write the base URL with or without the version.
        base = base_url(config, ANTHROPIC_URL).removesuffix("/v1")
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
        try:
            encoded = encode_request(request)
        except InvalidInput as error:
            raise config_fault(self._config, error.message) from None
        async with self._session.stream(
            url=self._url,
            headers=self._headers(request, encoded),
            body=encoded.body,
            decoder=AnthropicDecoder(encoded.names),
        ) as events:
            yield events

    async def close(self) -> None:
        await self._session.close()

    def _headers(self, request: ModelRequest, encoded: EncodedRequest) -> dict[str, str]:
        auth = {"anthropic-version": API_VERSION, **self._auth}
        headers = request_headers(self._config, request, auth)
        betas = [*encoded.betas, *filter(None, [headers.get("anthropic-beta")])]
        return {**headers, "anthropic-beta": ",".join(betas)} if betas else headers
