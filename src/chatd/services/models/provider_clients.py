"""Clients of the providers that administrators made: built from the stored rows and the opened
secrets, kept for the next call, replaced when a row changes; one client may have several keys.

A secret is opened only here and when an administrator changes it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, cast
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.model.circuit import order_keys, rest_time_s
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.failures import ModelError
from chatd.domain.model.protocol import ModelEvent, ModelRequest, ProviderError
from chatd.domain.ports import Clock, Emit, Env, Provider
from chatd.providers.provider_config import (
    KEY_VARIABLES,
    AwsCredentials,
    ProviderConfig,
    ProviderKind,
    Secret,
)
from chatd.providers.registry import build_provider, config_error
from chatd.sealed_secrets import KeyRing, SecretUnreadable
from chatd.services.models.configuration import KINDS_WITH_KEY, build_provider_config
from chatd.settings.schema import ProviderEntry, SettingsError
from chatd.store.database.sealed_columns import PROVIDER_CONFIG, PROVIDER_KEY
from chatd.store.model.providers import StoredKey, StoredProvider

# A provider with several keys, and with a configuration that may be replaced while calls run.
#
# A call that the provider refuses because of its key goes on with the next key, before any part of
# an answer. A replaced provider closes its connections when its last call has ended.

KeyRests = dict[UUID, float]
"""Until when each key rests, by the monotonic clock. Shared by all that use these keys."""


class KeyedProvider:
    """Satisfies `ports.Provider`. `clients` has one client per key, in the order of use."""

    def __init__(
        self,
        name: str,
        clients: Mapping[UUID, Provider],
        *,
        clock: Clock,
        emit: Emit,
        rests: KeyRests,
        on_unused: Callable[["KeyedProvider"], None] = lambda _unused: None,
    ) -> None:
        self._name = name
        self._clients = clients
        self._clock = clock
        self._emit = emit
        self._rests = rests
        self._on_unused = on_unused
        self._calls = 0
        self._is_retired = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_unused(self) -> bool:
        return self._is_retired and self._calls == 0

    def retire(self) -> None:
        """No new call is expected. A call that comes late is still made."""
        self._is_retired = True
        self._check_unused()

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        self._calls += 1
        try:
            async with AsyncExitStack() as stack:
                yield await self._open(stack, request)
        finally:
            self._calls -= 1
            self._check_unused()

    def can_continue(self, request: ModelRequest) -> bool:
        """The clients differ in their keys only."""
        return all(client.can_continue(request) for client in self._clients.values())

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _open(
        self, stack: AsyncExitStack, request: ModelRequest
    ) -> AsyncIterator[ModelEvent]:
        """Raises the error of the last key."""
        now = self._clock.monotonic()
        keys = order_keys(list(self._clients), self._rests, now)
        for left, key in zip(reversed(range(len(keys))), keys, strict=True):
            try:
                return await stack.enter_async_context(self._clients[key].stream(request))
            except ProviderError as failed:
                failure = classify_fault(failed.fault)
                rest_s = rest_time_s(failure)
                if rest_s is not None and len(keys) > 1:
                    self._rests[key] = self._clock.monotonic() + rest_s
                    self._emit(
                        "provider_key_rests",
                        provider=self._name,
                        key_id=key,
                        error_kind=failure.kind,
                        seconds=rest_s,
                    )
                if rest_s is None or left == 0:
                    raise
        raise AssertionError  # there is at least one key, and the last one returns or raises

    def _check_unused(self) -> None:
        if self.is_unused:
            self._on_unused(self)


MAX_USER_CLIENTS: Final = 500
"""Clients with keys of users; the oldest is closed first."""
NO_KEY: Final = UUID(int=0)
AUTH_HEADERS: Final = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key"})


class AwsKeys(Struct, frozen=True, kw_only=True, omit_defaults=True):
    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "AwsKeys(***)"


class ProviderSecrets(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `sealed_config` holds. `proxy` may contain a password."""

    headers: dict[str, str] = {}
    proxy: str | None = None
    aws: AwsKeys | None = None

    def __repr__(self) -> str:
        return "ProviderSecrets(***)"


_SECRETS: Final = msgspec.json.Decoder(ProviderSecrets)

_ClientKey = tuple[StoredProvider, StoredKey | None]


