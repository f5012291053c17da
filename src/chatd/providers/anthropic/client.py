"""The Messages API over HTTP: where the two pure halves meet a socket."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.providers.anthropic.decode import Decoder
from chatd.providers.anthropic.encode import VERSION, Encoded, encode
from chatd.providers.http import Http
from chatd.providers.settings import (
    ProviderSettings,
    base_url,
    join_url,
    merge_headers,
    misconfigured,
    own_headers,
    require_key,
    user_agent,
)

BASE_URL: Final = "https://api.anthropic.com"


class AnthropicProvider:
    """Satisfies `domain.ports.Provider`."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        # Everybody's habit differs on whether the version belongs to the base.
        base = base_url(settings, BASE_URL).removesuffix("/v1")
        self._url = join_url(base, "/v1/messages")
        own = own_headers(settings)
        names = {name.lower() for name in own}
        self._auth: dict[str, str] = {}
        if not names & {"authorization", "x-api-key"}:
            self._auth = {"x-api-key": require_key(settings).reveal()}
        self._http = Http(settings.label, settings.secrets, settings.http)

    @property
    def name(self) -> str:
        return self._settings.label

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        try:
            encoded = encode(request)
        except InvalidInput as error:
            raise misconfigured(self._settings, error.message) from None
        async with self._http.stream(
            url=self._url,
            headers=self._headers(request, encoded),
            body=encoded.body,
            decoder=Decoder(encoded.names),
        ) as events:
            yield events

    async def close(self) -> None:
        await self._http.close()

    def _headers(self, request: ModelRequest, encoded: Encoded) -> dict[str, str]:
        own = own_headers(self._settings)
        headers = merge_headers(
            request.headers,
            {
                "content-type": "application/json",
                "accept": "text/event-stream",
                "user-agent": user_agent(),
                "anthropic-version": VERSION,
                **self._auth,
            },
            own,
        )
        betas = [*encoded.betas, *filter(None, [headers.get("anthropic-beta")])]
        return {**headers, "anthropic-beta": ",".join(betas)} if betas else headers
