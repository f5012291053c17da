"""Routes that list the ports of a workspace, make links to previews of them, and share these with
the readers of a chat."""

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final
from urllib.parse import urlencode
from uuid import NAMESPACE_OID, uuid5

from msgspec import Meta, Struct
from msgspec.structs import asdict

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import PORT_CODES
from chatd.api.pages import ItemPosition, Paging, cut_whole
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.builds import require_workspaces
from chatd.api.routes.workspace.workspace_files import explain_refusal
from chatd.api.sockets.previews import (
    OPEN_PATH,
    TICKET_PARAMETER,
    local_path,
    may_preview,
    ticket_digest,
)
from chatd.domain.access.secret_text import SECRET_BYTES, secret_text
from chatd.domain.description import CHAT_ID, UPDATED_AT, WORKSPACE_ID, describe
from chatd.domain.errors import NotFound
from chatd.domain.ids import ChatId, CredentialId, WorkspaceId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.workspace.agent_api import AgentRefused
from chatd.domain.workspace.previews import MAX_PORT, ListeningPort, PreviewTarget
from chatd.store.account import audit, credentials, shares
from chatd.store.account.credentials import NewCredential
from chatd.store.workspace import workspaces

PREVIEW_LINK_LIFETIME: Final = timedelta(minutes=2)


class PreviewBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which port to show."""

    openapi_example: ClassVar[Mapping[str, object]] = {"port": 3000, "path": "/"}

    port: Annotated[int, Meta(ge=1, le=MAX_PORT), describe("The port.", 3000)]
    path: Annotated[
        str, Meta(max_length=2000), describe("Where the preview begins.", "/login?next=%2F")
    ] = "/"


class PreviewReply(Struct, frozen=True, kw_only=True):
    """A link to a preview."""

    url: Annotated[
        str,
        describe(
            "The link: it opens the preview in one browser, once.",
            "http://3000-ebqxgzlsmfxgiz3vmz2g64tfmu.localhost:7870/.chatd/open?ticket=x",
        ),
    ]
    origin: Annotated[
        str,
        describe(
            "Where the preview is then.",
            "http://3000-ebqxgzlsmfxgiz3vmz2g64tfmu.localhost:7870",
        ),
    ]
    expires_at: Annotated[datetime, describe("Until when the link works.", UPDATED_AT)]


class PreviewShareBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether readers see a port."""

    openapi_example: ClassVar[Mapping[str, object]] = {"port": 3000, "shared": True}

    port: Annotated[int, Meta(ge=1, le=MAX_PORT), describe("The port.", 3000)]
    shared: Annotated[bool, describe("Whether the readers of the chat may open previews of it.")]


class SharedPreviewsReply(Struct, frozen=True, kw_only=True):
    """Which ports of a chat's workspace its readers see."""

    chat_id: Annotated[ChatId, describe("The root chat.", CHAT_ID)]
    workspace_id: Annotated[
        WorkspaceId | None,
        describe("Its workspace, for links to the previews; null without one.", WORKSPACE_ID),
    ]
    ports: Annotated[tuple[int, ...], describe("The ports, by number.", [3000])]


class PortPage(ListPage[ListeningPort], frozen=True, kw_only=True):
    """A page of the ports on which a workspace's processes listen."""


_PREVIEW: Final = BodySpec(PreviewBody)
_SHARE: Final = BodySpec(PreviewShareBody)


class PreviewRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /workspaces/{workspace_id}/ports",
                permission="workspaces.write",
                summary="List the ports on which processes of a workspace listen",
                description=(
                    "TCP ports that the workspace's own loopback reaches, at most 100. Programs"
                    " of its machine that are not part of the workspace are left out."
                ),
                handle=self.list_ports,
                query=ListQuery,
                replies={200: PortPage},
                errors=PORT_CODES,
            ),
            ApiRoute(
                endpoint="POST /workspaces/{workspace_id}/previews",
                permission="workspaces.write",
                summary="Make a link to a preview of a port of a workspace",
                description=(
                    "A preview is a site of its own, with a host name of its own. The link works"
                    " once and for two minutes; the browser that opened it sees the preview for at"
                    " most 12 hours, and not longer than the credential of this request is valid."
                    " Nothing needs to listen on the port yet. The owner makes links to every port,"
                    " a reader of a chat to those that the owner shares with its readers."
                ),
                handle=self.create_preview,
                body_spec=_PREVIEW,
                replies={201: PreviewReply},
                errors=("previews_off", "workspaces_off"),
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/previews",
                permission="chats.read",
                summary="List the ports whose previews the readers of a chat may open",
                handle=self.list_shared_previews,
                replies={200: SharedPreviewsReply},
            ),
            ApiRoute(
                endpoint="PATCH /chats/{chat_id}/previews",
                permission="chats.share",
                summary="Let the readers of a chat open previews of a port, or no longer",
                description=(
                    "Off by default, and only for the workspace that the chat has now. Previews"
                    " that are open end within a minute of the revocation. An administrator can"
                    " only revoke."
                ),
                handle=self.share_previews,
                body_spec=_SHARE,
                replies={200: SharedPreviewsReply},
                errors=(
                    *("no_workspace", "not_a_root_chat", "sharing_disabled", "too_many_previews"),
                ),
            ),
        )

    async def list_shared_previews(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        found = await self._deps.read(shares.list_previews, actor, request.chat_id)
        return reply(SharedPreviewsReply(**asdict(found)))

    async def share_previews(self, request: ApiRequest) -> ApiReply:
        deps, actor, body = self._deps, request.caller.actor, await request.body(_SHARE)
        ip = deps.accounts.site.address(request.scope)
        async with deps.pool.transaction() as session:
            found = await shares.share_preview(
                session, actor, request.chat_id, body.port, shared=body.shared, ip=ip
            )
        return reply(SharedPreviewsReply(**asdict(found)))

    async def list_ports(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        workspace_id = await self._require(request)
        control = require_workspaces(self._deps)
        try:
            found = await control.ports.list_ports(workspace_id)
        except AgentRefused as error:
            raise explain_refusal(error) from error
        shown, next_cursor = cut_whole(
            paging, found, lambda each: uuid5(NAMESPACE_OID, str(each.port))
        )
        return reply(
            PortPage(items=tuple(shown), has_more=next_cursor is not None, next_cursor=next_cursor)
        )

    async def create_preview(self, request: ApiRequest) -> ApiReply:
        deps, caller, body = self._deps, request.caller, await request.body(_PREVIEW)
        target = PreviewTarget(request.workspace_id, body.port)
        if not await deps.read(may_preview, caller.actor, target):
            await self._require(request)  # which says why
        require_workspaces(deps)
        place = deps.accounts.site.preview_place(request.scope, target)
        secret = secret_text(secrets.token_bytes(SECRET_BYTES))
        new = NewCredential(
            id=CredentialId(deps.env.new_id()),
            kind="ticket",
            user_id=caller.user_id,
            secret_sha256=ticket_digest(target, secret),
            scopes=None if caller.actor.scopes is None else sorted(caller.actor.scopes),
            lifetime=PREVIEW_LINK_LIFETIME,
            parent_id=caller.credential_id,
        )
        async with deps.pool.transaction() as session:
            made = await credentials.insert(session, caller.actor, new)
            await audit.record(
                session,
                caller.actor,
                action="preview.open",
                object_type="workspace",
                object_id=target.workspace_id,
                ip=deps.accounts.site.address(request.scope),
                detail={"port": target.port},
            )
        assert made.expires_at is not None
        query = urlencode({TICKET_PARAMETER: secret, "path": local_path(body.path)})
        url = f"{place.origin}{OPEN_PATH}?{query}"
        return reply(PreviewReply(url=url, origin=place.origin, expires_at=made.expires_at), 201)

    async def _require(self, request: ApiRequest) -> WorkspaceId:
        """Raises NotFound, and Forbidden for one who may only read the workspace."""
        deps, workspace_id = self._deps, request.workspace_id
        actor = request.caller.actor
        if not await deps.read(workspaces.can_preview, actor, workspace_id):
            raise NotFound("There is no such workspace.")
        return workspace_id