class ProviderClients:
    """`variables` is the environment of this process: its proxies apply, its keys do not."""

    def __init__(self, ring: KeyRing, env: Env, variables: Mapping[str, str]) -> None:
        self._ring = ring
        self._env = env
        keys = frozenset(KEY_VARIABLES.values())
        self._variables = {name: text for name, text in variables.items() if name not in keys}
        self._clients: dict[_ClientKey, KeyedProvider] = {}
        self._unused: list[KeyedProvider] = []
        self._rests: KeyRests = {}

    def open(self, provider: StoredProvider, user_key: StoredKey | None) -> KeyedProvider:
        """With the user's key, else with the keys for all users. Raises ModelError."""
        found = self._clients.get((provider, user_key))
        if found is None:
            try:
                found = self.build(provider, user_key)
            except ProviderError as failed:
                raise ModelError(classify_fault(failed.fault)) from failed
            except (SecretUnreadable, SettingsError) as error:
                raise config_error(error.message) from error
            self._clients[(provider, user_key)] = found
            self._drop_oldest()
        return found

    def build(self, provider: StoredProvider, user_key: StoredKey | None = None) -> KeyedProvider:
        """Sends nothing. Raises ProviderError, SecretUnreadable and SettingsError."""
        keys = usable_keys(provider) if user_key is None else (user_key,)
        secrets = self.open_secrets(provider)
        if not keys and self._needs_key(provider, secrets):
            raise config_error(missing_key_text(provider), "missing_key")
        configs = {key.id: self.config(provider, secrets, self.open_key(key)) for key in keys}
        if not keys:
            configs = {NO_KEY: self.config(provider, secrets, None)}
        return KeyedProvider(
            provider.name,
            {key: build_provider(config, self._env.clock) for key, config in configs.items()},
            clock=self._env.clock,
            emit=self._env.emit,
            rests=self._rests,
            on_unused=self._unused.append,
        )

    def config(
        self, provider: StoredProvider, secrets: ProviderSecrets, key: str | None
    ) -> ProviderConfig:
        """Raises SettingsError that names the field."""
        config = build_provider_config(_entry(provider, secrets, key), self._variables)
        if (aws := secrets.aws) is None:
            return config
        token = None if aws.session_token is None else Secret(aws.session_token)
        credentials = AwsCredentials(
            access_key_id=aws.access_key_id,
            secret_access_key=Secret(aws.secret_access_key),
            session_token=token,
        )
        return msgspec.structs.replace(config, aws=credentials)

    def public_config(self, provider: StoredProvider) -> ProviderConfig:
        """Without any secret."""
        return self.config(provider, ProviderSecrets(), None)

    def open_secrets(self, provider: StoredProvider) -> ProviderSecrets:
        if provider.sealed_config is None:
            return ProviderSecrets()
        context = PROVIDER_CONFIG.context(provider.id)
        return _SECRETS.decode(self._ring.open(provider.sealed_config, context))

    def open_key(self, key: StoredKey) -> str:
        return self._ring.open(key.sealed_key, PROVIDER_KEY.context(key.id))

    def keep_only(self, providers: Sequence[StoredProvider]) -> None:
        """After a change: clients of other rows, and those with keys of users, end after their
        last call."""
        kept = set(providers)
        for key in [
            (provider, user_key)
            for provider, user_key in self._clients
            if provider not in kept or user_key is not None
        ]:
            self._clients.pop(key).retire()

    def retire_key(self, key_id: str) -> None:
        """A key of a user that was replaced or deleted: its client ends after its last call."""
        for key in [
            one for one in self._clients if one[1] is not None and str(one[1].id) == key_id
        ]:
            self._clients.pop(key).retire()

    async def close_unused(self) -> None:
        unused, self._unused[:] = list(self._unused), []
        for client in unused:
            if client.is_unused:
                await client.close()

    async def close(self) -> None:
        clients = [*self._clients.values(), *self._unused]
        self._clients.clear()
        self._unused.clear()
        for client in clients:
            await client.close()

    def _needs_key(self, provider: StoredProvider, secrets: ProviderSecrets) -> bool:
        named = {name.lower() for name in secrets.headers}
        return provider.kind in KINDS_WITH_KEY and not named & AUTH_HEADERS

    def _drop_oldest(self) -> None:
        of_users = [key for key in self._clients if key[1] is not None]
        for key in of_users[: max(0, len(of_users) - MAX_USER_CLIENTS)]:
            self._clients.pop(key).retire()


def usable_keys(provider: StoredProvider) -> Sequence[StoredKey]:
    """The keys for all users that were given for the provider's present address."""
    return [key for key in provider.keys if key.destination == provider.destination]


def missing_key_text(provider: StoredProvider) -> str:
    if provider.user_keys:
        return (
            f"The provider {provider.name} needs an API key of your own. Add it to your account"
            " (POST /api/v1/user-keys), or choose another model."
        )
    return (
        f"The provider {provider.name} has no API key. An administrator must add one"
        f" (POST /api/v1/providers/{provider.id}/keys)."
    )


def moved_key_text(provider: StoredProvider) -> str:
    return (
        f"The address of the provider {provider.name} has changed since you added your key, so the"
        " key was not sent. Add it again (POST /api/v1/user-keys), or choose another model."
    )


def _entry(provider: StoredProvider, secrets: ProviderSecrets, key: str | None) -> ProviderEntry:
    told = provider.parameters
    return ProviderEntry(
        name=provider.name,
        kind=cast("ProviderKind", provider.kind),
        base_url=provider.base_url,
        api_key=key,
        headers=secrets.headers,
        region=told.region,
        proxy=secrets.proxy,
        ca_file=told.ca_file,
        client_cert=told.client_cert,
        client_key=told.client_key,
        connect_timeout_s=told.connect_timeout_s,
        silence_timeout_s=told.silence_timeout_s,
        answer_timeout_s=told.answer_timeout_s,
    )
