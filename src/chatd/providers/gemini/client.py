"""Gemini over HTTP: the pipe between `encode` and `Decoder`."""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest, ProviderError
from chatd.providers.gemini.decode import Decoder
from chatd.providers.gemini.encode import encode, tool_names
from chatd.providers.gemini.finish import refined
from chatd.providers.http import Http
from chatd.providers.options import parse
from chatd.providers.options_google import GoogleOptions
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

DEFAULT_URL: Final = "https://generativelanguage.googleapis.com"

_VERSION: Final = re.compile(r"/v\d+(?:alpha|beta)?\d*(?:/|$)")


class GeminiProvider:
    """Satisfies `domain.ports.Provider`."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        # Everybody's habit differs on whether the version belongs to the base.
        base = base_url(settings, DEFAULT_URL)
        self._base = base if _VERSION.search(urlsplit(base).path) else join_url(base, "/v1beta")
        self._auth: dict[str, str] = {}
        if not {name.lower() for name in settings.headers} & {"authorization", "x-goog-api-key"}:
            self._auth = {"x-goog-api-key": require_key(settings).reveal()}
        self._http = Http(settings.label, settings.secrets, settings.http)

    @property
    def name(self) -> str:
        return self._settings.label

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        options = self._options(request)
        names = tool_names(request)
        body = encode(request, options, names)
        decoder = Decoder(model=request.model, names=names, call_prefix=_call_prefix(body))
        try:
            async with self._http.stream(
                url=self._url(request.model),
                headers=self._headers(request),
                body=body,
                decoder=decoder,
            ) as events:
                yield events
        except ProviderError as failed:
            # Only this vendor's error body says how long to wait, and that a key is wrong.
            fault = refined(failed.fault)
            if fault is failed.fault:
                raise
        else:
            return
        raise self._http.failed(fault)

    async def close(self) -> None:
        await self._http.close()

    def _options(self, request: ModelRequest) -> GoogleOptions:
        try:
            return parse(GoogleOptions, request.options)
        except InvalidInput as error:
            raise misconfigured(self._settings, error.message) from None

    def _url(self, model: str) -> str:
        path = model if "/" in model else f"models/{model}"
        url = urlsplit(join_url(self._base, f"/{quote(path)}:streamGenerateContent"))
        query = f"{url.query}&alt=sse" if url.query else "alt=sse"
        return urlunsplit((url.scheme, url.netloc, url.path, query, ""))

    def _headers(self, request: ModelRequest) -> dict[str, str]:
        return merge_headers(
            request.headers,
            {
                "content-type": "application/json",
                "accept": "text/event-stream",
                "user-agent": user_agent(),
                **self._auth,
            },
            own_headers(self._settings),
        )


def _call_prefix(body: bytes) -> str:
    """Made of the request, so that a call gets the same id when the same is asked again, and
    another in every other step of a chat."""
    return f"call-{hashlib.blake2b(body, digest_size=9).hexdigest()}"
