"""Resources as the protocol sees them: what a client can show, mention and read by address."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from chatd.api.auth import ApiCaller
from chatd.api.mcp.messages import Json
from chatd.api.request import Scope


class Requester(Protocol):
    """Who asks: a call of a tool, or another request."""

    @property
    def caller(self) -> ApiCaller: ...

    @property
    def scope(self) -> Scope: ...


class ListedResource(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A resource in the reply to `resources/list`."""

    uri: str
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    mime_type: str | UnsetType = UNSET


class ResourceTemplate(Struct, frozen=True, kw_only=True, rename="camel"):
    uri_template: str
    name: str
    title: str
    description: str
    mime_type: str


class ResourcePage(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    resources: Sequence[ListedResource]
    next_cursor: str | UnsetType = UNSET


class ResourceSet(Protocol):
    """The resources that a server offers."""

    @property
    def templates(self) -> Sequence[ResourceTemplate]: ...

    async def list_page(self, by: Requester, cursor: str | None) -> ResourcePage:
        """Raises ChatdError."""
        ...

    async def read(self, by: Requester, uri: str) -> Sequence[Json]:
        """The contents. Raises NotFound, also for an address that names nothing here."""
        ...
