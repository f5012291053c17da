"""The API described for machines, made of the routes themselves and of their types."""

from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Final, cast

import msgspec
from msgspec import Struct

from chatd.api.call import KEY_HEADER, PREFIX, Route, StreamRoute
from chatd.api.errors import ErrorBody

Json = dict[str, object]

_REF: Final = "#/components/schemas/{name}"
_MEANING: Final[Mapping[int, str]] = {
    200: "Done",
    201: "Created",
    202: "Accepted; it happens as soon as it can",
    204: "Done; there is nothing to say",
    400: "The request is wrong; `validations` say where",
    401: "No token, or one that is not valid",
    404: "There is no such thing, or it is somebody else's",
    408: "The body did not arrive in time",
    409: "It is in a state in which this cannot be done",
    413: "The body is too large",
    429: "Too much at once",
    503: "The database cannot be reached just now",
}
_USUAL: Final = (400, 401, 503)


def describe(routes: Iterable[Route], streams: Iterable[StreamRoute]) -> bytes:
    shapes = _Shapes()
    paths: dict[str, Json] = {}
    by_path = {stream.path: stream for stream in streams}
    for route in routes:
        operation = _operation(route, shapes)
        if route.method == "GET" and (stream := by_path.pop(route.path, None)) is not None:
            _add_stream(operation, stream)
        paths.setdefault(f"{PREFIX}{route.path}", {})[route.method.lower()] = operation
    for _, stream in sorted(by_path.items()):
        paths[f"{PREFIX}{stream.path}"] = {"get": _stream(stream, shapes)}
    paths[f"{PREFIX}/ws"] = {"get": _socket(shapes)}
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "chatd", "version": metadata.version("chatd")},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": shapes.collected(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


class _Shapes:
    """Collects the types that are named; what they look like is made in one go."""

    def __init__(self) -> None:
        self._kinds: list[object] = []

    def of(self, kind: object) -> Json:
        self._kinds.append(kind)
        (schema,), _ = msgspec.json.schema_components((kind,), ref_template=_REF)
        return schema

    def collected(self) -> Json:
        _, found = msgspec.json.schema_components(self._kinds, ref_template=_REF)
        return cast("Json", found)


def _operation(route: Route, shapes: _Shapes) -> Json:
    described: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [_tag(route.path)],
        "parameters": _parameters(route, shapes),
        "responses": _responses(route, shapes),
    }
    if route.takes is not None:
        described["requestBody"] = {"required": True, "content": _json(shapes.of(route.takes.kind))}
    return described


def _tag(path: str) -> str:
    pieces = path.split("/")
    return pieces[3] if len(pieces) > 3 and pieces[3] in ("messages", "queue") else pieces[1]


def _responses(route: Route, shapes: _Shapes) -> Json:
    answers: Json = {
        str(status): _answer(status, None if kind is None else shapes.of(kind))
        for status, kind in route.gives.items()
    }
    refusals = {*_USUAL, *route.refuses}
    if "{" in route.path:
        refusals.add(404)
    if route.takes is not None:
        refusals |= {408, 413}
    error = shapes.of(ErrorBody)
    return answers | {str(status): _answer(status, error) for status in sorted(refusals)}


def _answer(status: int, schema: Json | None) -> Json:
    answer: Json = {"description": _MEANING[status]}
    if schema is not None:
        answer["content"] = _json(schema)
    return answer


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _parameters(route: Route, shapes: _Shapes) -> list[Json]:
    found = [*_in_path(route.path), *_query(route.query, shapes)]
    if route.keyed:
        found.append(_parameter("header", KEY_HEADER.title(), _KEY))
    return found


# A schema would be of all the text; what each event holds is told beside it.
_EVENTS: Final[Json] = {}
_UUIDS: Final = frozenset({"chat_id", "model_id", "template_id", "workspace_id", "build_id"})
_ID: Final[Json] = {"type": "string", "format": "uuid"}
_NUMBER: Final[Json] = {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}
_KEY: Final[Json] = {"type": "string", "minLength": 1, "maxLength": 255}


def _in_path(path: str) -> list[Json]:
    names = [piece[1:-1] for piece in path.split("/") if piece.startswith("{")]
    return [_parameter("path", name, _ID if name in _UUIDS else _NUMBER) for name in names]


def _query(kind: type[Struct] | None, shapes: _Shapes) -> list[Json]:
    """A query is a type of its own, but is described parameter by parameter."""
    return [
        _parameter("query", field.encode_name, shapes.of(field.type))
        for field in (() if kind is None else msgspec.structs.fields(kind))
    ]


def _parameter(where: str, name: str, schema: Json) -> Json:
    return {"in": where, "name": name, "required": where == "path", "schema": schema}


def _add_stream(operation: Json, stream: StreamRoute) -> None:
    """The operation can also be requested as a stream."""
    answers = cast("dict[str, dict[str, Json]]", operation["responses"])
    answers["200"]["content"]["text/event-stream"] = _EVENTS
    if stream.resumable:
        cast("list[Json]", operation["parameters"]).append(_LAST_EVENT_ID)


def _stream(stream: StreamRoute, shapes: _Shapes) -> Json:
    error = shapes.of(ErrorBody)
    last = [_LAST_EVENT_ID] if stream.resumable else []
    return {
        "operationId": stream.name,
        "summary": stream.summary,
        "tags": ["events"],
        "parameters": [*_in_path(stream.path), *_query(stream.query, shapes), *last],
        "responses": {
            "200": {
                "description": "Events, for as long as the client listens",
                "content": {"text/event-stream": _EVENTS},
                "x-events": shapes.of(stream.events),
            },
            **{str(status): _answer(status, error) for status in (400, 401, 404, 409, 429, 503)},
        },
    }


def _socket(shapes: _Shapes) -> Json:
    error = shapes.of(ErrorBody)
    return {
        "operationId": "socket",
        "summary": "One WebSocket for several of both",
        "tags": ["events"],
        "parameters": [],
        "responses": {
            "101": {"description": "Arrays of events follow"},
            **{str(status): _answer(status, error) for status in (400, 401, 404)},
        },
    }


_LAST_EVENT_ID: Final = _parameter("header", "Last-Event-ID", _NUMBER)
