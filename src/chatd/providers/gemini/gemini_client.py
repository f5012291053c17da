"""Provider for Google's Gemini API."""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest, ProviderError, as_function
from chatd.providers.gemini.gemini_decoder import GeminiDecoder, refine_fault
from chatd.providers.gemini.gemini_models import GoogleOptions
from chatd.providers.gemini.gemini_request import encode_request, gemini_tool_names
from chatd.providers.http import ProviderSession, digest_off_loop, encode_off_loop
from chatd.providers.options import parse_options
from chatd.providers.provider_config import (
    ProviderConfig,
    base_url,
    config_fault,
    join_url,
    list_headers,
    request_headers,
    require_key,
)

GEMINI_URL: Final = "https://generativelanguage.googleapis.com"

_VERSION: Final = re.compile(r"/v\d+(?:alpha|beta)?\d*(?:/|$)")


class GeminiProvider:
    """Satisfies `domain.ports.Provider`."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        # Operators write the base URL with or without the version.
        base = base_url(config, GEMINI_URL)
        self._base = base if _VERSION.search(urlsplit(base).path) else join_url(base, "/v1beta")
        self._auth: dict[str, str] = {}
        if not {name.lower() for name in config.headers} & {"authorization", "x-goog-api-key"}:
            self._auth = {"x-goog-api-key": require_key(config).reveal()}
        self._session = ProviderSession(config.label, config.secrets, config.http)

    @property
    def name(self) -> str:
        return self._config.label

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        request = as_function(request)
        options = self._options(request)
        names = gemini_tool_names(request)
        body = await encode_off_loop(request, lambda: encode_request(request, options, names))
        prefix = await digest_off_loop(body, _call_prefix)
        decoder = GeminiDecoder(model=request.model, names=names, call_prefix=prefix)
        try:
            async with self._session.stream(
                url=self._url(request.model),
                headers=request_headers(self._config, request, self._auth),
                body=body,
                decoder=decoder,
            ) as events:
                yield events
        except ProviderError as failed:
            # Google's error body contains the retry delay and marks an invalid key.
            fault = refine_fault(failed.fault)
            if fault is failed.fault:
                raise
        else:
            return
        raise self._session.build_failure(fault)

    async def read_model_list(self) -> bytes:
        url = join_url(self._base, "/models")
        url = f"{url}{'&' if '?' in url else '?'}pageSize=1000"
        return await self._session.read(url, list_headers(self._config, self._auth))

    def can_continue(self, request: ModelRequest) -> bool:
        """Whether Gemini goes on from its own last message is not documented."""
        del request
        return False

    async def close(self) -> None:
        await self._session.close()

    def _options(self, request: ModelRequest) -> GoogleOptions:
        try:
            return parse_options(GoogleOptions, request.options)
        except InvalidInput as error:
            raise config_fault(self._config, error.message) from None

    def _url(self, model: str) -> str:
        path = model if "/" in model else f"models/{model}"
        url = urlsplit(join_url(self._base, f"/{quote(path)}:streamGenerateContent"))
        query = f"{url.query}&alt=sse" if url.query else "alt=sse"
        return urlunsplit((url.scheme, url.netloc, url.path, query, ""))


def _call_prefix(body: bytes) -> str:
    """A hash of the request: call ids are equal when it is repeated and differ in other steps."""
    return f"call-{hashlib.blake2b(body, digest_size=9).hexdigest()}"
