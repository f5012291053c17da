"""Routes that lead a browser to the OpenID provider and take it back.

A browser that shows pages gets a failure as the page to sign in on, which says what to do; other
clients get it as every error.
"""

from collections.abc import Awaitable
from typing import Final
from urllib.parse import parse_qsl

from chatd.api.accounts.oidc_sign_in import OidcAnswer, OidcSignIn
from chatd.api.accounts.pages import SIGN_IN_PATH
from chatd.api.deps import ApiDeps
from chatd.api.error_codes import IDENTITY_CODES
from chatd.api.errors import IdentityProviderFailed, Unauthorized
from chatd.api.request import MAX_QUERY_PARAMETERS, ApiReply, ApiRequest, header
from chatd.api.route import ApiRoute
from chatd.api.schemas.accounts import OidcCallbackQuery, OidcStartQuery
from chatd.domain.errors import Forbidden, InvalidInput, NotFound

PROBLEM: Final = "problem"
"""The parameter of the page to sign in on that names the code of a failure."""


class OidcRoutes:
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
