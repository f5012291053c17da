"""Tools of OpenAI's APIs: function tools with their names, strict schemas and call ids, and the
tools of the Responses API, web search and the computer.
"""

import hashlib
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ModelRequest, ToolCallDone, ToolResultDone
from chatd.domain.text import Json, decode_lenient, replace_json_surrogates
from chatd.providers.openai.responses_wire import Item
from chatd.providers.sse import decode_event
from chatd.providers.tool_schema import (
    MAX_KEPT_SCHEMAS,
    Schema,
    ToolNames,
    encode_schema,
    is_list,
    is_object,
    sort_by_name,
)

MAX_FUNCTION_NAME_CHARS: Final = 64
OUTPUT_SCHEMA_NAME: Final = "answer"
"""The name of the schema of an answer; the API requires one."""
MAX_CALL_ID_CHARS: Final = 40
"""The limit of Chat Completions. Responses takes 64."""


class FunctionTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Responses takes a missing `strict` as true, so requests to it always set `strict`."""

    name: str
    description: str = ""
    parameters: Raw
    strict: bool | None = None


def build_tool_names(request: ModelRequest, reserved: Collection[str] = ()) -> ToolNames:
    return ToolNames.of(
        tuple(tool.name for tool in request.tools),
        reserved=tuple(reserved),
        max_chars=MAX_FUNCTION_NAME_CHARS,
    )


def build_functions(
    request: ModelRequest, names: ToolNames, *, strict: bool | None
) -> list[FunctionTool]:
    """`strict` applies where a schema allows it; None omits it for servers that do not know it."""
    found: list[FunctionTool] = []
    for tool in sort_by_name(request.tools):
        schema = encode_schema(tool.input_schema)
        found.append(
            FunctionTool(
                name=names.to_wire(tool.name),
                description=tool.description,
                parameters=schema,
                strict=None if strict is None else strict and _is_strict(bytes(schema)),
            )
        )
    return found


@lru_cache(MAX_KEPT_SCHEMAS)
def _is_strict(schema: bytes) -> bool:
    return is_strict(msgspec.json.decode(schema))


def is_strict(schema: object) -> bool:
    """True if all objects forbid additional properties and require all their properties. The API
    rejects a request that asks for strictness with any other schema."""
    if not is_object(schema):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or is_object(properties):
        names = set(properties) if is_object(properties) else set[str]()
        required = schema.get("required")
        listed = set(required) if is_list(required) else set[object]()
        if schema.get("additionalProperties") is not False or names - listed:
            return False
    return all(is_strict(inner) for inner in _inner(schema))


def _inner(schema: Schema) -> Iterator[object]:
    for key in ("properties", "$defs", "definitions"):
        if is_object(named := schema.get(key)):
            yield from named.values()
    for key in ("anyOf", "oneOf", "allOf"):
        if is_list(choices := schema.get(key)):
            yield from choices
    yield schema.get("items")


def fit_call_id(call_id: str) -> str:
    """Shorten long call ids of other providers. Equal ids stay equal."""
    if len(call_id) <= MAX_CALL_ID_CHARS:
        return call_id
    tail = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{call_id[: MAX_CALL_ID_CHARS - 13]}_{tail}"


# Tools of the Responses API.
#
# The input of a computer call is `{"actions": [...]}`, each action in the words of
# `domain.computer_use`, with `pending_safety_checks` if the API wants a user to confirm them. The
# API's own item is kept beside it and sent back.

COMPUTER: Final = "computer"
WEB_SEARCH: Final = "web_search"


class _ComputerInput(Struct, frozen=True, omit_defaults=True):
    actions: Raw
    pending_safety_checks: Json = UNSET


def computer_input(item: Item) -> str:
    """Older models send one action, newer models a list."""
    if is_present(item.actions):
        actions = item.actions
    elif is_present(item.action):
        actions = Raw(b"[" + bytes(item.action) + b"]")
    else:
        actions = Raw(b"[]")
    try:
        found = msgspec.json.decode(actions, type=list[dict[str, object]])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        found = []
    actions = Raw(msgspec.json.encode([_translate_action(action) for action in found]))
    checks = item.pending_safety_checks
    value = _ComputerInput(actions, checks if is_present(checks) else UNSET)
    return replace_json_surrogates(decode_lenient(msgspec.json.encode(value)))


_BUTTONS: Final = {"right": "right_click", "wheel": "middle_click", "middle": "middle_click"}
_HISTORY_KEYS: Final = {"back": "alt+Left", "forward": "alt+Right"}
"""Mice of desktops have no such buttons; programs know the keys."""
_SAME_NAMES: Final = {"move": "mouse_move", "drag": "left_click_drag", "keypress": "key"}


def _translate_action(action: dict[str, object]) -> dict[str, object]:
    """An action of the API in the words of `domain.computer_use`. What is not known stays, so that
    the tool can name it."""
    fields = dict(action)
    name = str(fields.pop("type", ""))
    button = str(fields.pop("button", "left"))
    if name == "click" and button in _HISTORY_KEYS:
        return {"action": "key", "text": _HISTORY_KEYS[button]}
    if "x" in fields and "y" in fields:
        fields["coordinate"] = [fields.pop("x"), fields.pop("y")]
    if name == "click":
        name = _BUTTONS.get(button, "left_click")
    elif name == "keypress" and is_list(keys := fields.pop("keys", None)):
        fields["text"] = "+".join(str(key) for key in keys)
    elif name == "drag" and is_list(path := fields.get("path")):
        points = (point for point in path if is_object(point))
        fields["path"] = [[point.get("x"), point.get("y")] for point in points]
    elif name == "wait" and isinstance(ms := fields.pop("ms", None), int | float):
        fields["duration"] = ms / 1000
    return {"action": _SAME_NAMES.get(name, name), **fields}


def is_present(raw: Raw) -> bool:
    return bytes(raw).strip() not in (b"", b"null", b"[]", b"{}")


class _Found(Struct, frozen=True, omit_defaults=True):
    status: str | None = None
    sources: Json = UNSET


class _Action(Struct, frozen=True):
    sources: Json = UNSET


_ACTION: Final = msgspec.json.Decoder(_Action)
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])


def search_call(call_id: ToolCallId, item: Item, metadata: Raw) -> ToolCallDone:
    """The call has the action without its sources, which belong to the result."""
    action = decode_event(_FIELDS, item.action) if is_present(item.action) else {}
    action.pop("sources", None)
    return ToolCallDone(
        id=call_id,
        name=WEB_SEARCH,
        input=replace_json_surrogates(decode_lenient(msgspec.json.encode(action))),
        provider_executed=True,
        provider_metadata=metadata,
    )


def search_result(call_id: ToolCallId, item: Item) -> ToolResultDone:
    """The API returns at most the addresses of the search results."""
    sources: Json = UNSET
    if is_present(item.action):
        sources = decode_event(_ACTION, item.action).sources
    found = _Found(item.status, sources)
    return ToolResultDone(
        id=call_id,
        name=WEB_SEARCH,
        result=Raw(replace_json_surrogates(decode_lenient(msgspec.json.encode(found))).encode()),
        is_error=item.status == "failed",
    )
