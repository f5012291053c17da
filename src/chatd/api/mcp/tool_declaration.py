"""The declaration of a tool: its schemas and its reader follow from the types of its arguments and
its result."""

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from chatd.api.accounts.request_limits import RouteGroup
from chatd.api.mcp import texts
from chatd.api.mcp.hints import HINTS
from chatd.api.mcp.messages import Json
from chatd.api.mcp.toolset import ListedTool, ToolCall
from chatd.domain.decode_errors import describe_decode_error
from chatd.domain.errors import InvalidInput

A = TypeVar("A", bound=Struct)


class ChatTool(Struct, Generic[A], frozen=True, kw_only=True):
    """One tool. `endpoint` is the route that it calls, whose permission it needs."""

    name: str
    endpoint: str
    arguments: type[A]
    result: type[Struct]
    run: Callable[[ToolCall, A], Awaitable[Struct]]
    group: RouteGroup = "requests"
    streams: bool = False


def list_tool(tool: ChatTool[Any]) -> ListedTool:
    return ListedTool(
        name=tool.name,
        title=HINTS[tool.name].title,
        description=texts.DESCRIPTIONS[tool.name],
        input_schema=_schema(tool.arguments),
        output_schema=_schema(tool.result),
        annotations=HINTS[tool.name],
    )


@cache
def _schema(kind: type[Struct]) -> Json:
    """An object at the top, as clients demand, and the types that it uses below. Made once in a
    process, which may have several servers (tests have hundreds)."""
    _, found = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    components = cast("dict[str, Json]", found)
    top = {name: value for name, value in components.pop(kind.__name__).items() if name != "title"}
    return {**top, "$defs": components} if components else top


def read_arguments(kind: type[A], given: Json) -> A:
    """Raises InvalidInput."""
    try:
        return msgspec.json.decode(msgspec.json.encode(given), type=kind)
    except msgspec.ValidationError as error:
        field, text = describe_decode_error(error, kind)
        raise InvalidInput(field or "arguments", text) from None
    except RecursionError:
        raise InvalidInput("arguments", "are nested too deeply") from None
