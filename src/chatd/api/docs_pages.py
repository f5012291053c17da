"""Pages about the API: the index, the OpenAPI document, and a reference made from it."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from typing import Final, cast

import msgspec

from chatd.api.openapi import build_openapi
from chatd.api.openapi_schemas import Json
from chatd.api.request import ApiReply
from chatd.api.route import PREFIX, ApiRoute, Page, StreamRoute


class ApiDocs:
    """Pages about the API. Built on the first request, so that the server starts sooner."""

    def __init__(self, routes: Sequence[ApiRoute], streams: Sequence[StreamRoute]) -> None:
        self._routes = routes
        self._streams = streams

    @property
    def pages(self) -> Mapping[str, Page]:
        return {"/": self.index, "/docs": self.docs, f"{PREFIX}/openapi.json": self.openapi}

    @cached_property
    def _document(self) -> bytes:
        return build_openapi(self._routes, self._streams)

    @cached_property
    def _docs_page(self) -> ApiReply:
        return _html(docs_page(self._document))

    async def index(self) -> ApiReply:
        return _html(_INDEX_PAGE)

    async def docs(self) -> ApiReply:
        return self._docs_page

    async def openapi(self) -> ApiReply:
        return ApiReply(body=self._document)


_CONTENT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8884 }
code, pre { font: 13px/1.45 ui-monospace, monospace }
pre { background: #8881; padding: .8rem; overflow: auto }
summary { cursor: pointer; padding: .2rem 0 }
.method { display: inline-block; width: 4.5rem; font-weight: 600 }
td { padding: .1rem .8rem .1rem 0; vertical-align: top }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } a { color: #8bf } }
"""
_HEAD: Final = f"""<!doctype html><html lang=en><meta charset=utf-8>
<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"""
_INDEX_PAGE: Final = f"""{_HEAD}<title>chatd</title>
<h1>chatd</h1>
<p>This server runs AI agent chats. Use its HTTP API under <code>/api/v1</code>.</p>
<ul>
<li><a href='/docs'>/docs</a>: the API's documentation
<li><a href='/api/v1/openapi.json'>/api/v1/openapi.json</a>: the OpenAPI document
<li><a href='/healthz'>/healthz</a>: whether the process is alive
<li><a href='/readyz'>/readyz</a>: whether it accepts requests
<li><a href='/metrics'>/metrics</a>: metrics for Prometheus
</ul></html>
"""
_DOCS_INTRODUCTION: Final = """
<p>Send <code>Authorization: Bearer &lt;token&gt;</code>. Every error has the shape
<code>ErrorBody</code>. For programs: <a href='/api/v1/openapi.json'>openapi.json</a>.</p>
<h2>Routes</h2>"""


def docs_page(document: bytes) -> str:
    content = msgspec.json.decode(document, type=Json)
    paths = cast("dict[str, dict[str, Json]]", content["paths"])
    components = cast("dict[str, Json]", content["components"])
    routes = (
        _operation_html(method, path, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
    )
    types = (
        f"<details><summary><code>{escape(name)}</code></summary>{_json_html(schema)}</details>"
        for name, schema in sorted(components["schemas"].items())
    )
    parts = (
        f"{_HEAD}<title>chatd: API</title><h1>chatd: API</h1>{_DOCS_INTRODUCTION}",
        *routes,
        "<h2>Types</h2>",
        *types,
        "</html>",
    )
    return "".join(parts)


def _operation_html(method: str, path: str, operation: Json) -> str:
    replies = cast("dict[str, Json]", operation["responses"])
    rows = "".join(
        f"<tr><td>{status}<td>{escape(str(reply.get('description', '')))}"
        for status, reply in replies.items()
    )
    input_parts = {
        name: operation[name] for name in ("parameters", "requestBody") if operation.get(name)
    }
    return (
        f"<details><summary><code><span class=method>{method.upper()}</span>{escape(path)}</code>"
        f" &mdash; {escape(str(operation['summary']))}</summary>"
        f"{_json_html(input_parts) if input_parts else ''}<table>{rows}</table></details>"
    )


def _json_html(value: object) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return f"<pre>{escape(text)}</pre>"


def _html(page: str) -> ApiReply:
    return ApiReply(
        body=page.encode(),
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": _CONTENT_POLICY},
    )
