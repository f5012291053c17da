"""Serves the page: its document for the addresses that it handles itself, its assets and icons.

The files are the same for everyone and need no credential; all data comes from the API, which
does. Where the page was not built, the lite page takes its place, and a plain page to sign in on.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from chatd.api.accounts.pages import SIGN_IN_PATH
from chatd.api.request import ApiReply, Scope
from chatd.api.route import Page, PageRoute, RoutePath, ServePage
from chatd.api.web_page.files import ASSETS, PageFile, PageFiles
from chatd.api.web_page.lite import LitePage
from chatd.api.web_page.replies import reply_file
from chatd.domain.errors import NotFound

EMBED_ADDRESS: Final = "embed"
"""A chat alone, for frames."""
PAGE_ADDRESSES: Final = frozenset({"c", "new", "search", "settings", "admin", EMBED_ADDRESS})
"""The first segments of the page's own addresses, beside `/`: ui/src/platform/routes.ts."""
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " font-src 'self'; connect-src 'self'; manifest-src 'self'; worker-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


class WebPage:
    """Finds what belongs to the page among the paths that no route has. `sign_in` is the page to
    sign in on where the page was not built."""

    def __init__(
        self, files: PageFiles, lite: LitePage, sign_in: Page, frame_origins: Sequence[str] = ()
    ) -> None:
        """Pages of `frame_origins` may show the embedded chat, beside this server's own."""
        self._files = files
        framed_by = " ".join(("'self'", *frame_origins))
        self._embed_policy = PAGE_POLICY.replace(
            "frame-ancestors 'none'", f"frame-ancestors {framed_by}"
        )
        self._lite = lite
        self._plain_sign_in = sign_in
        self._document = _get("/{page}", self._serve_document)
        self._embedded = _get("/embed/{page}", self._serve_embedded)
        self._asset = _get("/assets/{name}", self._serve_asset)
        self._file = _get("/{file}", self._serve_file)

    @property
    def pages(self) -> Mapping[str, PageRoute]:
        return {SIGN_IN_PATH: PageRoute(serve=self._serve_sign_in), **self._lite.pages}

    def find(self, path: str) -> tuple[RoutePath, Mapping[str, str]] | None:
        """The endpoint of a decoded path, in which a `/` may have been `%2F`."""
        segments = [segment for segment in path.split("/") if segment]
        if segments and segments[0] == EMBED_ADDRESS:
            return self._embedded, {}
        if not segments or segments[0] in PAGE_ADDRESSES:
            return self._document, {}
        if segments[0] == ASSETS:
            return self._asset, {}
        return (self._file, {}) if len(segments) == 1 else None

    async def _serve_document(self, scope: Scope) -> ApiReply:
        page = await self._files.latest()
        if page is None:
            return await self._lite.document(scope)
        return reply_file(scope, page.document, PAGE_POLICY)

    async def _serve_embedded(self, scope: Scope) -> ApiReply:
        page = await self._files.latest()
        if page is None:
            return await self._lite.document(scope)
        return reply_file(scope, page.document, self._embed_policy, in_frames=True)

    async def _serve_sign_in(self, scope: Scope) -> ApiReply:
        page = await self._files.latest()
        if page is None:
            return await self._plain_sign_in()
        return reply_file(scope, page.document, PAGE_POLICY)

    async def _serve_asset(self, scope: Scope) -> ApiReply:
        found = await self._find(scope["path"])
        return reply_file(scope, found, PAGE_POLICY, is_immutable=True)

    async def _serve_file(self, scope: Scope) -> ApiReply:
        return reply_file(scope, await self._find(scope["path"]), PAGE_POLICY)

    async def _find(self, path: str) -> PageFile:
        page = await self._files.known()
        found = None if page is None else page.files.get(path.removeprefix("/"))
        if found is None:
            raise NotFound("There is no such path. The API is described at /docs.")
        return found


def _get(template: str, serve: ServePage) -> RoutePath:
    """The template is the label of metrics."""
    endpoint = RoutePath(template)
    endpoint.handlers["GET"] = PageRoute(serve=serve)
    return endpoint
