"""Provider for Claude on Amazon Bedrock: the Messages API with AWS's signature and framing.

Credentials of the machine (a profile, a role, a container's identity) come from botocore, an
optional dependency that only this module loads.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest, ProviderError
from chatd.domain.ports import Clock
from chatd.providers.anthropic.client import ModelEventStream, stream_without_refused_thinking
from chatd.providers.anthropic.decoder import AnthropicDecoder
from chatd.providers.anthropic.models import bedrock_objection
from chatd.providers.anthropic.request import can_continue, encode_request
from chatd.providers.bedrock.eventstream import EventStream
from chatd.providers.bedrock.sigv4 import SigningScope, signature_headers
from chatd.providers.config import (
    AwsCredentials,
    ProviderConfig,
    base_url,
    config_fault,
    join_url,
    request_headers,
    require_key,
)
from chatd.providers.http import ProviderSession
from chatd.providers.request_body import digest_off_loop, encode_off_loop
from chatd.providers.secret import Secret


class _Frozen(Protocol):
    access_key: str
    secret_key: str
    token: str | None


class _Credentials(Protocol):
    def get_frozen_credentials(self) -> _Frozen: ...


class _Session(Protocol):
    def get_credentials(self) -> _Credentials | None: ...


class AmbientCredentials:
    """Reads botocore's credentials, which it caches and renews. Slow: call it in a thread."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        try:
            get_session: Callable[[], _Session] = import_module("botocore.session").get_session
            self._error: type[Exception] = import_module("botocore.exceptions").BotoCoreError
        except ImportError:
            raise config_fault(
                config,
                f"provider {config.label} has neither an api_key nor AWS keys, and"
                " reading the machine's credentials needs the extra: install chatd[bedrock]",
                "missing_key",
            ) from None
        self._session = get_session()
        self._found: _Credentials | None = None

    def get(self) -> AwsCredentials:
        try:
            self._found = self._found or self._session.get_credentials()
            now = None if self._found is None else self._found.get_frozen_credentials()
        except self._error as error:
            what = type(error).__name__
            raise self._missing(f"cannot resolve AWS credentials ({what})", "config") from None
        if now is None:
            raise self._missing("this machine has no AWS credentials", "missing_key")
        return AwsCredentials(
            access_key_id=now.access_key,
            secret_access_key=Secret(now.secret_key),
            session_token=Secret(now.token) if now.token else None,
        )

    def _missing(self, what: str, word: str) -> ProviderError:
        label = self._config.label
        return config_fault(
            self._config, f"provider {label}: {what}: set its api_key or AWS keys", word
        )


_SERVICE: Final = "bedrock"
_HOST: Final = re.compile(r"\bbedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?amazonaws\.com")


class BedrockProvider:
    """Satisfies `domain.ports.Provider`. Signatures contain the time."""

    def __init__(self, config: ProviderConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._region = find_region(config)
        self._base = base_url(config, default_url(self._region))
        self._bearer = require_key(config) if config.api_key is not None else None
        self._ambient = None
        if self._bearer is None and config.aws is None:
            self._ambient = AmbientCredentials(config)
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
        if (objection := bedrock_objection(request.model)) is not None:
            raise config_fault(self._config, objection)
        try:
            encoded = await encode_off_loop(
                request, lambda: encode_request(request, "bedrock", sends_thinking=sends_thinking)
            )
        except InvalidInput as error:
            raise config_fault(self._config, error.message) from None
        path = f"/model/{quote(request.model, safe=':')}/invoke-with-response-stream"
        url = join_url(self._base, path)
        async with self._session.stream(
            url=url,
            headers=await self._headers(request, url, encoded.body),
            body=encoded.body,
            decoder=AnthropicDecoder(encoded.names, EventStream()),
        ) as events:
            yield events

    async def close(self) -> None:
        await self._session.close()

    async def _headers(self, request: ModelRequest, url: str, body: bytes) -> dict[str, str]:
        accept = "application/vnd.amazon.eventstream"
        headers = request_headers(self._config, request, {}, accept)
        if self._bearer is not None:
            return {**headers, "authorization": f"Bearer {self._bearer.reveal()}"}
        credentials = await self._credentials()
        scope = SigningScope(region=self._region, service=_SERVICE, at=self._clock.now())
        signature = await digest_off_loop(
            body,
            lambda body: signature_headers(
                url=url, headers=headers, body=body, credentials=credentials, scope=scope
            ),
        )
        return {**headers, **signature}

    async def _credentials(self) -> AwsCredentials:
        if self._ambient is not None:
            return await asyncio.to_thread(self._ambient.get)
        assert self._config.aws is not None
        return self._config.aws


def find_region(config: ProviderConfig) -> str:
    """The configured region, else the one in an AWS address, else the machine's."""
    named = _HOST.search(urlsplit(config.base_url or "").hostname or "")
    regions = ((config.region or "").strip(), named[1] if named else "", config.default_region)
    region = next((region for region in regions if region), "")
    if not re.fullmatch(r"[a-z0-9-]+", region):
        raise config_fault(
            config,
            f"provider {config.label} needs an AWS region: set its region, such as"
            " us-east-1, or AWS_REGION, or a base_url that names one",
        )
    return region


def default_url(region: str) -> str:
    suffix = ".cn" if region.startswith("cn-") else ""
    return f"https://bedrock-runtime.{region}.amazonaws.com{suffix}"
