"""Address, authentication and HTTP session of a provider with OpenAI's APIs."""

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar
from urllib.parse import urljoin, urlsplit, urlunsplit

from msgspec import Struct

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.providers.config import (
    ProviderConfig,
    base_url,
    config_fault,
    join_url,
    list_headers,
    request_headers,
    require_key,
)
from chatd.providers.http import ProviderSession, StreamDecoder
from chatd.providers.options import parse_options
from chatd.providers.secret import Secret

OPENAI_URL: Final = "https://api.openai.com/v1"
OPENROUTER_URL: Final = "https://openrouter.ai/api/v1"
VERCEL_URL: Final = "https://ai-gateway.vercel.sh/v1"

_AZURE: Final = re.compile(
    r"([a-z0-9-]+)\.(?:openai|cognitiveservices|services\.ai)\.azure\.com", re.IGNORECASE
)

_T = TypeVar("_T", bound=Struct)


class OpenAIConnection:
    def __init__(self, config: ProviderConfig, base: str) -> None:
        self.config = config
        self.base = base
        self._key = _key(config)
        secrets = config.secrets if self._key is None else (self._key, *config.secrets)
        self._session = ProviderSession(
            config.label, secrets, config.http, wrong_path_hint=suggest_version_path(base)
        )

    @property
    def origin(self) -> str:
        """Identifies the account that encrypted a part. The API rejects encrypted reasoning of
        another account, which would block a chat for good. Stored with messages, so the key is
        in it only as a short hash."""
        account = "" if self._key is None else self._key.reveal()
        mark = hashlib.blake2b(f"{self.base} {account}".encode(), digest_size=4).hexdigest()
        return f"{self.config.label}:{mark}"

    def parse_options(self, block: type[_T], request: ModelRequest) -> _T:
        try:
            return parse_options(block, request.options)
        except InvalidInput as error:
            raise config_fault(self.config, error.message) from None

    def stream(
        self,
        path: str,
        request: ModelRequest,
        body: bytes,
        decoder: StreamDecoder,
        *,
        root: str | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """`root` replaces the path of the base address, at the same server."""
        base = self.base if root is None else urljoin(self.base, root)
        return self._session.stream(
            url=join_url(base, path),
            headers=request_headers(self.config, request, self._auth()),
            body=body,
            decoder=decoder,
        )

    async def read_model_list(self) -> bytes:
        return await self._session.read(
            join_url(self.base, "/models"), list_headers(self.config, self._auth())
        )

    async def close(self) -> None:
        await self._session.close()

    def _auth(self) -> dict[str, str]:
        if self._key is None:
            return {}
        if self.config.kind == "azure":
            return {"api-key": self._key.reveal()}
        return {"authorization": f"Bearer {self._key.reveal()}"}


def _key(config: ProviderConfig) -> Secret | None:
    """None if a compatible server needs no key, or if a configured header replaces it."""
    named = {name.lower() for name in config.headers}
    optional = config.kind == "openai-compat" or named & {"authorization", "api-key"}
    return None if optional and not config.api_key else require_key(config)


def base_address(config: ProviderConfig) -> str:
    """The base of all paths, including the API version."""
    match config.kind:
        case "openrouter":
            return base_url(config, OPENROUTER_URL)
        case "vercel":
            return base_url(config, VERCEL_URL)
        case "azure":
            return azure_url(base_url(config, None))
        case "openai":
            return base_url(config, OPENAI_URL)
        case _:
            return base_url(config, None)


def suggest_version_path(base: str) -> str | None:
    """The base URL that is most likely meant, if this one has no version in its path."""
    url = urlsplit(base)
    if any(re.fullmatch(r"v\d\w*", piece) for piece in url.path.split("/")):
        return None
    meant = urlunsplit((url.scheme, url.netloc, f"{url.path.rstrip('/')}/v1", "", ""))
    return f'The base_url has no /v1. Try base_url = "{meant}".'


def azure_url(base: str) -> str:
    """Convert any address of an Azure resource to its current form. Other addresses, such as a
    gateway's, stay unchanged."""
    match = _AZURE.fullmatch(urlsplit(base).hostname or "")
    return base if match is None else f"https://{match[1].lower()}.openai.azure.com/openai/v1"
