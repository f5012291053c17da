"""What the API needs of models and providers."""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from chatd.api.schemas.models import (
    CreateModelBody,
    OptionsSchemaReply,
    OverridesBody,
    UpdateModelBody,
)
from chatd.api.schemas.providers import (
    CreateKeyBody,
    CreateProviderBody,
    DroppedSecretsReply,
    OfferedModelReply,
    TrialReply,
    UpdateKeyBody,
    UpdateProviderBody,
)
from chatd.api.schemas.user_keys import UserKeyBody, UserKeyReply
from chatd.domain.ids import ModelConfigId, UserId
from chatd.domain.model.capabilities import ModelCapabilities
from chatd.store.account.audit import ChangeAuthor
from chatd.store.model_configs import StoredModel
from chatd.store.providers import StoredKey, StoredProvider


class ModelListing(Protocol):
    """Configured models and providers, and those configured earlier, with `enabled` false."""

    async def by_name(self, name: str) -> StoredModel | None: ...
    async def get(self, model_id: ModelConfigId) -> StoredModel | None: ...
    async def default(self) -> StoredModel | None: ...
    async def all(self) -> Sequence[StoredModel]: ...
    async def providers(self) -> Sequence[StoredProvider]: ...
    async def overrides(self) -> Mapping[str, ModelConfigId]:
        """The model of each task that has one."""
        ...

    async def capabilities(self, model: StoredModel) -> ModelCapabilities: ...
    async def is_priced(self, model: StoredModel) -> bool:
        """By its configured prices, the public price list, or the provider's own figures."""
        ...

    async def price_source(self, model: StoredModel) -> str | None:
        """The price list that its prices come from. None: they are configured, or unknown."""
        ...


class ModelControl(Protocol):
    """Changes of models by administrators. Raises Conflict and InvalidInput."""

    def options_schema(self) -> OptionsSchemaReply: ...
    async def create_model(self, by: ChangeAuthor, body: CreateModelBody) -> StoredModel: ...
    async def update_model(
        self, by: ChangeAuthor, model_id: ModelConfigId, body: UpdateModelBody
    ) -> StoredModel: ...
    async def delete_model(self, by: ChangeAuthor, model_id: ModelConfigId) -> None: ...
    async def set_overrides(self, by: ChangeAuthor, body: OverridesBody) -> None: ...


class ProviderControl(Protocol):
    """Changes of providers by administrators."""

    async def get_provider(self, provider_id: UUID) -> StoredProvider: ...
    async def create_provider(
        self, by: ChangeAuthor, body: CreateProviderBody
    ) -> StoredProvider: ...
    async def update_provider(
        self, by: ChangeAuthor, provider_id: UUID, body: UpdateProviderBody
    ) -> tuple[StoredProvider, DroppedSecretsReply | None]: ...
    async def delete_provider(self, by: ChangeAuthor, provider_id: UUID) -> None: ...
    async def add_key(
        self, by: ChangeAuthor, provider_id: UUID, body: CreateKeyBody
    ) -> StoredKey: ...
    async def update_key(
        self, by: ChangeAuthor, provider_id: UUID, key_id: UUID, body: UpdateKeyBody
    ) -> StoredKey: ...
    async def delete_key(self, by: ChangeAuthor, provider_id: UUID, key_id: UUID) -> None: ...


class UserKeyControl(Protocol):
    """A user's own keys."""

    async def list_user_keys(self, user: UserId) -> Sequence[UserKeyReply]: ...
    async def set_user_key(
        self, by: ChangeAuthor, user: UserId, body: UserKeyBody
    ) -> UserKeyReply: ...
    async def delete_user_key(self, by: ChangeAuthor, user: UserId, key_id: UUID) -> None: ...


class ProviderCalls(Protocol):
    """Calls to a provider that an administrator asks for. They take at most half a minute."""

    async def test(
        self, provider_id: UUID, model: str | None, key_id: UUID | None
    ) -> TrialReply: ...
    async def list_offers(self, provider_id: UUID) -> Sequence[OfferedModelReply]: ...
    async def learn(self, provider_id: UUID) -> None:
        """Keep what the provider tells of its configured models. Takes a few seconds at most."""
        ...


class ModelServices(Struct, frozen=True, kw_only=True):
    models: ModelControl
    providers: ProviderControl
    user_keys: UserKeyControl
    calls: ProviderCalls
