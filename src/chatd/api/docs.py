"""The API described for people: one page, made of the description for machines, that fetches
nothing from anywhere."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from typing import Final, cast

import msgspec

from chatd.api.call import PREFIX, Page, Reply, Route, StreamRoute
from chatd.api.openapi import describe

Json = dict[str, object]

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"
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
_INTRODUCTION: Final = """
<p>Send <code>Authorization: Bearer &lt;token&gt;</code>. Every error has the shape
<code>ErrorBody</code>. For machines: <a href='/api/v1/openapi.json'>openapi.json</a>.</p>
<h2>Routes</h2>"""

_SIGNPOST: Final = f"""<!doctype html><html lang=en><meta charset=utf-8><title>chatd</title>
<meta name=viewport content='width=device-width'><style>{_STYLE}</style>
<h1>chatd</h1>
<p>This server runs AI agent chats. It is used by its HTTP API, under <code>/api/v1</code>.</p>
<ul>
<li><a href='/docs'>/docs</a>: the API, described for people
<li><a href='/api/v1/openapi.json'>/api/v1/openapi.json</a>: the same for machines
<li><a href='/healthz'>/healthz</a>: is the server alive
<li><a href='/readyz'>/readyz</a>: does it take requests
<li><a href='/metrics'>/metrics</a>: what it has counted, for Prometheus
</ul></html>
"""


class Docs:
    """Pages about the API. Built on the first request, so that the server starts sooner."""

    def __init__(self, routes: Sequence[Route], streams: Sequence[StreamRoute]) -> None:
        self._routes = routes
        self._streams = streams

    @property
    def pages(self) -> Mapping[str, Page]:
        return {"/": self.index, "/docs": self.docs, f"{PREFIX}/openapi.json": self.openapi}

    @cached_property
    def _document(self) -> bytes:
        return describe(self._routes, self._streams)

    @cached_property
    def _docs(self) -> Reply:
        return docs_page(self._document)

    async def index(self) -> Reply:
        return signpost()

    async def docs(self) -> Reply:
        return self._docs

    async def openapi(self) -> Reply:
        return Reply(body=self._document)


def docs_page(description: bytes) -> Reply:
    document = msgspec.json.decode(description, type=Json)
    paths = cast("dict[str, dict[str, Json]]", document["paths"])
    components = cast("dict[str, Json]", document["components"])
    page = "".join(
        (
            "<!doctype html><html lang=en><meta charset=utf-8><title>chatd: API</title>",
            "<meta name=viewport content='width=device-width'>",
            f"<style>{_STYLE}</style><h1>chatd: API</h1>",
            _INTRODUCTION,
            *(
                _operation(method, path, operation)
                for path, methods in paths.items()
                for method, operation in methods.items()
            ),
            "<h2>Types</h2>",
            *(_shape(name, schema) for name, schema in sorted(components["schemas"].items())),
            "</html>",
        )
    )
    return Reply(
        body=page.encode(),
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": _POLICY},
    )


def signpost() -> Reply:
    """What is found by whoever opens the address and knows no more."""
    return Reply(
        body=_SIGNPOST.encode(),
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": _POLICY},
    )


def _operation(method: str, path: str, operation: Json) -> str:
    answers = cast("dict[str, Json]", operation["responses"])
    rows = "".join(
        f"<tr><td>{status}<td>{escape(str(answer['description']))}"
        for status, answer in answers.items()
    )
    described = {
        name: operation[name] for name in ("parameters", "requestBody") if operation.get(name)
    }
    return (
        f"<details><summary><code><span class=method>{method.upper()}</span>{escape(path)}</code>"
        f" &mdash; {escape(str(operation['summary']))}</summary>"
        f"{_json(described) if described else ''}<table>{rows}</table></details>"
    )


def _shape(name: str, schema: object) -> str:
    return f"<details><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>"


def _json(value: object) -> str:
    return (
        f"<pre>{escape(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())}</pre>"
    )
