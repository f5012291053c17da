"""Routes of sessions and API tokens: of the caller, and tokens of service accounts."""

import secrets
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging, TimePosition, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import PREFIX, ApiRoute
from chatd.api.schemas.accounts import (
    CreatedTokenReply,
    NewTokenBody,
    SessionPage,
    TokenPage,
    session_reply,
    token_reply,
)
from chatd.domain.access.accounts import (
    Credential,
    CredentialKind,
    User,
    redacted_diff,
    token_expiry,
    token_scopes,
)
from chatd.domain.access.secret_text import SECRET_BYTES, digest, token_text
from chatd.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from chatd.domain.ids import CredentialId, UserId
from chatd.domain.list_page import ListQuery
from chatd.store.account import audit, credentials, users
from chatd.store.account.credentials import NewCredential

_NEW: Final = BodySpec(NewTokenBody)


class TokenRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (*self._own_routes(), *self._service_routes())

    def _own_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /auth/sessions",
                permission="account.read",
                summary="List the browsers that are signed in as you, newest first",
                handle=self.list_sessions,
                query=ListQuery,
                replies={200: SessionPage},
            ),
            ApiRoute(
                endpoint="DELETE /auth/sessions/{session_id}",
                permission="account.write",
                summary="Sign one of your browsers out",
                handle=self.revoke_session,
                replies={204: None},
            ),
            ApiRoute(
                endpoint="GET /auth/tokens",
                permission="account.read",
                summary="List your API tokens, newest first",
                handle=self.list_tokens,
                query=ListQuery,
                replies={200: TokenPage},
            ),
            ApiRoute(
                endpoint="POST /auth/tokens",
                permission="account.write",
                summary="Create an API token; only this reply shows it",
                description="A token that is made with a token has at most its scopes, expires no"
                " later, and is revoked with it.",
                handle=self.create_token,
                body_spec=_NEW,
                replies={201: CreatedTokenReply},
                errors=("service_account",),
            ),
            ApiRoute(
                endpoint="DELETE /auth/tokens/{token_id}",
                permission="account.write",
                summary="Revoke one of your API tokens",
                handle=self.revoke_token,
                replies={204: None},
            ),
        )

    def _service_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /users/{user_id}/tokens",
                permission="config.read",
                summary="List the API tokens of a user, newest first",
                handle=self.list_user_tokens,
                query=ListQuery,
                replies={200: TokenPage},
            ),
            ApiRoute(
                endpoint="POST /users/{user_id}/tokens",
                permission="config.write",
                summary="Create an API token for a service account; only this reply shows it",
                handle=self.create_user_token,
                body_spec=_NEW,
                replies={201: CreatedTokenReply},
                errors=("not_a_service_account", "user_suspended"),
            ),
            ApiRoute(
                endpoint="DELETE /users/{user_id}/tokens/{token_id}",
                permission="config.write",
                summary="Revoke an API token of a user",
                handle=self.revoke_user_token,
                replies={204: None},
            ),
        )

    async def list_sessions(self, request: ApiRequest) -> ApiReply:
        found, cursor = await self._list(request, request.caller.user_id, "session")
        current = request.caller.credential_id
        return page_reply(SessionPage, (session_reply(one, current) for one in found), cursor)

    async def list_tokens(self, request: ApiRequest) -> ApiReply:
        return await self._list_tokens(request, request.caller.user_id)

    async def list_user_tokens(self, request: ApiRequest) -> ApiReply:
        await self._require_user(request)
        return await self._list_tokens(request, request.user_id)

    async def create_token(self, request: ApiRequest) -> ApiReply:
        try:
            return await self._create(request, request.caller.user_id)
        except NotFound:
            text = "Administrators create the tokens of a service account."
            raise Conflict(text, code="service_account") from None

    async def create_user_token(self, request: ApiRequest) -> ApiReply:
        """Not for other users: a token made for them would act in their name."""
        user = await self._require_user(request)
        if not user.is_service:
            raise Forbidden(
                "Administrators create tokens for service accounts only.",
                code="not_a_service_account",
            )
        if not user.is_active:
            raise Conflict("This user is suspended.", code="user_suspended")
        return await self._create(request, user.id)

    async def _require_user(self, request: ApiRequest) -> User:
        actor, user_id = request.caller.actor, request.user_id
        user = await self._deps.read(users.get, actor, user_id)
        if user is None:
            raise NotFound("There is no such user.")
        return user

    async def revoke_session(self, request: ApiRequest) -> ApiReply:
        return await self._revoke(request, request.session_id, "session", request.caller.user_id)

    async def revoke_token(self, request: ApiRequest) -> ApiReply:
        return await self._revoke(request, request.token_id, "token", request.caller.user_id)

    async def revoke_user_token(self, request: ApiRequest) -> ApiReply:
        return await self._revoke(request, request.token_id, "token", request.user_id)

    async def _list(
        self, request: ApiRequest, user_id: UserId, kind: CredentialKind
    ) -> tuple[Sequence[Credential], str | None]:
        paging = Paging(request, request.query(ListQuery), TimePosition)
        actor, last = request.caller.actor, paging.position
        after = None if last is None else (last.at, CredentialId(last.id))
        found = await self._deps.read(
            credentials.list_page, actor, user_id, kind, after=after, limit=paging.read_limit
        )
        return paging.cut(found, lambda one: TimePosition(one.created_at, one.id))

    async def _list_tokens(self, request: ApiRequest, user_id: UserId) -> ApiReply:
        found, cursor = await self._list(request, user_id, "token")
        return page_reply(TokenPage, map(token_reply, found), cursor)

    async def _create(self, request: ApiRequest, user_id: UserId) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        body = await request.body(_NEW)
        scopes = token_scopes(actor, body.scopes)
        if body.expires_at is not None and body.expires_at <= deps.env.clock.now():
            raise InvalidInput("expires_at", "must be in the future")
        caller = request.caller
        maker = caller.credential_id if caller.kind == "token" else None
        token_id = CredentialId(deps.env.new_id())
        text = token_text(token_id, secrets.token_bytes(SECRET_BYTES))
        new = NewCredential(
            id=token_id,
            kind="token",
            user_id=user_id,
            secret_sha256=digest(text),
            name=body.name,
            scopes=scopes,
            expires_at=token_expiry(None if maker is None else caller.expires_at, body.expires_at),
            made_by=maker,
            # Tokens of a service account are revoked on their own.
            parent_id=maker if user_id == caller.user_id else None,
        )
        async with deps.pool.transaction() as session:
            made = await credentials.insert(session, actor, new)
            await audit.record(
                session,
                actor,
                action="token.create",
                object_type="token",
                object_id=made.id,
                ip=deps.accounts.site.address(request.scope),
                detail=redacted_diff(
                    None,
                    {
                        "user_id": user_id,
                        "name": made.name,
                        "scopes": made.scopes,
                        "expires_at": made.expires_at,
                    },
                ),
            )
        is_own = user_id == request.caller.user_id
        owner = "/auth" if is_own else f"/users/{user_id}"
        headers = {"location": f"{PREFIX}{owner}/tokens/{made.id}"}
        fields = structs.asdict(token_reply(made))
        return reply(CreatedTokenReply(**fields, token=text), 201, headers)

    async def _revoke(
        self, request: ApiRequest, credential_id: CredentialId, kind: CredentialKind, of: UserId
    ) -> ApiReply:
        ip = self._deps.accounts.site.address(request.scope)
        async with self._deps.pool.transaction() as session:
            await credentials.revoke(
                session, request.caller.actor, credential_id, (kind,), of=of, ip=ip
            )
        return NO_CONTENT
