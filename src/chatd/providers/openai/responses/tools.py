"""Provider-executed web search, and the computer tool.

The input of a computer call is `{"actions": [...]}` in the API's format, with
`pending_safety_checks` if the API wants a user to confirm them.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ToolCallDone, ToolResultDone
from chatd.domain.text import Json, decode_lenient, replace_json_surrogates
from chatd.providers.openai.responses.wire import Item
from chatd.providers.sse import decode_event

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
    checks = item.pending_safety_checks
    value = _ComputerInput(actions, checks if is_present(checks) else UNSET)
    return replace_json_surrogates(decode_lenient(msgspec.json.encode(value)))


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
