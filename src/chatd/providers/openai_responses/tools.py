"""The vendor's own tools: searching the web, and using a computer.

A computer call's input is `{"actions": [...]}`, in the vendor's words for the
actions, with `pending_safety_checks` if the vendor wants somebody to have a look.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.parts import Json
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ToolCallDone, ToolResultDone
from chatd.domain.text import decode_lenient, replace_json_surrogates
from chatd.providers.openai_responses.wire import Item
from chatd.providers.reading import read

COMPUTER: Final = "computer"
WEB_SEARCH: Final = "web_search"


class _ComputerInput(Struct, frozen=True, omit_defaults=True):
    actions: Raw
    pending_safety_checks: Json = UNSET


def computer_input(item: Item) -> str:
    """Older models send one action, newer ones several."""
    if given(item.actions):
        actions = item.actions
    elif given(item.action):
        actions = Raw(b"[" + bytes(item.action) + b"]")
    else:
        actions = Raw(b"[]")
    checks = item.pending_safety_checks
    said = _ComputerInput(actions, checks if given(checks) else UNSET)
    return replace_json_surrogates(decode_lenient(msgspec.json.encode(said)))


def given(raw: Raw) -> bool:
    return bytes(raw).strip() not in (b"", b"null", b"[]", b"{}")


class _Found(Struct, frozen=True, omit_defaults=True):
    status: str | None = None
    sources: Json = UNSET


class _Action(Struct, frozen=True):
    sources: Json = UNSET


_ACTION: Final = msgspec.json.Decoder(_Action)
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])


def search_call(call_id: ToolCallId, item: Item, kept: Raw) -> ToolCallDone:
    """Asked for: the action without what came of it."""
    asked = read(_FIELDS, item.action) if given(item.action) else {}
    asked.pop("sources", None)
    return ToolCallDone(
        id=call_id,
        name=WEB_SEARCH,
        input=replace_json_surrogates(decode_lenient(msgspec.json.encode(asked))),
        provider_executed=True,
        provider_metadata=kept,
    )


def search_result(call_id: ToolCallId, item: Item) -> ToolResultDone:
    """What was found stays with the vendor, who tells at most the addresses."""
    sources: Json = UNSET
    if given(item.action):
        sources = read(_ACTION, item.action).sources
    found = _Found(item.status, sources)
    return ToolResultDone(
        id=call_id,
        name=WEB_SEARCH,
        result=Raw(replace_json_surrogates(decode_lenient(msgspec.json.encode(found))).encode()),
        is_error=item.status == "failed",
    )
