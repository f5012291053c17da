"""Bodies and replies about keys that users bring. A secret is never returned.

Docstrings and descriptions here are part of the OpenAPI document.
"""

from typing import Annotated
from uuid import UUID

from msgspec import Struct

from chatd.api.schemas.lists import ListPage
from chatd.api.schemas.providers import API_KEY, ApiKey, KeyReply
from chatd.domain.description import PROVIDER_ID, describe


class UserKeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of the caller's own. It replaces an earlier one for the same provider."""

    provider: Annotated[str, describe("The name of a provider.", "anthropic")]
    api_key: Annotated[ApiKey, API_KEY]

    def __repr__(self) -> str:
        return f"UserKeyBody(provider={self.provider!r})"


class UserKeyReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A provider that takes keys of users."""

    provider: Annotated[str, describe("The provider's name.", "anthropic")]
    provider_id: Annotated[UUID, describe("The provider's id.", PROVIDER_ID)]
    display_name: Annotated[str, describe("The provider's name for people.", "Anthropic")]
    destination: Annotated[
        str,
        describe(
            "Where a key is sent: the origin of the provider's address, or `vendor` for that of"
            " its vendor.",
            "https://llm.example.com",
        ),
    ]
    key: Annotated[KeyReply | None, describe("The caller's key, if there is one.")] = None
    is_moved: Annotated[
        bool,
        describe(
            "Whether the key was given for another address and is not sent. Add it again to use it"
            " with the present one."
        ),
    ] = False


class UserKeyPage(ListPage[UserKeyReply], frozen=True, kw_only=True):
    """A page of providers that take keys of users."""
