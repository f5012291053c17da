"""The API's description: the OpenAPI document, built from the routes and their types, and HTML
pages made from it, which load nothing from elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from importlib import metadata
from typing import Final, cast

import msgspec
from msgspec import Struct

from chatd.api.errors import ErrorBody
from chatd.api.request import KEY_HEADER, ApiReply
from chatd.api.route import PREFIX, ApiRoute, Page, StreamRoute
from chatd.domain.file.media_types import STORED_TYPES, UPLOAD_TYPES

Json = dict[str, object]

_REF: Final = "#/components/schemas/{name}"
_STATUS_TEXTS: Final[Mapping[int, str]] = {
    200: "Done",
    201: "Created",
    202: "Accepted; it takes effect as soon as possible",
    204: "Done; the reply has no body",
    206: "The requested part of the file",
    304: "The client has this content already; the reply has no body",
    400: "Invalid request; `validations` names the fields",
    401: "Missing or invalid token",
    403: "Not allowed",
    404: "Not found, or not visible to the caller",
    408: "The body did not arrive in time",
    409: "Not possible in the current state",
    413: "The body is too large",
    415: "Files of this type are not supported",
    416: "The requested range is outside the file",
    429: "Too many at once",
    502: "A model or another outside service failed",
    503: "The database is not reachable, or the server is shutting down",
}
_COMMON_ERRORS: Final = (400, 401, 503)
_UUIDS: Final = frozenset(
    {"chat_id", "model_id", "template_id", "workspace_id", "build_id", "file_id"}
)
_UUID: Final[Json] = {"type": "string", "format": "uuid"}
_NUMBER: Final[Json] = {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}
_KEY: Final[Json] = {"type": "string", "minLength": 1, "maxLength": 255}
_BINARY: Final[Json] = {"type": "string", "format": "binary"}
_EVENT_STREAM: Final[Json] = {}
"""A schema here would describe the whole text of the stream; `x-events` describes one event."""


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


def build_openapi(routes: Iterable[ApiRoute], streams: Iterable[StreamRoute]) -> bytes:
    schemas = _Schemas()
    paths: dict[str, Json] = {}
    by_path = {stream.path: stream for stream in streams}
    for route in routes:
        operation = _operation(route, schemas)
        if route.method == "GET" and (stream := by_path.pop(route.path, None)) is not None:
            _add_stream(operation, stream)
        paths.setdefault(f"{PREFIX}{route.path}", {})[route.method.lower()] = operation
    for _, stream in sorted(by_path.items()):
        paths[f"{PREFIX}{stream.path}"] = {"get": _stream(stream, schemas)}
    paths[f"{PREFIX}/ws"] = {"get": _websocket(schemas)}
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "chatd", "version": metadata.version("chatd")},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document) + b"\n"


class _Schemas:
    """Collects the types in use. `components` generates their schemas together."""

    def __init__(self) -> None:
        self._types: list[object] = []

    def add(self, kind: object) -> Json:
        """The schema of the type, with references to components."""
        self._types.append(kind)
        (schema,), _ = msgspec.json.schema_components((kind,), ref_template=_REF)
        return schema

    def components(self) -> Json:
        _, found = msgspec.json.schema_components(self._types, ref_template=_REF)
        return cast("Json", found)


def _operation(route: ApiRoute, schemas: _Schemas) -> Json:
    pieces = route.path.split("/")
    tag = pieces[3] if len(pieces) > 3 and pieces[3] in ("messages", "queue") else pieces[1]
    parameters = [*_path_parameters(route.path), *_query_parameters(route.query, schemas)]
    if route.keyed:
        parameters.append(_parameter("header", KEY_HEADER.title(), _KEY))
    operation: Json = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "tags": [tag],
        "parameters": parameters,
        "responses": _responses(route, schemas),
    }
    if route.body_spec is not None:
        body = _json_content(schemas.add(route.body_spec.kind))
        operation["requestBody"] = {"required": True, "content": body}
    elif route.raw_body:
        content = {kind: {"schema": _BINARY} for kind in UPLOAD_TYPES}
        operation["requestBody"] = {"required": True, "content": content}
    if route.authenticate is not None:
        operation["security"] = []
    return operation


def _responses(route: ApiRoute, schemas: _Schemas) -> Json:
    replies: Json = {
        str(status): _file_response(status)
        if kind is bytes
        else _response(status, None if kind is None else schemas.add(kind))
        for status, kind in route.replies.items()
    }
    errors = {*_COMMON_ERRORS, *route.error_statuses}
    if "{" in route.path:
        errors.add(404)
    if route.body_spec is not None:
        errors |= {408, 413}
    return replies | _error_responses(sorted(errors), schemas)


def _error_responses(statuses: Iterable[int], schemas: _Schemas) -> Json:
    error = schemas.add(ErrorBody)
    return {str(status): _response(status, error) for status in statuses}


def _response(status: int, schema: Json | None) -> Json:
    response: Json = {"description": _STATUS_TEXTS[status]}
    if schema is not None:
        response["content"] = _json_content(schema)
    return response


def _file_response(status: int) -> Json:
    content = {kind: {"schema": _BINARY} for kind in STORED_TYPES}
    return {"description": _STATUS_TEXTS[status], "content": content}


def _json_content(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _path_parameters(path: str) -> list[Json]:
    names = [piece[1:-1] for piece in path.split("/") if piece.startswith("{")]
    return [_parameter("path", name, _UUID if name in _UUIDS else _NUMBER) for name in names]


def _query_parameters(kind: type[Struct] | None, schemas: _Schemas) -> list[Json]:
    fields = () if kind is None else msgspec.structs.fields(kind)
    return [_parameter("query", field.encode_name, schemas.add(field.type)) for field in fields]


def _parameter(where: str, name: str, schema: Json) -> Json:
    return {"in": where, "name": name, "required": where == "path", "schema": schema}


_LAST_EVENT_ID: Final = _parameter("header", "Last-Event-ID", _NUMBER)


def _add_stream(operation: Json, stream: StreamRoute) -> None:
    """Describe that the operation can also be requested as a stream."""
    replies = cast("dict[str, dict[str, Json]]", operation["responses"])
    replies["200"]["content"]["text/event-stream"] = _EVENT_STREAM
    if stream.resumable:
        cast("list[Json]", operation["parameters"]).append(_LAST_EVENT_ID)


def _stream(stream: StreamRoute, schemas: _Schemas) -> Json:
    parameters = [*_path_parameters(stream.path), *_query_parameters(stream.query, schemas)]
    return {
        "operationId": stream.name,
        "summary": stream.summary,
        "tags": ["events"],
        "parameters": [*parameters, _LAST_EVENT_ID] if stream.resumable else parameters,
        "responses": {
            "200": {
                "description": "Events, until the client disconnects or an `end` event",
                "content": {"text/event-stream": _EVENT_STREAM},
                "x-events": schemas.add(stream.events),
            },
            **_error_responses((400, 401, 404, 409, 429, 503), schemas),
        },
    }


def _websocket(schemas: _Schemas) -> Json:
    return {
        "operationId": "socket",
        "summary": "Stream the events of several chats and the chat list over one WebSocket",
        "tags": ["events"],
        "parameters": [],
        "responses": {
            "101": {"description": "Arrays of events follow"},
            **_error_responses((400, 401, 404), schemas),
        },
    }


# The pages

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
        f"<tr><td>{status}<td>{escape(str(reply['description']))}"
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
