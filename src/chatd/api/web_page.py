"""Serves the page: its document for the addresses that it handles itself, its assets and icons; and
the lite page, one document and one script over the public API, which need no build; and the site of
the documentation at `/help`.

The files are the same for everyone and need no credential; all data comes from the API, which does.
All are kept in memory, read once: so the document and the assets that it names belong to one build,
also while another build replaces the directory. Only the listed names can be asked for, so no path
of a request ever reaches the file system. Where the page was not built, the lite page takes its
place, and a plain page to sign in on. The lite page is always at `/lite`.
"""

import asyncio
import gzip
import logging
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

import chatd
from chatd.api.accounts.plain_pages import SIGN_IN_PATH
from chatd.api.request import ApiReply, Scope, header
from chatd.api.route import Page, PageRoute, RoutePath, ServePage
from chatd.domain.chat_views.public_links import PUBLIC_LINK_PATH
from chatd.domain.errors import NotFound
from chatd.log_event import LogEvent

log = logging.getLogger(__name__)

PACKAGED_PAGE: Final = Path(chatd.__file__).with_name("page")
"""Where the build puts the page: see ui/vite.config.ts."""
PACKAGED_HELP: Final = Path(chatd.__file__).with_name("help")
"""Where the build puts the documentation: see mkdocs.yml."""
DOCUMENT: Final = "index.html"
ASSETS: Final = "assets"
"""The directory of the files with a hash in their names."""
MAX_PAGE_FILES: Final = 1000
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024

_GZIP: Final = ".gz"
_BROTLI: Final = ".br"
_MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}


class PageFile(Struct, frozen=True, kw_only=True):
    """`gzip` and `brotli` are the compressed bodies that the build made, if it made them."""

    media_type: str
    body: bytes
    gzip: bytes | None
    brotli: bytes | None = None
    etag: str


class BuiltPage(Struct, frozen=True, kw_only=True):
    """`files` by their path below the page's directory, such as `assets/index-4f2a.js`."""

    files: Mapping[str, PageFile]
    built_at: tuple[int, ...]

    @property
    def document(self) -> PageFile:
        return self.files[DOCUMENT]


class PageFiles:
    """The page of a directory. A build that replaces it while the server runs is read at the next
    request for the document."""

    def __init__(self, directory: Path = PACKAGED_PAGE) -> None:
        self._directory = directory
        self._page: BuiltPage | None = None
        self._reading = asyncio.Lock()

    async def latest(self) -> BuiltPage | None:
        """None if the page was never built."""
        async with self._reading:
            self._page = await asyncio.to_thread(self._refresh, self._page)
            return self._page

    async def known(self) -> BuiltPage | None:
        """Without a look at the directory, if it was read before."""
        return self._page or await self.latest()

    def _refresh(self, page: BuiltPage | None) -> BuiltPage | None:
        """A build in progress removes the directory first: until it ends, the page stays."""
        try:
            parts = (self._directory / name for name in (DOCUMENT, ASSETS))
            built_at = tuple(part.stat().st_mtime_ns for part in parts)
            if page is not None and page.built_at == built_at:
                return page
            return BuiltPage(files=_read_files(self._directory), built_at=built_at)
        except FileNotFoundError:
            return page
        except (OSError, ValueError) as error:
            log.error(LogEvent(event="page_unreadable", explanation=str(error)))
            return page


def is_built(directory: Path = PACKAGED_PAGE) -> bool:
    return (directory / DOCUMENT).is_file()


def _read_files(directory: Path) -> Mapping[str, PageFile]:
    """Raises ValueError beyond the limits, OSError."""
    paths = sorted(path for path in directory.rglob("*") if _is_served(directory, path))
    if len(paths) > MAX_PAGE_FILES:
        raise ValueError(f"{directory} has more than {MAX_PAGE_FILES} files")
    contents = {path: path.read_bytes() for path in paths if _within(path)}
    if sum(map(len, contents.values())) > MAX_PAGE_BYTES:
        raise ValueError(f"the files of {directory} exceed {MAX_PAGE_BYTES} bytes")
    return {
        path.relative_to(directory).as_posix(): PageFile(
            media_type=_MEDIA_TYPES[path.suffix],
            body=body,
            gzip=contents.get(path.with_name(path.name + _GZIP)),
            brotli=contents.get(path.with_name(path.name + _BROTLI)),
            etag=sha256(body).hexdigest()[:16],
        )
        for path, body in contents.items()
        if path.suffix not in (_GZIP, _BROTLI)
    }


def _is_served(directory: Path, path: Path) -> bool:
    """Regular files of known types. Names that begin with a dot are the build's own notes."""
    name = path.name.removesuffix(_GZIP).removesuffix(_BROTLI)
    hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
    return not hidden and Path(name).suffix in _MEDIA_TYPES and path.is_file()


def _within(path: Path) -> bool:
    """Raises ValueError for a file that alone exceeds the limit, before it is read."""
    if path.stat().st_size > MAX_PAGE_BYTES:
        raise ValueError(f"{path} exceeds {MAX_PAGE_BYTES} bytes")
    return True


