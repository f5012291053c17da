"""What administrators do with providers and their keys, and users with keys of their own.

Every write is one transaction, which also publishes the change to all replicas. Secrets are sealed
before they reach a statement. What is written is checked first, models too: errors name the field
and never repeat a secret.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, structs

from chatd.domain.decode_errors import show_value
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.ids import UserId
from chatd.domain.model.config import is_effort_range_empty, proxy_origin
from chatd.domain.model.protocol import (
    Effort,
    EffortRange,
    ModelCapabilities,
    ModelConfig,
    ProviderError,
)
from chatd.domain.ports import Env
from chatd.domain.text import Json
from chatd.providers.known_models import find_objection
from chatd.providers.options import parse_options
from chatd.providers.provider_config import (
    ProviderConfig,
    ProviderKind,
    base_url,
    build_tls_context,
)
from chatd.providers.registry import OPTION_CLASSES
from chatd.sealed_secrets import KeyRing
from chatd.services.models.configuration import KINDS_WITH_ADDRESS
from chatd.services.models.directory import ModelDirectory
from chatd.services.models.model_bodies import OptionsSchemaReply
from chatd.services.models.provider_bodies import (
    AwsCredentialsBody,
    CreateKeyBody,
    CreateProviderBody,
    DroppedSecretsReply,
    UpdateKeyBody,
    UpdateProviderBody,
    UserKeyBody,
    UserKeyReply,
    convert_key,
)
from chatd.services.models.provider_clients import AwsKeys, ProviderClients, ProviderSecrets
from chatd.settings.schema import SettingsError
from chatd.store.account import audit
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.notifications import publish
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import PROVIDER_CONFIG, PROVIDER_KEY
from chatd.store.model import providers
from chatd.store.model.providers import (
    ProviderParameters,
    ProviderWrite,
    StoredKey,
    StoredProvider,
    managed_elsewhere,
)

MASK_VISIBLE_CHARS: Final = 4
MIN_MASKED_CHARS: Final = 12
"""Of a shorter key no character is shown."""


def check_storable(field: str, text: str) -> str:
    if not text.isprintable():
        raise InvalidInput(field, "must have printable characters only")
    return text


def mask_key(key: str) -> str:
    return f"…{key[-MASK_VISIBLE_CHARS:]}" if len(key) >= MIN_MASKED_CHARS else "…"


def check_config(config: ProviderConfig) -> None:
    """The address and the files. Whether a key fits shows in a test call."""
    if config.kind in KINDS_WITH_ADDRESS and not config.base_url:
        raise InvalidInput("base_url", f"is required for providers of kind {config.kind}")
    try:
        if config.base_url is not None:
            base_url(config, None)
    except ProviderError as failed:
        raise InvalidInput("base_url", failed.message) from None
    try:
        build_tls_context(config.http.tls)
    except ProviderError as failed:
        field = failed.message.partition(" ")[0]
        raise InvalidInput(field, failed.message) from None


def invalid_setting(error: SettingsError, name: str) -> InvalidInput:
    """The settings' checks are of the same fields."""
    text = error.message.removeprefix(f"providers {show_value(name)}: ")
    field, separator, detail = text.partition(": ")
    return InvalidInput(field.split()[0] if separator else "provider", detail or text)


def check_options(kind: str, options: Json) -> Json:
    """Raises InvalidInput that names the option."""
    if options is UNSET:
        return UNSET
    parse_options(OPTION_CLASSES[cast("ProviderKind", kind)], options)
    return UNSET if bytes(options).strip() == b"{}" else options


def check_effort(effort: Effort | EffortRange | None) -> EffortRange | None:
    """A word is the default."""
    if effort is None or isinstance(effort, str):
        return None if effort is None else EffortRange(default=effort)
    if is_effort_range_empty(effort):
        raise InvalidInput("reasoning_effort", "the default must not be above the max")
    return effort


def check_fits(
    config: ModelConfig, kind: ProviderKind, told: ModelCapabilities | None = None
) -> None:
    """Raises InvalidInput for what the provider, or that model, is known not to do."""
    if (found := find_objection(kind, config, told)) is not None:
        code = "effort_not_supported" if found.field == "reasoning_effort" else None
        raise InvalidInput(found.field, found.text, code=code)


