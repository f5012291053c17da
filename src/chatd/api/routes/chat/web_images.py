"""The route that loads an image of the web which a text of a chat names, because a reader asked.

The page itself fetches nothing from elsewhere: looking at an image would tell its host who looks,
and the content policy forbids it. So the server fetches it, from a public address, without cookies
and Referer, and hands on nothing but the bytes of an image.
"""

import asyncio
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Annotated, ClassVar, Final
from urllib.parse import SplitResult, urljoin, urlsplit

import aiohttp
from msgspec import Meta, Struct

from chatd.api.accounts.request_limits import Buckets
from chatd.api.deps import ApiDeps, WebImageHosts
from chatd.api.errors import RateLimited
from chatd.api.operations import audit_read
from chatd.api.request import ApiReply, ApiRequest, BodySpec
from chatd.api.route import ApiRoute
from chatd.api.routes.files import SANDBOX
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.domain.description import describe
from chatd.domain.errors import Conflict, Forbidden, InvalidInput
from chatd.domain.ids import UserId
from chatd.domain.media_types import IMAGE_TYPES, detect_type
from chatd.guarded_dial import guarded_session, read_bounded
from chatd.store.chat import chats

WEB_IMAGES_PER_MINUTE: Final = 30
"""Of the web that a user may load, on each replica."""
WEB_IMAGES_AT_ONCE: Final = 16
"""Images of the web that a replica fetches at once."""
WEB_IMAGES_AT_ONCE_PER_USER: Final = 4
MAX_WEB_IMAGE_BYTES: Final = 8 * 1024 * 1024
WEB_IMAGE_TIMEOUT_S: Final = 20.0
"""For the whole image, with its redirects."""
MAX_WEB_IMAGE_REDIRECTS: Final = 4
MAX_URL_CHARS: Final = 2000
BUSY_RETRY_S: Final = 2.0
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_WEB_PORTS: Final = frozenset({None, 80, 443})
_HEADERS: Final = {
    "accept": ", ".join(sorted(IMAGE_TYPES)),
    "accept-encoding": "identity",
    "user-agent": "chatd",
}


class WebImageFailed(Conflict):
    """The host did not answer with an image."""

    code = "web_image_failed"


class WebImageBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which image."""

    openapi_example: ClassVar[Mapping[str, object]] = {"url": "https://example.com/chart.png"}

    url: Annotated[
        str,
        Meta(min_length=1, max_length=MAX_URL_CHARS),
        describe("Its address, http or https.", "https://example.com/chart.png"),
    ]


_BODY: Final = BodySpec(WebImageBody)


class WebImageRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._rates = Buckets(deps.env.clock)
        self._running: Counter[UserId] = Counter()

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /chats/{chat_id}/web-images",
                permission="chats.read",
                summary="Load an image of the web that a text of the chat names",
                description=(
                    "The server fetches it from a public address, without cookies and Referer: its"
                    " host does not learn who looks. PNG, JPEG, GIF and WebP of at most"
                    f" {MAX_WEB_IMAGE_BYTES // 1024 // 1024} MiB, {WEB_IMAGES_PER_MINUTE} a minute."
                    " Nothing is stored. `files.web_images` of the settings turns it off."
                ),
                handle=self.load_web_image,
                body_spec=_BODY,
                replies={200: bytes},
                reply_types=tuple(sorted(IMAGE_TYPES)),
                errors=("web_images_off", "web_image_failed"),
            ),
        )

    async def load_web_image(self, request: ApiRequest) -> ApiReply:
        deps, caller = self._deps, request.caller
        body = await request.body(_BODY)
        chat = require_chat(await deps.read(chats.get, caller.actor, request.chat_id))
        await audit_read(deps, caller, chat)
        if deps.web_images == "off":
            raise Forbidden("Images of the web are not loaded here.", code="web_images_off")
        url = read_image_url(body.url, deps.web_images)
        self._rates.take(caller.user_id, WEB_IMAGES_PER_MINUTE)
        with self._place(caller.user_id):
            image, kind = await fetch_image(url, deps.web_images)
        return ApiReply(
            body=image,
            media_type=kind,
            headers={
                "cache-control": "no-store",
                "content-disposition": "inline",
                "content-security-policy": SANDBOX,
                "cross-origin-resource-policy": "same-origin",
            },
        )

    @contextmanager
    def _place(self, user_id: UserId) -> Generator[None]:
        """Raises RateLimited. A slow host keeps only its own reader from other images."""
        if (
            self._running[user_id] >= WEB_IMAGES_AT_ONCE_PER_USER
            or self._running.total() >= WEB_IMAGES_AT_ONCE
        ):
            raise RateLimited(BUSY_RETRY_S)
        self._running[user_id] += 1
        try:
            yield
        finally:
            self._running[user_id] -= 1
            if not self._running[user_id]:
                del self._running[user_id]


def read_image_url(text: str, hosts: WebImageHosts) -> SplitResult:
    """Raises InvalidInput."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise InvalidInput("url", "is not an address") from None
    if url.scheme not in ("http", "https") or not url.hostname:
        raise InvalidInput("url", "must begin with http:// or https:// and a host")
    if url.username is not None or url.password is not None:
        raise InvalidInput("url", "must not contain a user or a password")
    if hosts == "public" and port not in _WEB_PORTS:
        raise InvalidInput("url", "must use port 80 or 443")
    return url


