"""The OpenAPI document, built from the routes and their types."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from typing import Final, cast

import msgspec

from chatd.api.error_codes import (
    BODY_CODES,
    CODES_OF_EVERY_ROUTE,
    DATABASE_CODES,
    DESKTOP_CODES,
    ERROR_CODES,
    TERMINAL_CODES,
)
from chatd.api.errors import ErrorBody
from chatd.api.openapi.components import (
    HEADERS,
    Json,
    SchemaCollection,
    build_example,
    header_parameter,
    path_parameters,
    query_parameters,
)
from chatd.api.openapi.stream_paths import (
    add_event_examples,
    describe_desktop,
    describe_events,
    describe_terminal,
    describe_websocket,
)
from chatd.api.request import KEY_HEADER
from chatd.api.route import PREFIX, ApiRoute, StreamRoute
from chatd.api.routes.workspace.desktop import DESKTOP_STREAM_PATH
from chatd.api.sockets.terminal_socket import TERMINAL_PATH
from chatd.domain.list_page import ListQuery
from chatd.domain.media_types import STORED_TYPES, UPLOAD_TYPES

API_TEXT: Final = """\
Start chats with AI agents, follow them, and continue them from any client. A chat goes on when
the client disconnects, when a replica dies, and when a new version is deployed.

**Sign in.** Send `Authorization: Bearer <token>`. `chatd serve` prints where the first token is.
A browser has the cookie of its session instead, and sends `X-CSRF-Token` with every change.

**Lists** are read by page: `{"items": [...], "has_more": ..., "next_cursor": ...}`, with `limit`
and `cursor`.

**Errors** are `{"code": ..., "message": ...}`, with `validations` for invalid fields. Branch on
`code`; `x-error-codes` in this document lists all of them. Unknown fields and unknown parameters
are refused.

**Repeats.** With an `Idempotency-Key`, a request that creates, sends, edits or answers may be
repeated for 24 hours: it takes effect once and returns the same reply.