def plain_price(text: str | None) -> str | None:
    return None if text is None else format(Decimal(text).normalize(), "f")


def options_schema() -> OptionsSchemaReply:
    kinds: Mapping[ProviderKind, type[Struct]] = OPTION_CLASSES
    schemas, components = msgspec.json.schema_components(
        list(kinds.values()), ref_template="#/$defs/{name}"
    )
    return OptionsSchemaReply(
        properties=dict(zip(kinds, schemas, strict=True)), definitions=components
    )


MAX_KEYS_PER_PROVIDER: Final = 20
_SEALED_OR_ADDRESS: Final = frozenset({"headers", "proxy", "aws", "base_url", "ca_file"})
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
    def __init__(
        self,
        directory: ModelDirectory,
        clients: ProviderClients,
        ring: KeyRing,
        env: Env,
    ) -> None:
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
                await providers.insert_key(session, self._sealed_key(row, key), None)
        return await self.get_provider(provider_id)

    async def update_provider(
        self, by: ChangeAuthor, provider_id: UUID, body: UpdateProviderBody
    ) -> tuple[StoredProvider, DroppedSecretsReply | None]:
        """A change of the address drops the secrets that were given for the former one."""
        given = {name: value for name, value in structs.asdict(body).items() if value is not UNSET}
        detail: dict[str, object] = {}
        async with self._directory.change(
            "provider", provider_id, by, "update", given, detail=detail
        ) as session:
            known = await _find_own(session, provider_id)
            await providers.find_free_name(session, given.get("name", known.name), provider_id)
            row = self._changed(known, given)
            await providers.write(session, row)
            dropped = None
            if row.destination != known.destination:
                dropped = await _dropped(session, known, row, given)
                detail["dropped"] = structs.asdict(dropped)
            if dropped is not None or "api_keys" in given:
                await providers.delete_shared_keys(session, provider_id)
                for key in given.get("api_keys", ()):
                    await providers.insert_key(session, self._sealed_key(row, key), None)
        return await self.get_provider(provider_id), dropped

    def _changed(self, known: StoredProvider, given: Mapping[str, Any]) -> ProviderWrite:
        fields = {**_fields(known), **given}
        if not given.keys() & _SEALED_OR_ADDRESS:
            row = self._write(known.id, known.kind, fields, ProviderSecrets())
            told = structs.replace(
                row.parameters,
                header_names=known.parameters.header_names,
                has_proxy=known.parameters.has_proxy,
                proxy_origin=known.parameters.proxy_origin,
                has_aws_credentials=known.parameters.has_aws_credentials,
            )
            return structs.replace(row, sealed_config=known.sealed_config, parameters=told)
        secrets = self._clients.open_secrets(known)
        row = self._write(known.id, known.kind, fields, secrets)
        if row.destination == known.destination:
            return row
        # The password of a proxy goes to the proxy, wherever the provider is.
        return self._write(known.id, known.kind, fields, ProviderSecrets(proxy=secrets.proxy))

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
        async with self._directory.change("provider", provider_id, by, "add_key") as session:
            known = await _find_own(session, provider_id)
            if len(known.keys) >= MAX_KEYS_PER_PROVIDER:
                text = f"A provider has at most {MAX_KEYS_PER_PROVIDER} keys. Delete one first."
                raise Conflict(text, code="too_many_keys")
            key = self._sealed_key(known, body.api_key, body.name)
            await providers.insert_key(session, key, None)
        return await self._get_key(provider_id, key.id)

    async def update_key(
        self, by: ChangeAuthor, provider_id: UUID, key_id: UUID, body: UpdateKeyBody
    ) -> StoredKey:
        masked = sealed = destination = None
        name = None if body.name is UNSET else check_storable("name", body.name)
        async with self._directory.change("provider", provider_id, by, "update_key") as session:
            known = await _find_own(session, provider_id)
            if body.api_key is not UNSET:
                masked, destination = mask_key(body.api_key), known.destination
                sealed = self._ring.seal(body.api_key, PROVIDER_KEY.context(key_id))
            if not await providers.update_key(
                session,
                provider_id,
                key_id,
                name=name,
                masked=masked,
                sealed_key=sealed,
                destination=destination,
            ):
                raise NotFound("There is no such key.")
        return await self._get_key(provider_id, key_id)

    async def delete_key(self, by: ChangeAuthor, provider_id: UUID, key_id: UUID) -> None:
        async with self._directory.change("provider", provider_id, by, "delete_key") as session:
            await _find_own(session, provider_id)
            if not await providers.delete_key(session, provider_id, key_id):
                raise NotFound("There is no such key.")

    # Sealing

    def _sealed_key(
        self, provider: ProviderWrite | StoredProvider, api_key: str, name: str = ""
    ) -> StoredKey:
        return seal_key(self._ring, self._env, provider, api_key, name)

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
            proxy_origin=proxy_origin(secrets.proxy),
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