REVALIDATED: Final = "no-cache"
IMMUTABLE: Final = "public, max-age=31536000, immutable"
"""For files with a hash of their content in their names."""
_ISOLATION: Final[Mapping[str, str]] = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


def reply_file(
    scope: Scope,
    file: PageFile,
    policy: str,
    *,
    is_immutable: bool = False,
    in_frames: bool = False,
) -> ApiReply:
    """`in_frames`: the policy says which pages may show it in a frame."""
    compressed = (("br", file.brotli), ("gzip", file.gzip))
    encoding, body = next(
        ((name, made) for name, made in compressed if made is not None and accepts(scope, name)),
        (None, file.body),
    )
    etag = f'"{file.etag}{"" if encoding is None else f"-{encoding}"}"'
    headers = {
        **({} if in_frames else _ISOLATION),
        "content-security-policy": policy,
        "cache-control": IMMUTABLE if is_immutable else REVALIDATED,
        "etag": etag,
    }
    if file.gzip is not None or file.brotli is not None:
        headers["vary"] = "accept-encoding"
    if _is_known(etag, header(scope, b"if-none-match")):
        return ApiReply(status=304, headers=headers)
    if encoding is not None:
        headers["content-encoding"] = encoding
    return ApiReply(body=body, media_type=file.media_type, headers=headers)


def accepts(scope: Scope, encoding: str) -> bool:
    """`gzip;q=0` refuses gzip; what is unreadable counts as a refusal."""
    for choice in (header(scope, b"accept-encoding") or "").split(","):
        name, _, weight = choice.strip().lower().partition(";")
        if name.strip() in (encoding, "*"):
            value = weight.strip().removeprefix("q=").strip() or "1"
            return value.replace(".", "", 1).isdecimal() and float(value) > 0
    return False


def _is_known(etag: str, asked: str | None) -> bool:
    known = {one.strip().removeprefix("W/") for one in (asked or "").split(",")}
    return etag in known or "*" in known


LITE_PATH: Final = "/lite"
_DOCUMENT: Final = Path(__file__).with_name("lite.html")
_SCRIPT: Final = Path(__file__).with_name("lite.js")
_STYLE: Final = re.compile(r"<style>(.*?)</style>", re.DOTALL)


class LitePage:
    """The files are read when the server starts."""

    def __init__(self, page: PageFiles) -> None:
        """The document says whether the full `page` was built."""
        text = _DOCUMENT.read_text()
        self._page = page
        self._policy = _policy(text)
        self._alone = _file(text, "text/html; charset=utf-8")
        beside = text.replace("<html ", "<html data-built=true ", 1)
        self._beside_page = _file(beside, "text/html; charset=utf-8")
        self._script = _file(_SCRIPT.read_text(), "text/javascript; charset=utf-8")

    @property
    def pages(self) -> Mapping[str, PageRoute]:
        return {
            LITE_PATH: PageRoute(serve=self.document),
            f"{LITE_PATH}.js": PageRoute(serve=self.script),
        }

    async def document(self, scope: Scope) -> ApiReply:
        is_alone = await self._page.latest() is None
        return reply_file(scope, self._alone if is_alone else self._beside_page, self._policy)

    async def script(self, scope: Scope) -> ApiReply:
        return reply_file(scope, self._script, self._policy)


def _policy(document: str) -> str:
    """The document's own style is allowed by its hash, and no other."""
    style = _STYLE.search(document)
    assert style is not None
    digest = _digest(style[1])
    return (
        f"default-src 'none'; script-src 'self'; style-src 'sha256-{digest}'; img-src data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digest(text: str) -> str:
    """As content policies name it."""
    return b64encode(sha256(text.encode()).digest()).decode()


def _file(text: str, media_type: str) -> PageFile:
    body = text.encode()
    return PageFile(
        media_type=media_type,
        body=body,
        gzip=gzip.compress(body, mtime=0),
        etag=sha256(body).hexdigest()[:16],
    )


HELP_ADDRESS: Final = "help"
_SCRIPTS: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_NO_HELP: Final = (
    "The documentation is not built. In a checkout `make serve` builds it in the background, within"
    " a minute; if it is still missing then, `make site` builds it and says what is wrong. This"
    " server has it then. Its sources are the files of docs/; the API is described at /docs.\n"
)


class HelpSite:
    """The documentation as a site of flat files. Its documents have the same few scripts, which the
    policy allows by their hashes; tools/help_build.py makes sure that there are no others."""

    def __init__(self, files: PageFiles) -> None:
        self._files = files
        self._policy = ("", "")
        self.endpoint = _get(f"/{HELP_ADDRESS}/{{file}}", self._serve)

    async def _serve(self, scope: Scope) -> ApiReply:
        path: str = scope["path"]
        if path == f"/{HELP_ADDRESS}":  # the links of the site are relative
            return ApiReply(status=308, headers={"location": f"/{HELP_ADDRESS}/"})
        name = path.removeprefix(f"/{HELP_ADDRESS}/") or DOCUMENT
        is_document = name.endswith(".html")
        site = await (self._files.latest() if is_document else self._files.known())
        if site is None:
            return ApiReply(
                status=404, body=_NO_HELP.encode(), media_type="text/plain; charset=utf-8"
            )
        if (found := site.files.get(name)) is None:
            raise NotFound("The documentation has no such page. It begins at /help/.")
        return reply_file(scope, found, self._policy_of(site))

    def _policy_of(self, site: BuiltPage) -> str:
        etag, policy = self._policy
        if etag != site.document.etag:
            scripts = _SCRIPTS.findall(site.document.body.decode())
            allowed = "".join(f" 'sha256-{_digest(script)}'" for script in scripts)
            policy = (
                f"default-src 'none'; script-src 'self'{allowed}; style-src 'self'; img-src 'self'"
                " data:; font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none';"
                " form-action 'none'; frame-ancestors 'none'"
            )
            self._policy = (site.document.etag, policy)
        return policy


EMBED_ADDRESS: Final = "embed"
"""A chat alone, for frames."""
PAGE_ADDRESSES: Final = frozenset(
    {"c", "new", "projects", "search", "settings", "admin", EMBED_ADDRESS}
)
"""The first segments of the page's own addresses, beside `/`: ui/src/platform/routes.ts."""
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " media-src 'self'; font-src 'self'; connect-src 'self'; manifest-src 'self';"
    " worker-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


DIAGRAM_FRAME: Final = "/diagram.html"
"""The hidden frame in which the page draws diagrams: ui/src/text/diagrams.ts."""
_DIAGRAM_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'"
)
"""Mermaid writes styles into the document. It may fetch nothing but its own scripts."""


