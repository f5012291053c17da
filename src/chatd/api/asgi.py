"""The wire between the server and the application, as far as we speak it by hand."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from chatd.api.call import Reply

Scope = MutableMapping[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def header(scope: Scope, name: bytes) -> str | None:
    """The first of that name; names are in lower case."""
    found = next((value for key, value in scope["headers"] if key == name), None)
    return None if found is None else bytes(found).decode("latin-1")


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


def head(status: int, headers: Mapping[str, str], *, prefix: str = "") -> Message:
    return {
        "type": f"{prefix}http.response.start",
        "status": status,
        "headers": encoded(headers),
    }


def body(content: bytes, *, more: bool = False, prefix: str = "") -> Message:
    return {"type": f"{prefix}http.response.body", "body": content, "more_body": more}


async def respond(send: Send, answer: Reply, *, prefix: str = "") -> None:
    """Outside of the router. With the prefix `websocket.` in place of a socket."""
    headers = {
        "content-type": answer.media_type,
        "content-length": str(len(answer.body)),
        **answer.headers,
    }
    await send(head(answer.status, headers, prefix=prefix))
    await send(body(answer.body, prefix=prefix))
