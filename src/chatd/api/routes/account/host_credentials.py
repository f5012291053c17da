"""Routes for credentials that proxies add to requests of workspaces: the caller's own, and those of
the deployment and of groups, for administrators. A secret is never returned."""

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from msgspec import Struct

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.domain.description import CREATED_AT, describe
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.workspace.host_credentials import (
    HTTPS_PORT,
    CredentialScheme,
    CredentialScope,
)
from chatd.services.workspaces.host_credentials import (
    NewHostCredentialBody,
    NewSharedCredentialBody,
)
from chatd.store.account import host_credentials
from chatd.store.account.host_credentials import StoredCredential

_ID = "7d0b8a44-6f3e-4f62-8a0e-5c1f2d3e4b5a"
_ERRORS: Final = ("too_many_host_credentials", "secret_key_missing")
_SAVE_OWN: Final = BodySpec(NewHostCredentialBody)
_SAVE_SHARED: Final = BodySpec(NewSharedCredentialBody)


class HostCredentialReply(Struct, frozen=True, kw_only=True):
    """A credential for a host, without its secret."""

    id: Annotated[UUID, describe("Its id.", _ID)]
    scope: Annotated[
        CredentialScope,
        describe("Whose workspaces use it: one user's, those of a group, or all.", "user"),
    ]
    group: Annotated[str | None, describe("The name of its group.", "data")]
    host: Annotated[str, describe("The host.", "registry.example.org")]
    port: Annotated[int, describe("Its port.", HTTPS_PORT)]
    path: Annotated[str, describe("The path, with all below it, that gets it.", "/")]
    scheme: Annotated[CredentialScheme, describe("How requests carry it.", "bearer")]
    header: Annotated[str, describe("The name of the header, with the scheme `header`.", "")]
    username: Annotated[str, describe("With the scheme `basic`.", "")]
    created_at: Annotated[datetime, describe("When it was given.", CREATED_AT)]


class HostCredentialPage(ListPage[HostCredentialReply], frozen=True, kw_only=True):
    """A page of credentials for hosts."""


class HostCredentialRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /host-credentials",
                permission="account.write",
                summary="Give a credential for a host to your workspaces",
                description="A proxy adds it to the requests of your workspaces for this host, if"
                " their template has the network `allow` and allows the host. The credential never"
                " enters a workspace.",
                handle=self.save_host_credential,
                body_spec=_SAVE_OWN,
                replies={201: HostCredentialReply},
                errors=_ERRORS,
            ),
            ApiRoute(
                endpoint="GET /host-credentials",
                permission="account.read",
                summary="List your credentials for hosts",
                handle=self.list_host_credentials,
                query=ListQuery,
                replies={200: HostCredentialPage},
            ),
            ApiRoute(
                endpoint="DELETE /host-credentials/{host_credential_id}",
                permission="account.write",
                summary="Delete a credential for a host",
                description="Proxies that are connected stop to use it at once, others within five"
                " minutes.",
                handle=self.delete_host_credential,
                replies={204: None},
            ),
            ApiRoute(
                endpoint="POST /host-credential-configs",
                permission="config.write",
                summary="Give a credential for a host to the workspaces of all users or of a group",
                handle=self.save_shared_credential,
                body_spec=_SAVE_SHARED,
                replies={201: HostCredentialReply},
                errors=_ERRORS,
            ),
            ApiRoute(
                endpoint="GET /host-credential-configs",
                permission="config.read",
                summary="List the credentials for hosts of the deployment and of groups",
                handle=self.list_shared_credentials,
                query=ListQuery,
                replies={200: HostCredentialPage},
            ),
            ApiRoute(
                endpoint="DELETE /host-credential-configs/{shared_credential_id}",
                permission="config.write",
                summary="Delete a credential for a host of the deployment or of a group",
                handle=self.delete_shared_credential,
                replies={204: None},
            ),
        )

    async def save_host_credential(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_SAVE_OWN)
        saved = await deps.host_credentials.save_own(deps.author(request), body)
        return reply(_reply(saved), 201)

    async def save_shared_credential(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_SAVE_SHARED)
        saved = await deps.host_credentials.save_shared(deps.author(request), body)
        return reply(_reply(saved), 201)

    async def list_host_credentials(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(host_credentials.list_own, request.caller.actor)
        shown, cursor = cut_whole(paging, found, lambda credential: credential.id)
        return page_reply(HostCredentialPage, map(_reply, shown), cursor)

    async def list_shared_credentials(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(host_credentials.list_shared, request.caller.actor)
        shown, cursor = cut_whole(paging, found, lambda credential: credential.id)
        return page_reply(HostCredentialPage, map(_reply, shown), cursor)

    async def delete_host_credential(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        await deps.host_credentials.delete_own(deps.author(request), request.host_credential_id)
        return NO_CONTENT

    async def delete_shared_credential(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        await deps.host_credentials.delete_shared(
            deps.author(request), request.shared_credential_id
        )
        return NO_CONTENT


def _reply(stored: StoredCredential) -> HostCredentialReply:
    return HostCredentialReply(
        id=stored.id,
        scope=stored.scope,
        group=stored.group_name,
        host=stored.host,
        port=stored.port,
        path=stored.path,
        scheme=stored.scheme,
        header=stored.header,
        username=stored.username,
        created_at=stored.created_at,
    )
