"""Where a provider of OpenAI's wires is, and how one gets in."""

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.providers.http import Decoder, Http
from chatd.providers.options import parse
from chatd.providers.secret import Secret
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

OPENAI_URL: Final = "https://api.openai.com/v1"
OPENROUTER_URL: Final = "https://openrouter.ai/api/v1"
VERCEL_URL: Final = "https://ai-gateway.vercel.sh/v1"

_AZURE: Final = re.compile(
    r"([a-z0-9-]+)\.(?:openai|cognitiveservices|services\.ai)\.azure\.com", re.IGNORECASE
)

_T = TypeVar("_T", bound=Struct)


class Link:
    """One provider's address, key and session."""

    def __init__(self, settings: ProviderSettings, base: str) -> None:
        self.settings = settings
        self.base = base
        self._key = _key(settings)
        secrets = settings.secrets if self._key is None else (self._key, *settings.secrets)
        self._http = Http(settings.label, secrets, settings.http)

    @property
    def origin(self) -> str:
        """Whose seals can be opened here: another account's cannot, though all else be the same,
        and a chat that holds one would be refused for ever. It is kept with messages, so the
        key is in it only as a few bits that lead nowhere."""
        account = "" if self._key is None else self._key.reveal()
        mark = hashlib.blake2b(f"{self.base} {account}".encode(), digest_size=4).hexdigest()
        return f"{self.settings.label}:{mark}"

    def options(self, block: type[_T], request: ModelRequest) -> _T:
        try:
            return parse(block, request.options)
        except InvalidInput as error:
            raise misconfigured(self.settings, error.message) from None

    def stream(
        self, path: str, request: ModelRequest, body: bytes, decoder: Decoder
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        return self._http.stream(
            url=join_url(self.base, path),
            headers=self._headers(request),
            body=body,
            decoder=decoder,
        )

    async def close(self) -> None:
        await self._http.close()

    def _headers(self, request: ModelRequest) -> dict[str, str]:
        return merge_headers(
            request.headers,
            {
                "content-type": "application/json",
                "accept": "text/event-stream",
                "user-agent": user_agent(),
                **self._auth(),
            },
            own_headers(self.settings),
        )

    def _auth(self) -> dict[str, str]:
        if self._key is None:
            return {}
        if self.settings.kind == "azure":
            return {"api-key": self._key.reveal()}
        return {"authorization": f"Bearer {self._key.reveal()}"}


def _key(settings: ProviderSettings) -> Secret | None:
    """A server on one's own machine mostly wants none, and a header may stand in for it."""
    named = {name.lower() for name in settings.headers}
    optional = settings.kind == "openai-compat" or named & {"authorization", "api-key"}
    return None if optional and not settings.api_key else require_key(settings)


def address(settings: ProviderSettings) -> str:
    """The base of all paths, with the version in it."""
    match settings.kind:
        case "openrouter":
            return OPENROUTER_URL
        case "vercel":
            return base_url(settings, VERCEL_URL)
        case "azure":
            return azure_url(base_url(settings, None))
        case "openai":
            return base_url(settings, OPENAI_URL)
        case _:
            return base_url(settings, None)


def azure_url(base: str) -> str:
    """A resource has several names and addresses of several ages; all lead to the one below.
    Somebody's own gateway is left as it is."""
    match = _AZURE.fullmatch(urlsplit(base).hostname or "")
    return base if match is None else f"https://{match[1].lower()}.openai.azure.com/openai/v1"
