"""The event streams and the WebSocket in the OpenAPI document.

OpenAPI 3.1 does not say what the schema of an event stream is about. Programs that read one take
it for the schema of one event, so it is that here. `x-events` has a schema and an example of each
event by its name, and the operation's description has the same as a table for people.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, cast

import msgspec
from msgspec import Struct
from msgspec.inspect import StructType, UnionType, type_info

from chatd.api.openapi.components import (
    Json,
    SchemaCollection,
    build_example,
    header_parameter,
    path_parameters,
    query_parameters,
)
from chatd.api.route import StreamRoute
from chatd.api.routes.workspace.desktop import DESKTOP_STREAM_PATH
from chatd.api.schemas.messages import StreamEnded
from chatd.api.sockets.terminal_socket import (
    TERMINAL_PATH,
    TerminalClientFrame,
    TerminalQuery,
    TerminalServerFrame,
)
from chatd.api.sockets.websocket import ClientFrame, ServerFrame
from chatd.domain.chat_views.events import Event
from chatd.domain.chat_views.public_chat import (
    ChatListEvent,
    ChatListReady,
    ChatListRemoved,
    ProjectsChanged,
)
from chatd.domain.deployment.spend import SpendWarningEvent

EVENT_STREAM: Final = "text/event-stream"
UNNAMED_EVENT: Final = "message"
"""What browsers call an event without a name."""
_SOCKET_TEXT: Final = """\
One WebSocket for any number of chats and for the chat list. The client sends one JSON object
per text frame. The server sends arrays of objects: frames about subscriptions, and the events
of the topics. The events of a chat have its `chat_id`."""


def describe_events(operation: Json, stream: StreamRoute, schemas: SchemaCollection) -> None:
    """Add the events of a stream to its operation."""
    events = _by_name(stream.events) | dict(stream.named_events) | {"end": StreamEnded}
    described = _described(events, schemas)
    replies = cast("dict[str, dict[str, Json]]", operation["responses"])
    replies["200"]["content"][EVENT_STREAM] = {
        "schema": _one_event(described),
        "x-events": described,
    }
    if stream.resumable:
        cast("list[Json]", operation["parameters"]).append(
            header_parameter("Last-Event-ID", {"type": "string"})
        )
    operation["description"] = f"{operation['description']}\n\n{_table('event', described)}"


def _one_event(events: Mapping[str, Json]) -> Json:
    """The fields of an event on the wire; its data is JSON."""
    return {
        "description": "One server-sent event of the stream; see `x-events`.",
        "oneOf": [
            {
                "type": "object",
                "properties": {
                    "event": {"const": name},
                    "id": {"type": "string"},
                    "data": {
                        "type": "string",
                        "contentMediaType": "application/json",
                        "contentSchema": event["schema"],
                    },
                },
                "required": ["event", "data"],
            }
            for name, event in events.items()
        ],
    }


_TERMINAL_TEXT: Final = (
    "Only the owner of the chat may. Binary frames have what the shell prints; text frames are JSON"
    " objects. A connection with the id of a terminal that is there shows its last output again and"
    " takes it over from another connection, which is closed with `taken_over`. A closed connection"
    " leaves the shell running for four hours."
)


def describe_websocket(schemas: SchemaCollection) -> Json:
    """The operation without its replies."""
    sent = _described(_by_name(ClientFrame), schemas)
    received = _described(_by_name(ServerFrame), schemas)
    events = _described(
        _by_name(
            Event
            | ChatListReady
            | ChatListEvent
            | ChatListRemoved
            | ProjectsChanged
            | SpendWarningEvent
        ),
        schemas,
    )
    tables = "\n\n".join(
        f"{title}\n\n{_table('type', frames)}"
        for title, frames in (
            ("The client sends:", sent),
            ("The server sends about subscriptions:", received),
            ("The server sends about topics:", events),
        )
    )
    return {
        "operationId": "socket",
        "summary": "Stream the events of several chats and the chat list over one WebSocket",
        "description": f"{_SOCKET_TEXT}\n\n{tables}",
        "tags": ["events"],
        "parameters": [],
        "x-websocket": {"client": sent, "server": received, "events": events},
    }


def describe_terminal(schemas: SchemaCollection) -> Json:
    """The operation without its replies."""
    sent = _described(_by_name(TerminalClientFrame), schemas)
    received = _described(_by_name(TerminalServerFrame), schemas)
    tables = "\n\n".join(
        f"{title}\n\n{_table('type', frames)}"
        for title, frames in (("The client sends:", sent), ("The server sends:", received))
    )
    return {
        "operationId": "terminal",
        "summary": "Open a terminal in a chat's workspace over a WebSocket",
        "description": f"{_TERMINAL_TEXT}\n\n{tables}",
        "tags": ["workspaces"],
        "parameters": [
            *path_parameters(TERMINAL_PATH),
            *query_parameters(TerminalQuery, schemas),
        ],
        "x-websocket": {"client": sent, "server": received},
    }


_DESKTOP_TEXT: Final = (
    "Only the owner of the chat may. Binary frames carry RFB 3.8, the protocol of VNC, in both"
    " directions, without a password. Mouse, keyboard and clipboard are ignored unless"
    " the caller has taken over with `POST /chats/{chat_id}/desktop/take`. An RFB message that"
    " chatd does not know ends the stream; so does the end of the desktop, with `desktop_ended`."
)


def describe_desktop() -> Json:
    """The operation without its replies."""
    return {
        "operationId": "watchDesktop",
        "summary": "Watch the desktop of a chat's workspace over a WebSocket",
        "description": _DESKTOP_TEXT,
        "tags": ["workspaces"],
        "parameters": [*path_parameters(DESKTOP_STREAM_PATH)],
        "x-websocket": {"client": {}, "server": {}},
    }


def _by_name(union: object) -> dict[str, type[Struct]]:
    """The types of a union by their tags."""
    info = type_info(union)
    members = info.types if isinstance(info, UnionType) else (info,)
    structs = [member for member in members if isinstance(member, StructType)]
    return {str(struct.tag or UNNAMED_EVENT): struct.cls for struct in structs}


def _described(events: Mapping[str, type[Struct]], schemas: SchemaCollection) -> dict[str, Json]:
    return {
        name: {
            "description": " ".join((kind.__doc__ or "").split()),
            "schema": schemas.add(kind),
        }
        for name, kind in events.items()
    }


def add_event_examples(operation: Json, components: dict[str, Json]) -> None:
    """Give the events and frames of the operation their examples."""
    replies = cast("dict[str, dict[str, dict[str, Json]]]", operation["responses"])
    media = replies.get("200", {}).get("content", {}).get(EVENT_STREAM)
    groups = [*cast("dict[str, dict[str, Json]]", operation.get("x-websocket", {})).values()]
    if media is not None:
        groups.append(cast("dict[str, Json]", media["x-events"]))
    for events in groups:
        for event in events.values():
            with suppress(ValueError):  # a test finds what has no example
                event["example"] = build_example(cast("Json", event["schema"]), components)
    if media is not None:
        media["example"] = _event_example(*next(iter(groups[-1].items())))


def _event_example(name: str, event: Json) -> Json:
    return {"event": name, "data": msgspec.json.encode(event.get("example")).decode()}


def _table(title: str, rows: Mapping[str, Json]) -> str:
    lines = [f"| {title} | what it says |", "|---|---|"]
    return "\n".join([*lines, *_rows(rows.items())])


def _rows(items: Iterable[tuple[str, Json]]) -> Iterable[str]:
    return (f"| `{name}` | {event['description']} |" for name, event in items)
