"""Routes to sign in and out, also by an OpenID provider, to see who is signed in, and for one-time
tickets.
"""

import secrets
from collections.abc import Awaitable
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl

from msgspec import structs

from chatd.api.accounts.oidc import OidcAnswer, OidcSignIn
from chatd.api.accounts.plain_pages import SIGN_IN_PATH
from chatd.api.accounts.sign_in import SignedIn
from chatd.api.accounts.site import cleared_cookie, session_secret
from chatd.api.deps import ApiDeps
from chatd.api.error_codes import IDENTITY_CODES, SIGN_IN_CODES
from chatd.api.errors import IdentityProviderFailed, Unauthorized
from chatd.api.request import (
    MAX_QUERY_PARAMETERS,
    NO_CONTENT,
    ApiReply,
    ApiRequest,
    BodySpec,
    header,
    reply,
)
from chatd.api.route import ApiRoute
from chatd.api.schemas.accounts import (
    LinkBody,
    LoginBody,
    MeReply,
    OidcCallbackQuery,
    OidcStartQuery,
    PasswordBody,
    SetupReply,
    SignedInReply,
    SignInMethodsReply,
    TicketReply,
    user_reply,
)
from chatd.domain.access.accounts import User, check_password
from chatd.domain.access.permissions import SystemActor
from chatd.domain.access.secret_text import SECRET_BYTES, csrf_token, digest, secret_text
from chatd.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from chatd.domain.ids import CredentialId
from chatd.store.account import credentials, users
from chatd.store.account.credentials import TICKET_LIFETIME, NewCredential

_LOGIN: Final = BodySpec(LoginBody)
_LINK: Final = BodySpec(LinkBody)
_PASSWORD: Final = BodySpec(PasswordBody)
_ME: Final = SystemActor(reason="own account")
"""A caller may always see the own account, also with a token that lacks the scope `account`."""
_SETUP_TEXT: Final = (
    "Open the link that chatd serve printed in its terminal, or let chatd admin sign-in-link print"
    " another one."
)


class SignInRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._accounts = deps.accounts
        self._is_set_up = False

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /setup",
                permission="public",
                summary="Get whether this server waits for its first sign-in",
                handle=self.get_setup,
                replies={200: SetupReply},
            ),
            ApiRoute(
                endpoint="GET /auth/methods",
                permission="public",
                summary="Get the ways to sign in",
                handle=self.get_sign_in_methods,
                replies={200: SignInMethodsReply},
            ),
            ApiRoute(
                endpoint="POST /auth/login",
                permission="public",
                summary="Sign a browser in with a password; the reply sets the session's cookie",
                handle=self.sign_in_with_password,
                body_spec=_LOGIN,
                replies={200: SignedInReply},
                errors=SIGN_IN_CODES,
            ),
            ApiRoute(
                endpoint="POST /auth/link",
                permission="public",
                summary="Sign a browser in with a one-time link",
                handle=self.sign_in_with_link,
                body_spec=_LINK,
                replies={200: SignedInReply},
                errors=SIGN_IN_CODES,
            ),
            ApiRoute(
                endpoint="POST /auth/logout",
                permission="signed_in",
                summary="End the session that sends this request",
                handle=self.sign_out,
                replies={204: None},
            ),
            ApiRoute(
                endpoint="GET /auth/me",
                permission="signed_in",
                summary="Get who you are, and the CSRF token of your session",
                handle=self.get_me,
                replies={200: MeReply},
            ),
            ApiRoute(
                endpoint="POST /auth/password",
                permission="account.write",
                summary="Change your password; all your other sessions end",
                handle=self.change_password,
                body_spec=_PASSWORD,
                replies={204: None},
                errors=("service_account", "wrong_password"),
            ),
            ApiRoute(
                endpoint="POST /auth/ticket",
                permission="signed_in",
                summary="Get a ticket that opens one event stream or WebSocket within a minute",
                handle=self.create_ticket,
                replies={200: TicketReply},
                errors=("not_found",),
            ),
        )

    async def get_setup(self, request: ApiRequest) -> ApiReply:
        """Once set up, always set up: then the reply costs no read."""
        del request
        if not self._is_set_up:
            needed = await self._deps.read(users.needs_setup)
            self._is_set_up = not needed
        needed = not self._is_set_up
        return reply(SetupReply(needed=needed, message=_SETUP_TEXT if needed else None))

    async def get_sign_in_methods(self, request: ApiRequest) -> ApiReply:
        del request
        accounts = self._accounts
        return reply(SignInMethodsReply(password=accounts.has_passwords, oidc=accounts.oidc_name))

    async def sign_in_with_password(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_LOGIN)
        if not self._accounts.has_passwords:
            raise Unauthorized("Sign-in with a password is switched off.", code="invalid_login")
        return _signed_in(
            await self._accounts.sign_in.by_password(request.scope, body.username, body.password)
        )

    async def sign_in_with_link(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_LINK)
        return _signed_in(await self._accounts.sign_in.by_link(request.scope, body.secret))

    async def sign_out(self, request: ApiRequest) -> ApiReply:
        """A token stays valid: it is revoked by its id."""
        caller, site = request.caller, self._accounts.site
        if caller.kind != "session" or caller.credential_id is None:
            return NO_CONTENT
        session_id, ip = caller.credential_id, site.address(request.scope)
        async with self._deps.pool.transaction() as session:
            await credentials.revoke(session, caller.actor, session_id, ("session",), ip=ip)
        cookie = cleared_cookie(secure=site.is_secure(request.scope))
        return ApiReply(status=204, headers={"set-cookie": cookie})

    def _restored_from(self) -> datetime | None:
        copy = self._deps.confirmation
        return None if copy is None or copy.record is None or copy.is_given else copy.record.made_at

    async def get_me(self, request: ApiRequest) -> ApiReply:
        caller = request.caller
        user = await self._own_user(request)
        secure = self._accounts.site.is_secure(request.scope)
        secret = session_secret(request.scope, secure=secure)
        has_session = caller.kind == "session" and secret is not None
        return reply(
            MeReply(
                user=user_reply(user),
                credential="session" if caller.kind == "session" else "token",
                scopes=None if caller.actor.scopes is None else tuple(caller.actor.scopes),  # pyright: ignore[reportArgumentType]
                expires_at=caller.expires_at,
                csrf_token=csrf_token(secret) if has_session and secret is not None else None,
                restored_from=self._restored_from(),
            )
        )

    async def change_password(self, request: ApiRequest) -> ApiReply:
        deps, caller = self._deps, request.caller
        body = await request.body(_PASSWORD)
        new = check_password(body.new_password, "new_password")
        user_id, passwords = caller.user_id, self._accounts.passwords
        user = await self._own_user(request)
        if user.is_service:
            raise Conflict("A service account has no password.", code="service_account")
        known = await users.get_password_hash(deps.pool, caller.actor, user_id)
        if known is None and caller.actor.scopes is not None:
            # A sign-in with the new password would have all scopes.
            raise Forbidden(
                "A token with scopes cannot set the first password. Sign in, or use a token without"
                " scopes.",
                code="missing_scope",
            )
        await self._accounts.sign_in.check_current_password(user, body.current_password, known)
        new_hash = await passwords.make_hash(new)
        ip = self._accounts.site.address(request.scope)
        async with deps.pool.transaction() as session:
            await users.set_password(session, caller.actor, user_id, new_hash, ip=ip)
            await credentials.revoke_of_user(
                session, caller.actor, user_id, ("session", "link"), keep=caller.credential_id
            )
        return NO_CONTENT

    async def create_ticket(self, request: ApiRequest) -> ApiReply:
        caller = request.caller
        secret = secret_text(secrets.token_bytes(SECRET_BYTES))
        new = NewCredential(
            id=CredentialId(self._deps.env.new_id()),
            kind="ticket",
            user_id=caller.user_id,
            secret_sha256=digest(secret),
            scopes=None if caller.actor.scopes is None else sorted(caller.actor.scopes),
            lifetime=TICKET_LIFETIME,
            parent_id=caller.credential_id,
        )
        made = await credentials.insert(self._deps.pool, caller.actor, new)
        assert made.expires_at is not None
        return reply(TicketReply(ticket=secret, expires_at=made.expires_at))

    async def _own_user(self, request: ApiRequest) -> User:
        user_id = request.caller.user_id
        found = await self._deps.read(users.get, _ME, user_id)
        if found is None:
            raise Unauthorized("This user does not exist any more.")
        return found


