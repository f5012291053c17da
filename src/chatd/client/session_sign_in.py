"""Signs in as a browser does, to make a token; the session ends with it."""

from contextlib import suppress
from types import NoneType
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.exchange import ServerAddress, is_loopback
from chatd.client.http_session import open_session
from chatd.client.resources import CreatedToken
from chatd.client.server import ServerApi
from chatd.domain.errors import ChatdError


class NotEncrypted(ChatdError):
    """Everybody on the way could read the password."""

    code = "not_encrypted"

    def __init__(self, url: str) -> None:
        super().__init__(
            f"The connection to {url} is not encrypted: nothing was sent. Use the server's https"
            " address, or sign in with a token (--token-file)."
        )


class SignedIn(Struct, frozen=True, kw_only=True):
    csrf_token: str = ""


async def make_token_by_password(
    url: str, username: str, password: str, token_name: str
) -> CreatedToken:
    """Raises ApiError, ServerUnreachable and NotEncrypted."""
    body = {"username": username, "password": password}
    return await _make_token(url, "/auth/login", body, token_name)


async def make_token_by_link(url: str, secret: str, token_name: str) -> CreatedToken:
    """`secret` is what follows # in a sign-in link. Raises the same."""
    return await _make_token(url, "/auth/link", {"secret": secret}, token_name)


async def _make_token(url: str, path: str, body: object, token_name: str) -> CreatedToken:
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise NotEncrypted(url)
    # The cookie of an address such as 127.0.0.1 is kept too.
    jar = aiohttp.CookieJar(unsafe=True)
    async with open_session(url, jar) as http:
        http.headers["Origin"] = f"{parts.scheme}://{parts.netloc}"
        api = ServerApi(ServerAddress(url=url, token=""), http)
        signed_in = await api.post(path, body, SignedIn)
        http.headers["X-CSRF-Token"] = signed_in.csrf_token
        try:
            return await api.post("/auth/tokens", {"name": token_name}, CreatedToken)
        finally:
            with suppress(ApiError, ServerUnreachable):
                await api.post("/auth/logout", None, NoneType)
