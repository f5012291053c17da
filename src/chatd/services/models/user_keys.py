"""Keys that users bring for a provider. They are used for their own chats only, and sent only to
the address that the provider had when they were given.

A write is of one row of one user: it waits for no other, and replicas read nothing again. They only
close a client that holds a replaced key.
"""

from collections.abc import Sequence
from uuid import UUID

from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import UserId
from chatd.domain.ports import Env
from chatd.sealed_secrets import KeyRing
from chatd.services.models.directory import ModelDirectory
from chatd.services.models.provider_administration import seal_key
from chatd.services.models.provider_bodies import UserKeyBody, UserKeyReply, convert_key
from chatd.store.account import audit
from chatd.store.account.audit import ChangeAuthor
from chatd.store.conn import DatabaseSession
from chatd.store.model import providers
from chatd.store.model.providers import StoredKey, StoredProvider
from chatd.store.notifications import publish
from chatd.store.pool import Pool


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
