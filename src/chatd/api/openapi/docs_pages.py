"""Pages about the API: the OpenAPI document, and Swagger UI, which shows it.

Swagger UI is in the wheel of chatd; an editable install has it as a package of its own. The pages
load nothing from elsewhere, and a content policy makes the browser refuse to.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from chatd.api.accounts.plain_pages import PAGE_HEAD, html_page
from chatd.api.openapi.document import build_openapi
from chatd.api.request import ApiReply
from chatd.api.route import PREFIX, ApiRoute, Page, StreamRoute
from chatd.domain.errors import NotFound

OPENAPI_PATH: Final = f"{PREFIX}/openapi.json"
SWAGGER_UI_FILES: Final[Mapping[str, str]] = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "LICENSE": "text/plain; charset=utf-8",
}
_PACKAGED: Final = Path(__file__).parent.with_name("swagger_ui")
_PACKAGE: Final = "flask_swagger_ui"
"""A package that carries the files of Swagger UI. Its code is never imported."""
_ASSET_HEADERS: Final = {"cache-control": "public, max-age=3600"}

_DOCS_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEAD: Final = """<!doctype html><html lang=en><meta charset=utf-8>
<meta name=viewport content='width=device-width, initial-scale=1'>"""
_DOCS_PAGE: Final = f"""{_HEAD}<title>chatd: API</title>
<link rel=stylesheet href='/docs/swagger-ui.css'>
<link rel=icon href='data:,'>
<div id=swagger-ui></div>
<noscript>The reference needs JavaScript. The OpenAPI document is at {OPENAPI_PATH}.</noscript>
<script src='/docs/swagger-ui-bundle.js'></script>
<script src='/docs/start.js'></script></html>
"""
_MISSING_PAGE: Final = f"""{PAGE_HEAD}<title>chatd: API</title>
<p>Swagger UI is not installed here. Run <code>make serve</code>, or install chatd from its wheel.
The OpenAPI document is at <a href='{OPENAPI_PATH}'>{OPENAPI_PATH}</a>.</p></html>
"""
_START_SCRIPT: Final = f"""let csrfToken;
const addCsrfToken = async (request) => {{
  // A signed-in browser needs it for changes; a request with a token ignores it.
  if (["GET", "HEAD"].includes(request.method || "GET")) return request;
  if (csrfToken === undefined) {{
    const reply = await fetch("{PREFIX}/auth/me");
    csrfToken = reply.ok ? (await reply.json()).csrf_token : null;
  }}
  if (csrfToken) request.headers["X-CSRF-Token"] = csrfToken;
  return request;
}};
SwaggerUIBundle({{
  requestInterceptor: addCsrfToken,
  url: "{OPENAPI_PATH}",
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  docExpansion: "list",
  filter: true,
  tryItOutEnabled: true,
  validatorUrl: null,
}});
"""


class ApiDocs:
    """Built on the first request, so that the server starts sooner."""

    def __init__(self, routes: Sequence[ApiRoute], streams: Sequence[StreamRoute]) -> None:
        self._routes = routes
        self._streams = streams

    @property
    def pages(self) -> Mapping[str, Page]:
        return {
            "/docs": self.docs,
            "/docs/start.js": self.start_script,
            **{f"/docs/{name}": partial(self.asset, name) for name in SWAGGER_UI_FILES},
            OPENAPI_PATH: self.openapi,
        }

    @cached_property
    def _document(self) -> bytes:
        return build_openapi(self._routes, self._streams)

    async def docs(self) -> ApiReply:
        if find_swagger_ui() is None:
            return html_page(_MISSING_PAGE)
        return html_page(_DOCS_PAGE, _DOCS_POLICY)

    async def start_script(self) -> ApiReply:
        kind = SWAGGER_UI_FILES["swagger-ui-bundle.js"]
        return ApiReply(body=_START_SCRIPT.encode(), media_type=kind, headers=_ASSET_HEADERS)

    async def asset(self, name: str) -> ApiReply:
        directory = find_swagger_ui()
        if directory is None:
            raise NotFound("Swagger UI is not installed here.")
        body = await asyncio.to_thread((directory / name).read_bytes)
        return ApiReply(body=body, media_type=SWAGGER_UI_FILES[name], headers=_ASSET_HEADERS)

    async def openapi(self) -> ApiReply:
        return ApiReply(body=await asyncio.to_thread(lambda: self._document))


@cache
def find_swagger_ui() -> Path | None:
    """The directory of its files, or None if it is not installed."""
    places = [_PACKAGED]
    if (spec := find_spec(_PACKAGE)) is not None:
        places += [Path(place) / "dist" for place in spec.submodule_search_locations or ()]
    return next((place for place in places if (place / "swagger-ui-bundle.js").is_file()), None)
