"""Texts of the OpenAPI document that belong to no route and no type."""

from collections.abc import Mapping
from typing import Final

from chatd.domain.description import CHAT_ID, STREAM_CURSOR

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
    "files": "Upload files and load them.",
    "models": "The models that chats can use.",
    "providers": "The services that the models come from.",
    "mcp-servers": "Servers of the Model Context Protocol, and your connections to them.",
    "templates": "What workspaces are made from.",
    "prompts": "What the user has sent before.",
    "workspaces": "Where the tools of chats act.",
    "settings": "Prompts and other settings of the deployment and of the caller.",
    "skills": "Instructions for certain tasks that you have written, for all your chats.",
    "schedules": "Chats that start by themselves at the times of a cron expression.",
    "workers": "The processes of the server that run chats.",
    "webhooks": "URLs of yours that are called when a turn of your chats ends.",
    "push": "Browsers of yours that are notified when a turn of your chats ends.",
    "auth": "Sign in and out; your sessions, tokens and tickets.",
    "setup": "Whether the server waits for its first sign-in.",
    "users": "The users of the server, for administrators.",
    "groups": "Groups of users, for administrators.",
    "account": "The caller's own account, tokens and keys.",
    "usage-limits": "How much users may spend, and what you have spent.",
    "cost": "What model calls have cost.",
    "demo": "Kill a worker process, to see that the server goes on with its chats.",
    "audit": "What administrators changed.",
    "builds": "Starts, stops and deletions of workspaces.",
}

TAGS_OF_PATHS: Final[Mapping[str, str]] = {
    "directory": "chats",
    "mcp-server-configs": "mcp-servers",
    "model-options": "models",
    "model-overrides": "models",
    "user-keys": "account",
    "git-credentials": "account",
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

HEADERS: Final[Mapping[str, Mapping[str, object]]] = {
    "Location": {
        "description": "The path of the new object.",
        "schema": {"type": "string"},
        "example": f"/api/v1/chats/{CHAT_ID}",
    },
    "Idempotency-Replayed": {
        "description": "`true`: an earlier request with the same key took effect, not this one.",
        "schema": {"type": "string"},
        "example": "true",
    },
    "Idempotency-Key": {
        "description": "Makes the request safe to repeat: the same key and body take effect once,"
        " for 24 hours.",
        "example": "b1946ac9-2f1d-4c4e-8d6a-7f0e1d2c3b4a",
    },
    "Last-Event-ID": {
        "description": "The `id:` of the last event that the client has. Without it: the whole"
        " state, then what changes.",
        "example": STREAM_CURSOR,
    },
    "Retry-After": {
        "description": "Seconds to wait before a retry.",
        "schema": {"type": "integer"},
        "example": 1,
    },
    "WWW-Authenticate": {
        "description": "How to authenticate.",
        "schema": {"type": "string"},
        "example": 'Bearer realm="chatd"',
    },
}