**Values.** Names are in snake_case. Ids are UUIDs; ids of messages, of queued messages and of log
lines are integers that grow. Times are `2026-01-31T12:00:00Z` and their names end in `_at`.
Durations end in `_s` or `_ms`, sizes in `_bytes`, amounts of money in `_micros` (millionths of a
US dollar). A field that is null or has its default may be absent. New fields, events and codes
may be added: ignore unknown ones.
"""
BEARER_TEXT: Final = """\
A token of a user. The server's first token is in the file `admin-token` of its data directory,
or in the variable `CHATD_ADMIN_TOKEN`."""

TAGS: Final[Mapping[str, str]] = {
    "chats": "Create, list, change, interrupt and delete chats.",
    "messages": "Read history, send and edit messages.",
    "queue": "Messages that wait while a chat is busy.",
    "events": "Follow chats as they change: server-sent events and the WebSocket.",
    "projects": "Chats in common, with instructions, files and members.",
    "files": "Upload files and load them.",
    "models": "The models that chats can use.",
    "providers": "The services that the models come from.",
    "mcp-servers": "Servers of the Model Context Protocol, and your connections to them.",
    "templates": "What workspaces are made from.",
    "prompts": "What the user has sent before.",
    "workspaces": "Where the tools of chats act.",
    "runners": "Processes that offer workspaces of a machine or a cluster, and their tokens.",
    "settings": "Prompts and other settings of the deployment and of the caller.",
    "skills": "Instructions for certain tasks that you have written, for all your chats.",
    "memory": "Short notes that the models of your chats are told, and those they propose.",
    "schedules": "Chats that start by themselves at the times of a cron expression.",
    "workers": "The processes of the server that run chats.",
    "webhooks": "URLs of yours that are called when a turn of your chats ends.",
    "hooks": "URLs that are asked while a turn waits, for administrators.",
    "ratings": "What users think of answers, for administrators.",
    "public": "What public links show, for readers without an account.",
    "repository-connections": "Git hosts whose issues and pull requests start chats.",
    "slack-connections": "Workspaces of Slack whose threads are chats.",
    "slack-links": "The persons of Slack that you are.",
    "push": "Browsers of yours that are notified when a turn of your chats ends.",
    "auth": "Sign in and out; your sessions, tokens and tickets.",
    "setup": "Whether the server waits for its first sign-in.",
    "users": "The users of the server, for administrators.",
    "groups": "Groups of users, for administrators.",
    "account": "The caller's own account, tokens and keys.",
    "usage-limits": "How much users may spend, and what you have spent.",
    "cost": "What model calls have cost.",
    "diagnosis": "What is wrong with a deployment.",
    "restore": "A deployment that was restored from a backup.",
    "demo": "Kill a worker process, to see that the server goes on with its chats.",
    "audit": "What administrators changed.",
    "builds": "Starts, stops and deletions of workspaces.",
}

TAGS_OF_PATHS: Final[Mapping[str, str]] = {
    "directory": "chats",
    "public-links": "chats",
    "mcp-server-configs": "mcp-servers",
    "model-options": "models",
    "model-overrides": "models",
    "template-configs": "templates",
    "runner-tokens": "runners",
    "user-keys": "account",
    "git-credentials": "account",
    "host-credentials": "account",
    "host-credential-configs": "templates",
}
"""Of paths that have no tag of their own."""

STATUS_TEXTS: Final[Mapping[int, str]] = {
    200: "Done",
    201: "Created",
    202: "Accepted; it takes effect as soon as possible",
    204: "Done; the reply has no body",
    206: "The requested part of the file",
    302: "Go to the address in the header `Location`",
    304: "The client has this content already; the reply has no body",
    400: "The request is not valid",
    401: "The caller is not known",
    403: "The caller may not do this",
    404: "Not found, or not visible to the caller",
    405: "The path has no such method",
    408: "The body did not arrive in time",
    409: "Not possible in the current state",
    413: "The body is too large",
    415: "Content of this type is not supported",
    416: "The requested range is outside the file",
    429: "Too many at once",
    500: "The server failed",
    502: "A model or another outside service failed",
    503: "Not possible at the moment",
}

STREAM_CODES: Final = ("too_many_streams", "going_away")
SHARED_ERRORS: Final[Mapping[str, tuple[str, ...]]] = {
    "Unauthorized": ("unauthorized",),
    "Forbidden": (
        *("forbidden", "missing_scope"),
        *("csrf_token_required", "cross_site_request", "host_not_allowed"),
    ),
    "RateLimited": ("rate_limited",),
    "NotFound": ("not_found",),
    "RequestTimeout": ("request_timeout",),
    "TooLarge": ("too_large",),
    "Internal": ("internal",),
    "Unavailable": DATABASE_CODES,
    "UnavailableOrStopping": (*DATABASE_CODES, "going_away"),
}
_NEEDS: Final[Mapping[str, str]] = {
    "public": "Needs no sign-in.",
    "signed_in": "Every caller may do this, with any token.",
}
_KEY: Final[Json] = {"type": "string", "minLength": 1, "maxLength": 255}
_BINARY: Final[Json] = {"type": "string", "format": "binary"}
_VALIDATION: Final[Json] = {"field": "limit", "detail": "must be at most 200"}


def build_openapi(routes: Iterable[ApiRoute], streams: Iterable[StreamRoute]) -> bytes:
    return msgspec.json.encode(build_document(routes, streams)) + b"\n"


def build_document(routes: Iterable[ApiRoute], streams: Iterable[StreamRoute]) -> Json:
    schemas = SchemaCollection()
    paths: dict[str, Json] = {}
    by_path = {stream.path: stream for stream in streams}
    for route in routes:
        operation = _operation(route, schemas)
        if route.method == "GET" and (stream := by_path.pop(route.path, None)) is not None:
            describe_events(operation, stream, schemas)
        paths.setdefault(f"{PREFIX}{route.path}", {})[route.method.lower()] = operation
    for _, stream in sorted(by_path.items()):
        paths[f"{PREFIX}{stream.path}"] = {"get": _stream(stream, schemas)}
    paths[f"{PREFIX}/ws"] = {"get": describe_websocket(schemas) | _websocket_replies(schemas)}
    terminal = describe_terminal(schemas) | _websocket_replies(schemas, *TERMINAL_CODES)
    paths[f"{PREFIX}{TERMINAL_PATH}"] = {"get": terminal}
    desktop = describe_desktop() | _websocket_replies(schemas, *DESKTOP_CODES)
    paths[f"{PREFIX}{DESKTOP_STREAM_PATH}"] = {"get": desktop}
    responses = _shared_errors(schemas)
    components = schemas.components()
    _add_examples(paths, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "chatd",
            "version": metadata.version("chatd"),
            "summary": "Run AI agent chats that cannot be lost",
            "description": API_TEXT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This server"}],
        "security": [{"bearer": []}],
        "tags": _tags(paths),
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": responses,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": BEARER_TEXT}
            },
        },
        "x-error-codes": {
            code: {"status": error.status, "meaning": error.meaning, "remedy": error.remedy}
            for code, error in ERROR_CODES.items()
        },
    }


def _tags(paths: dict[str, Json]) -> list[Json]:
    operations = (one for methods in paths.values() for one in methods.values())
    used = {tag for one in operations for tag in cast("dict[str, list[str]]", one)["tags"]}
    return [{"name": name, "description": text} for name, text in TAGS.items() if name in used]


def list_codes(route: ApiRoute | StreamRoute) -> tuple[str, ...]:
    """The error codes that the operation may reply."""
    codes = [*CODES_OF_EVERY_ROUTE, *DATABASE_CODES, *route.errors]
    if "{" in route.path:
        codes.append("not_found")
    if route.query is not None and issubclass(route.query, ListQuery):
        codes.append("invalid_cursor")
    if isinstance(route, StreamRoute):
        return (*codes, *STREAM_CODES)
    if route.body_spec is not None or route.raw_body:
        codes += BODY_CODES
    if route.keyed:
        codes.append("idempotency_key_reused")
    if route.starts_work:
        codes.append("going_away")
    return tuple(codes)


def _operation(route: ApiRoute, schemas: SchemaCollection) -> Json:
    parameters = [*path_parameters(route.path), *query_parameters(route.query, schemas)]
    if route.keyed:
        parameters.append(header_parameter(KEY_HEADER.title(), _KEY))
    operation: Json = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "description": _text(route),
        "tags": [_tag(route.path)],
        "parameters": parameters,
        "responses": _replies(route, schemas) | _errors(list_codes(route), schemas),
    }
    if route.body_spec is not None:
        body: Json = {"schema": schemas.add(route.body_spec.kind)}
        operation["requestBody"] = {
            "required": not route.body_optional,
            "description": f"JSON of at most {route.body_spec.max_bytes // 1024} KiB",
            "content": {"application/json": body},
        }
    elif route.raw_body:
        operation["requestBody"] = {
            "required": True,
            "description": "The bytes of the file; `Content-Type` names their type",
            "content": {kind: {"schema": _BINARY} for kind in route.body_types or UPLOAD_TYPES},
        }
    if route.authenticate is not None or route.permission == "public":
        operation["security"] = []
    return operation


def _text(route: ApiRoute | StreamRoute) -> str:
    needed = _NEEDS.get(route.permission, f"Needs the permission `{route.permission}`.")
    return f"{route.description} {needed}" if route.description else needed


def _tag(path: str) -> str:
    pieces = path.split("/")
    if len(pieces) > 3 and pieces[3] in TAGS:
        return pieces[3]
    return TAGS_OF_PATHS.get(pieces[1], pieces[1])


def _stream(stream: StreamRoute, schemas: SchemaCollection) -> Json:
    parameters = [*path_parameters(stream.path), *query_parameters(stream.query, schemas)]
    operation: Json = {
        "operationId": stream.name,
        "summary": stream.summary,
        "description": _text(stream),
        "tags": ["events"],
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "Events, until the client disconnects or an `end` event",
                "content": {},
            },
            **_errors(list_codes(stream), schemas),
        },
    }
    describe_events(operation, stream, schemas)
    return operation


def _websocket_replies(schemas: SchemaCollection, *more_codes: str) -> Json:
    codes = (*CODES_OF_EVERY_ROUTE, *STREAM_CODES, "not_found", *more_codes)
    switched: Json = {"101": {"description": "Frames follow, in both directions"}}
    return {"responses": switched | _errors(codes, schemas)}


def _replies(route: ApiRoute, schemas: SchemaCollection) -> Json:
    return {
        str(status): _reply(
            status, kind, schemas, keyed=route.keyed, file_types=route.reply_types or STORED_TYPES
        )
        for status, kind in route.replies.items()
    }


def _reply(
    status: int,
    kind: object,
    schemas: SchemaCollection,
    *,
    keyed: bool,
    file_types: Iterable[str],
) -> Json:
    response: Json = {"description": STATUS_TEXTS[status]}
    if kind is bytes:
        response["content"] = {kind: {"schema": _BINARY} for kind in file_types}
    elif kind is not None:
        response["content"] = {"application/json": {"schema": schemas.add(kind)}}
    names = ["Location"] if status == 201 else []
    if keyed:
        names.append("Idempotency-Replayed")
    if names:
        response["headers"] = {name: HEADERS[name] for name in names}
    return response


def _errors(codes: Iterable[str], schemas: SchemaCollection) -> Json:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(ERROR_CODES[code].status, []).append(code)
    return {
        str(status): _shared(by_status[status]) or _error(status, by_status[status], schemas)
        for status in sorted(by_status)
    }


def _shared(codes: list[str]) -> Json | None:
    """A reference to the reply, if many operations have it."""
    names = (name for name, shared in SHARED_ERRORS.items() if set(codes) == set(shared))
    name = next(names, None)
    return None if name is None else {"$ref": f"#/components/responses/{name}"}


def _shared_errors(schemas: SchemaCollection) -> Json:
    return {
        name: _error(ERROR_CODES[codes[0]].status, list(codes), schemas)
        for name, codes in SHARED_ERRORS.items()
    }


def _error(status: int, codes: list[str], schemas: SchemaCollection) -> Json:
    known = {code: ERROR_CODES[code] for code in codes}
    lines = [f"- `{code}`: {error.meaning} {error.remedy}" for code, error in known.items()]
    examples = {
        code: {"summary": error.meaning, "description": error.remedy, "value": _error_body(code)}
        for code, error in known.items()
    }
    response: Json = {
        "description": "\n".join([f"{STATUS_TEXTS[status]}", "", *lines]),
        "content": {"application/json": {"schema": schemas.add(ErrorBody), "examples": examples}},
    }
    if status in (401, 503) or codes == ["rate_limited"]:
        name = "WWW-Authenticate" if status == 401 else "Retry-After"
        response["headers"] = {name: HEADERS[name]}
    return response


def _error_body(code: str) -> Json:
    body: Json = {"code": code, "message": ERROR_CODES[code].meaning}
    return body | {"validations": [_VALIDATION]} if code == "invalid_input" else body


def _add_examples(paths: dict[str, Json], components: dict[str, Json]) -> None:
    """Give every body and reply an example."""
    for methods in paths.values():
        for operation in cast("dict[str, Json]", methods).values():
            add_event_examples(operation, components)
            holders = [*cast("dict[str, Json]", operation["responses"]).values()]
            if "requestBody" in operation:
                holders.append(cast("Json", operation["requestBody"]))
            for holder in holders:
                content = cast("dict[str, Json]", holder.get("content", {}))
                media = content.get("application/json")
                if media is None or "examples" in media:
                    continue
                with suppress(ValueError):  # a test finds what has no example
                    media["example"] = build_example(cast("Json", media["schema"]), components)