async def _dropped(
    session: DatabaseSession, known: StoredProvider, row: ProviderWrite, given: Mapping[str, Any]
) -> DroppedSecretsReply:
    """What was given for the former address and is not in this request."""
    kept = {name.lower() for name in row.parameters.header_names}
    headers = [name for name in known.parameters.header_names if name.lower() not in kept]
    had_aws, has_aws = (one.parameters.has_aws_credentials for one in (known, row))
    others = await providers.count_other_user_keys(session, known.id, row.destination)
    return DroppedSecretsReply(
        keys=0 if given.get("api_keys") else len(known.keys),
        header_names=tuple(headers),
        aws_credentials=had_aws and not has_aws,
        user_keys=others,
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


def seal_key(
    ring: KeyRing,
    env: Env,
    provider: ProviderWrite | StoredProvider,
    api_key: str,
    name: str = "",
) -> StoredKey:
    """A new key, bound to the address that the provider has now."""
    key_id = env.new_id()
    return StoredKey(
        id=key_id,
        provider_id=provider.id,
        name=check_storable("name", name),
        masked=mask_key(api_key),
        sealed_key=ring.seal(api_key, PROVIDER_KEY.context(key_id)),
        destination=provider.destination,
        created_at=env.clock.now(),  # the database sets its own
    )


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


# Keys that users bring for a provider. They are used for their own chats only, and sent only to
# the address that the provider had when they were given.
#
# A write is of one row of one user: it waits for no other, and replicas read nothing again. They
# only close a client that holds a replaced key.


class UserKeys:
    def __init__(self, pool: Pool, directory: ModelDirectory, ring: KeyRing, env: Env) -> None:
        self._pool = pool
        self._directory = directory
        self._ring = ring
        self._env = env

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
        key = seal_key(self._ring, self._env, provider, body.api_key)
        async with self._pool.transaction() as session:
            replaced = await providers.find_user_key(session, user, provider.id)
            await providers.insert_key(session, key, user)
            stored = await providers.find_user_key(session, user, provider.id)
            await _record(session, by, "set_user_key", provider.id)
            if replaced is not None:
                await publish(session, ConfigChange(kind="user_key", id=str(replaced.id)))
        return _user_key(provider, stored)

    async def delete_user_key(self, by: ChangeAuthor, user: UserId, key_id: UUID) -> None:
        async with self._pool.transaction() as session:
            if not await providers.delete_user_key(session, user, key_id):
                raise NotFound("There is no such key.")
            await _record(session, by, "delete_user_key", key_id)
            await publish(session, ConfigChange(kind="user_key", id=str(key_id)))


async def _record(session: DatabaseSession, by: ChangeAuthor, verb: str, object_id: UUID) -> None:
    await audit.record(
        session,
        by.actor,
        action=f"provider.{verb}",
        object_type="provider",
        object_id=object_id,
        ip=by.ip,
    )


def _user_key(provider: StoredProvider, key: StoredKey | None) -> UserKeyReply:
    return UserKeyReply(
        provider=provider.name,
        provider_id=provider.id,
        display_name=provider.display_name,
        destination=provider.destination,
        key=None if key is None else convert_key(key),
        is_moved=key is not None and key.destination != provider.destination,
    )