def _signed_in(done: SignedIn) -> ApiReply:
    body = SignedInReply(
        user=user_reply(done.user), csrf_token=done.csrf_token, expires_at=done.expires_at
    )
    return structs.replace(reply(body), cookies=done.cookies)


PROBLEM: Final = "problem"
"""The parameter of the page to sign in on that names the code of a failure."""


class OidcRoutes:
    """Lead a browser to the OpenID provider and take it back. A browser that shows pages gets a
    failure as the page to sign in on, which says what to do; other clients get it as every
    error."""

    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /auth/oidc/start",
                permission="public",
                summary="Go to the OpenID provider to sign in",
                handle=self.start_oidc_sign_in,
                query=OidcStartQuery,
                replies={302: None},
                errors=IDENTITY_CODES,
            ),
            ApiRoute(
                endpoint="GET /auth/oidc/callback",
                permission="public",
                summary="Come back from the OpenID provider; the reply sets the session's cookie",
                handle=self.finish_oidc_sign_in,
                query=OidcCallbackQuery,
                replies={302: None},
                errors=IDENTITY_CODES,
            ),
        )

    async def start_oidc_sign_in(self, request: ApiRequest) -> ApiReply:
        return await _or_page(request, self._start(request))

    async def finish_oidc_sign_in(self, request: ApiRequest) -> ApiReply:
        return await _or_page(request, self._finish(request))

    async def _start(self, request: ApiRequest) -> ApiReply:
        query = request.query(OidcStartQuery)
        address, cookie = await self._oidc().start(request.scope, query.next)
        return ApiReply(status=302, headers={"location": address}, cookies=(cookie,))

    async def _finish(self, request: ApiRequest) -> ApiReply:
        answer = _read_answer(request.scope["query_string"])
        signed_in, path, cookie = await self._oidc().finish(request.scope, answer)
        return ApiReply(
            status=302, headers={"location": path}, cookies=(*signed_in.cookies, cookie)
        )

    def _oidc(self) -> OidcSignIn:
        if self._deps.accounts.oidc is None:
            raise NotFound("No OpenID provider is configured.")
        return self._deps.accounts.oidc


async def _or_page(request: ApiRequest, answer: Awaitable[ApiReply]) -> ApiReply:
    """Only codes of identities, never words of the provider, go into the address."""
    try:
        return await answer
    except (Unauthorized, Forbidden, IdentityProviderFailed) as error:
        if error.code not in IDENTITY_CODES or not _shows_pages(request):
            raise
        return ApiReply(status=302, headers={"location": f"{SIGN_IN_PATH}?{PROBLEM}={error.code}"})


def _shows_pages(request: ApiRequest) -> bool:
    return "text/html" in (header(request.scope, b"accept") or "")


def _read_answer(query: bytes) -> OidcAnswer:
    """Providers add parameters of their own, so unknown ones are ignored."""
    try:
        pairs = parse_qsl(query.decode("latin-1"), max_num_fields=MAX_QUERY_PARAMETERS)
    except ValueError:
        raise InvalidInput("query", f"at most {MAX_QUERY_PARAMETERS} parameters") from None
    found = dict(pairs)
    return OidcAnswer(code=found.get("code"), state=found.get("state"), error=found.get("error"))