async def fetch_image(url: SplitResult, hosts: WebImageHosts) -> tuple[bytes, str]:
    """The bytes and their media type. A redirect leads to where the first address may lead. Raises
    WebImageFailed."""
    host = url.hostname
    try:
        async with (
            asyncio.timeout(WEB_IMAGE_TIMEOUT_S),
            guarded_session(allow_private=hosts == "all") as session,
        ):
            for _ in range(MAX_WEB_IMAGE_REDIRECTS + 1):
                asked = session.get(url.geturl(), headers=_HEADERS, allow_redirects=False)
                async with asked as reply:
                    location = reply.headers.get("location")
                    if reply.status not in _REDIRECTS or location is None:
                        return await _read_image(reply, str(host))
                url = read_image_url(urljoin(url.geturl(), location), hosts)
    except TimeoutError:
        raise WebImageFailed(
            f"{host} did not send the image within {WEB_IMAGE_TIMEOUT_S:.0f} seconds."
        ) from None
    except InvalidInput as error:
        raise WebImageFailed(
            f"{host} sends chatd to an address that {error.detail}, which is refused."
        ) from None
    except aiohttp.ClientConnectorError as error:
        raise WebImageFailed(f"{host} cannot be reached: {error.strerror or error}.") from None
    except (aiohttp.ClientError, OSError, UnicodeError):
        raise WebImageFailed(f"{host} cannot be reached, or broke off.") from None
    except ValueError:
        limit = MAX_WEB_IMAGE_BYTES // 1024 // 1024
        raise WebImageFailed(f"The image of {host} has more than {limit} MiB.") from None
    raise WebImageFailed(f"{host} redirects too often.")


async def _read_image(reply: aiohttp.ClientResponse, host: str) -> tuple[bytes, str]:
    """Raises WebImageFailed, and ValueError if it is too long."""
    if reply.status != 200:
        raise WebImageFailed(f"{host} answered with the status {reply.status}.")
    if reply.headers.get("content-encoding", "identity") != "identity":
        # A few bytes may become many.
        raise WebImageFailed(f"{host} sent the image compressed, which is refused.")
    body = await read_bounded(reply, MAX_WEB_IMAGE_BYTES)
    kind = detect_type(body[:16])
    if kind not in IMAGE_TYPES:
        raise WebImageFailed(f"{host} did not send a PNG, JPEG, GIF or WebP image.")
    return body, kind
