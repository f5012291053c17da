"""What administrators do with providers and their keys, and users with keys of their own.

Every write is one transaction, which also publishes the change to all replicas. Secrets are sealed
before they reach a statement.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, structs

from chatd.api.schemas.providers import (
    AwsCredentialsBody,
    CreateKeyBody,
    CreateProviderBody,
    UpdateKeyBody,
    UpdateProviderBody,
    UserKeyBody,
    UserKeyReply,
    convert_key,
)
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.ids import UserId
from chatd.domain.ports import Env
from chatd.model_directory import ModelDirectory
from chatd.provider_checks import check_config, check_storable, invalid_setting, mask_key
from chatd.provider_clients import AwsKeys, ProviderClients, ProviderSecrets
from chatd.sealed_secrets import KeyRing
from chatd.settings.schema import SettingsError
from chatd.store import providers
from chatd.store.account.audit import ChangeAuthor
from chatd.store.conn import DatabaseSession
from chatd.store.pool import Pool
from chatd.store.providers import (
    ProviderParameters,
    ProviderWrite,
    StoredKey,
    StoredProvider,
    managed_elsewhere,
)
from chatd.store.sealed_columns import PROVIDER_CONFIG, PROVIDER_KEY

MAX_KEYS_PER_PROVIDER: Final = 20
_PLAIN_PARAMETERS: Final = (
    "region",
    "ca_file",
    "client_cert",
    "client_key",
    "connect_timeout_s",
    "silence_timeout_s",
    "answer_timeout_s",
)


class ProviderAdministration:
    """Satisfies the API's port of the same purpose."""

    def __init__(
        self,
        pool: Pool,
        directory: ModelDirectory,
        clients: ProviderClients,
        ring: KeyRing,
        env: Env,
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._clients = clients
        self._ring = ring
        self._env = env

    async def create_provider(self, by: ChangeAuthor, body: CreateProviderBody) -> StoredProvider:
        """Raises Conflict for a taken name and InvalidInput for an invalid field."""
        new_id = self._env.new_id()
        async with self._directory.change(
            "provider", new_id, by, "create", structs.asdict(body)
        ) as session:
            freed = await providers.find_free_name(session, body.name, None)
            provider_id = freed or new_id
            row = self._write(provider_id, body.kind, structs.asdict(body), ProviderSecrets())
            await providers.write(session, row)
            for key in body.api_keys:
                await providers.insert_key(session, self._sealed_key(provider_id, key), None)
        return await self.get_provider(provider_id)

    async def update_provider(
        self, by: ChangeAuthor, provider_id: UUID, body: UpdateProviderBody
    ) -> StoredProvider:
        given = {name: value for name, value in structs.asdict(body).items() if value is not UNSET}
        async with self._directory.change("provider", provider_id, by, "update", given) as session:
            known = await _find_own(session, provider_id)
            secrets = ProviderSecrets()
            if given.keys() & {"headers", "proxy", "aws"}:
                secrets = self._clients.open_secrets(known)
            fields = _fields(known) | given
            await providers.find_free_name(session, fields["name"], provider_id)
            row = self._write(provider_id, known.kind, fields, secrets)
            if not given.keys() & {"headers", "proxy", "aws"}:
                row = structs.replace(
                    row,
                    sealed_config=known.sealed_config,
                    parameters=structs.replace(
                        row.parameters,
                        header_names=known.parameters.header_names,
                        has_proxy=known.parameters.has_proxy,
                        has_aws_credentials=known.parameters.has_aws_credentials,
                    ),
                )
            await providers.write(session, row)
        return await self.get_provider(provider_id)

    async def delete_provider(self, by: ChangeAuthor, provider_id: UUID) -> None:
        """Raises Conflict that names the models that use it."""
        async with self._directory.change("provider", provider_id, by, "delete") as session:
            known = await _find_own(session, provider_id)
            used = await providers.list_models_using(session, provider_id)
            if used:
                raise Conflict(
                    f"The provider {known.name} is used by the models {', '.join(used[:20])}."
                    " Delete them or give them another provider first.",
                    code="provider_in_use",
                )
            await providers.delete(session, provider_id)

    async def get_provider(self, provider_id: UUID) -> StoredProvider:
        found = await self._directory.providers()
        provider = next((one for one in found if one.id == provider_id), None)
        if provider is None:
            raise NotFound("There is no such provider.")
        return provider

    # Keys for all users

    async def add_key(self, by: ChangeAuthor, provider_id: UUID, body: CreateKeyBody) -> StoredKey:
        key = self._sealed_key(provider_id, body.api_key, body.name)
        async with self._directory.change("provider", provider_id, by, "add_key") as session:
            known = await _find_own(session, provider_id)
            if len(known.keys) >= MAX_KEYS_PER_PROVIDER:
                text = f"A provider has at most {MAX_KEYS_PER_PROVIDER} keys. Delete one first."
                raise Conflict(text, code="too_many_keys")
            await providers.insert_key(session, key, None)
        return await self._get_key(provider_id, key.id)

    async def update_key(
        self, by: ChangeAuthor, provider_id: UUID, key_id: UUID, body: UpdateKeyBody
    ) -> StoredKey:
        masked = sealed = None
        if body.api_key is not UNSET:
            masked = mask_key(body.api_key)
            sealed = self._ring.seal(body.api_key, PROVIDER_KEY.context(key_id))
        name = None if body.name is UNSET else check_storable("name", body.name)
        async with self._directory.change("provider", provider_id, by, "update_key") as session:
            await _find_own(session, provider_id)
            if not await providers.update_key(
                session, provider_id, key_id, name=name, masked=masked, sealed_key=sealed
            ):
                raise NotFound("There is no such key.")
        return await self._get_key(provider_id, key_id)

    async def delete_key(self, by: ChangeAuthor, provider_id: UUID, key_id: UUID) -> None:
        async with self._directory.change("provider", provider_id, by, "delete_key") as session:
            await _find_own(session, provider_id)
            if not await providers.delete_key(session, provider_id, key_id):
                raise NotFound("There is no such key.")

    # Keys of users

    async def list_user_keys(self, user: UserId) -> Sequence[UserKeyReply]:
        found = await providers.list_user_keys(self._pool, user)
        keys = {key.provider_id: key for key in found}
        return [
            _user_key(one, keys.get(one.id))
            for one in await self._directory.providers()
            if one.user_keys and one.enabled
        ]

    async def set_user_key(self, by: ChangeAuthor, user: UserId, body: UserKeyBody) -> UserKeyReply:
        found = await self._directory.providers()
        provider = next((one for one in found if one.name == body.provider), None)
        if provider is None or not provider.user_keys:
            text = "there is no such provider, or it takes no keys of users"
            raise InvalidInput("provider", text)
        key = self._sealed_key(provider.id, body.api_key)
        async with self._directory.change("provider", provider.id, by, "set_user_key") as session:
            await providers.insert_key(session, key, user)
            stored = await providers.find_user_key(session, user, provider.id)
        return _user_key(provider, stored)

    async def delete_user_key(self, by: ChangeAuthor, user: UserId, key_id: UUID) -> None:
        async with self._directory.change("provider", key_id, by, "delete_user_key") as session:
            if not await providers.delete_user_key(session, user, key_id):
                raise NotFound("There is no such key.")

    # Sealing

    def _sealed_key(self, provider_id: UUID, api_key: str, name: str = "") -> StoredKey:
        key_id = self._env.new_id()
        return StoredKey(
            id=key_id,
            provider_id=provider_id,
            name=check_storable("name", name),
            masked=mask_key(api_key),
            sealed_key=self._ring.seal(api_key, PROVIDER_KEY.context(key_id)),
            created_at=self._env.clock.now(),  # the database sets its own
        )

    async def _get_key(self, provider_id: UUID, key_id: UUID) -> StoredKey:
        provider = await self.get_provider(provider_id)
        key = next((one for one in provider.keys if one.id == key_id), None)
        if key is None:
            raise NotFound("There is no such key.")
        return key

    def _write(
        self, provider_id: UUID, kind: str, given: Mapping[str, Any], known: ProviderSecrets
    ) -> ProviderWrite:
        """Raises InvalidInput. The sealed part is of `known` and what is given."""
        name = check_storable("name", given["name"])
        secrets = _merge_secrets(known, given)
        parameters = ProviderParameters(
            **{field: given.get(field) for field in _PLAIN_PARAMETERS},
            header_names=tuple(sorted(secrets.headers)),
            has_proxy=secrets.proxy is not None,
            has_aws_credentials=secrets.aws is not None,
        )
        row = ProviderWrite(
            id=provider_id,
            name=name,
            kind=kind,
            base_url=given["base_url"],
            enabled=given["enabled"],
            display_name=check_storable("display_name", given["display_name"] or name),
            parameters=parameters,
            sealed_config=None,
            user_keys=given["user_keys"],
        )
        self._check(row, secrets)
        if secrets == ProviderSecrets():
            return row
        text = msgspec.json.encode(secrets).decode()
        sealed = self._ring.seal(text, PROVIDER_CONFIG.context(provider_id))
        return structs.replace(row, sealed_config=sealed)

    def _check(self, row: ProviderWrite, secrets: ProviderSecrets) -> None:
        now = self._env.clock.now()
        fields = structs.asdict(row)
        provider = StoredProvider(
            **fields, has_api_key=False, source="database", created_at=now, updated_at=now
        )
        try:
            check_config(self._clients.config(provider, secrets, None))
        except SettingsError as error:
            raise invalid_setting(error, row.name) from None


def _user_key(provider: StoredProvider, key: StoredKey | None) -> UserKeyReply:
    return UserKeyReply(
        provider=provider.name,
        provider_id=provider.id,
        display_name=provider.display_name,
        key=None if key is None else convert_key(key),
    )


async def _find_own(session: DatabaseSession, provider_id: UUID) -> StoredProvider:
    """Raises Conflict for a provider that a process declares."""
    found = await providers.list_providers(session)
    known = next((one for one in found if one.id == provider_id), None)
    if known is None or known.is_deleted:
        raise NotFound("There is no such provider.")
    if known.source != "database":
        raise managed_elsewhere("provider", known.name, known.source)
    return known


def _fields(known: StoredProvider) -> dict[str, Any]:
    """A stored provider in the fields of a body."""
    plain = {field: getattr(known.parameters, field) for field in _PLAIN_PARAMETERS}
    return plain | {
        "name": known.name,
        "display_name": None if known.display_name == known.name else known.display_name,
        "enabled": known.enabled,
        "base_url": known.base_url,
        "user_keys": known.user_keys,
    }


def _merge_secrets(known: ProviderSecrets, given: Mapping[str, Any]) -> ProviderSecrets:
    headers = dict(known.headers)
    for name, value in cast("Mapping[str, str | None]", given.get("headers", {})).items():
        # Names of headers are compared without case.
        for same in [one for one in headers if one.lower() == name.lower()]:
            del headers[same]
        if value is not None:
            headers[name] = value
    aws = known.aws
    if "aws" in given:
        new = cast("AwsCredentialsBody | None", given["aws"])
        aws = None if new is None else AwsKeys(**structs.asdict(new))
    return ProviderSecrets(headers=headers, proxy=given.get("proxy", known.proxy), aws=aws)