PUBLIC_DOCUMENT: Final = "shared.html"
"""The page of a public link: ui/src/shared."""
_PUBLIC_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:;"
    " font-src 'self'; connect-src 'self'; frame-src 'self'; frame-ancestors 'none';"
    " base-uri 'none'; form-action 'none'"
)
_NOT_BUILT: Final = "The page is not built, so that public links cannot be shown here.\n"


class WebPage:
    """Finds what belongs to the page among the paths that no route has. `sign_in` is the page to
    sign in on where the page was not built."""

    def __init__(
        self,
        files: PageFiles,
        lite: LitePage,
        sign_in: Page,
        documentation: HelpSite,
        frame_origins: Sequence[str] = (),
        *,
        preview_sources: str = "",
    ) -> None:
        """Pages of `frame_origins` may show the embedded chat, beside this server's own. The page
        may show frames of `preview_sources`."""
        self._files = files
        framed_by = " ".join(("'self'", *frame_origins))
        self._policy = f"{PAGE_POLICY}; frame-src 'self' blob: {preview_sources}".rstrip()
        embedded = PAGE_POLICY.replace("frame-ancestors 'none'", f"frame-ancestors {framed_by}")
        self._embed_policy = f"{embedded}; frame-src 'self'"
        self._diagram_policy = f"{_DIAGRAM_POLICY}; frame-ancestors {framed_by}"
        self._lite = lite
        self._plain_sign_in = sign_in
        self._help = documentation
        self._document = _get("/{page}", self._serve_document)
        self._embedded = _get("/embed/{page}", self._serve_embedded)
        self._public = _get(PUBLIC_LINK_PATH, self._serve_public)
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
        if segments in ([PUBLIC_LINK_PATH.strip("/")], [PUBLIC_DOCUMENT]):
            return self._public, {}
        if segments[0] == HELP_ADDRESS:
            return self._help.endpoint, {}
        return (self._file, {}) if len(segments) == 1 else None

    async def _serve_document(self, scope: Scope) -> ApiReply:
        page = await self._files.latest()
        if page is None:
            return await self._lite.document(scope)
        return reply_file(scope, page.document, self._policy)

    async def _serve_embedded(self, scope: Scope) -> ApiReply:
        page = await self._files.latest()
        if page is None:
            return await self._lite.document(scope)
        return reply_file(scope, page.document, self._embed_policy, in_frames=True)

    async def _serve_public(self, scope: Scope) -> ApiReply:
        """The same for every link: it is the page that sends the secret, which it finds in its
        address."""
        page = await self._files.latest()
        document = None if page is None else page.files.get(PUBLIC_DOCUMENT)
        if document is None:
            return ApiReply(status=404, body=_NOT_BUILT.encode(), media_type="text/plain")
        found = reply_file(scope, document, _PUBLIC_POLICY)
        return structs.replace(
            found, headers={**found.headers, "x-robots-tag": "noindex, nofollow"}
        )

    async def _serve_sign_in(self, scope: Scope) -> ApiReply:
        page = await self._files.latest()
        if page is None:
            return await self._plain_sign_in()
        return reply_file(scope, page.document, PAGE_POLICY)

    async def _serve_asset(self, scope: Scope) -> ApiReply:
        found = await self._find(scope["path"])
        return reply_file(scope, found, PAGE_POLICY, is_immutable=True)

    async def _serve_file(self, scope: Scope) -> ApiReply:
        found = await self._find(scope["path"])
        if scope["path"] == DIAGRAM_FRAME:
            return reply_file(scope, found, self._diagram_policy, in_frames=True)
        return reply_file(scope, found, PAGE_POLICY)

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
