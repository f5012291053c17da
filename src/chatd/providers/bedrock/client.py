"""Claude on Amazon Bedrock: the Messages API's codec under AWS's address, signature and framing."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote, urlsplit

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.domain.ports import Clock
from chatd.providers.anthropic.decode import Decoder
from chatd.providers.anthropic.encode import encode
from chatd.providers.bedrock.ambient import Ambient
from chatd.providers.bedrock.eventstream import EventStream
from chatd.providers.bedrock.sigv4 import Scope, signature_headers
from chatd.providers.http import Http
from chatd.providers.settings import (
    AwsCredentials,
    ProviderSettings,
    base_url,
    join_url,
    merge_headers,
    misconfigured,
    own_headers,
    require_key,
    user_agent,
)

_SERVICE: Final = "bedrock"
_HOST: Final = re.compile(r"\bbedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?amazonaws\.com")


class BedrockProvider:
    """Satisfies `domain.ports.Provider`. A signature holds for minutes, so it needs the time."""

    def __init__(self, settings: ProviderSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._region = region_of(settings)
        self._base = base_url(settings, default_url(self._region))
        self._bearer = require_key(settings) if settings.api_key is not None else None
        self._ambient = None
        if self._bearer is None and settings.aws is None:
            self._ambient = Ambient(settings)
        self._http = Http(settings.label, settings.secrets, settings.http)

    @property
    def name(self) -> str:
        return self._settings.label

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        try:
            encoded = encode(request, "bedrock")
        except InvalidInput as error:
            raise misconfigured(self._settings, error.message) from None
        path = f"/model/{quote(request.model, safe=':')}/invoke-with-response-stream"
        url = join_url(self._base, path)
        async with self._http.stream(
            url=url,
            headers=await self._headers(request, url, encoded.body),
            body=encoded.body,
            decoder=Decoder(encoded.names, EventStream()),
        ) as events:
            yield events

    async def close(self) -> None:
        await self._http.close()

    async def _headers(self, request: ModelRequest, url: str, body: bytes) -> dict[str, str]:
        own = own_headers(self._settings)
        plain = {
            "content-type": "application/json",
            "accept": "application/vnd.amazon.eventstream",
            "user-agent": user_agent(),
        }
        headers = merge_headers(request.headers, plain, own)
        if self._bearer is not None:
            return {**headers, "authorization": f"Bearer {self._bearer.reveal()}"}
        credentials = await self._credentials()
        scope = Scope(region=self._region, service=_SERVICE, at=self._clock.now())
        signature = signature_headers(
            url=url, headers=headers, body=body, credentials=credentials, scope=scope
        )
        return {**headers, **signature}

    async def _credentials(self) -> AwsCredentials:
        if self._ambient is not None:
            return await asyncio.to_thread(self._ambient.credentials)
        assert self._settings.aws is not None
        return self._settings.aws


def region_of(settings: ProviderSettings) -> str:
    """As configured, else the one that AWS's own addresses have in them."""
    named = _HOST.search(urlsplit(settings.base_url or "").hostname or "")
    region = (settings.region or "").strip() or (named[1] if named else "")
    if not re.fullmatch(r"[a-z0-9-]+", region):
        raise misconfigured(
            settings,
            f"provider {settings.label} needs an AWS region: set its region, such as"
            " us-east-1, or a base_url that names one",
        )
    return region


def default_url(region: str) -> str:
    suffix = ".cn" if region.startswith("cn-") else ""
    return f"https://bedrock-runtime.{region}.amazonaws.com{suffix}"
