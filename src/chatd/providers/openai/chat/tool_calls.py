"""Build tool calls from deltas: which delta belongs to which call, and the id of the call."""

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import UNSET

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ModelEvent, ToolCallDelta, ToolCallDone, ToolCallStart
from chatd.domain.text import (
    Json,
    decode_lenient,
    parse_json,
    replace_json_surrogates,
    storable_json,
)
from chatd.providers.openai.chat import wire
from chatd.providers.openai.chat.wire import ChatMetadata, pack_metadata
from chatd.providers.sse import TooManyCalls
from chatd.providers.tool_schema import ToolNames

MAX_DECODED_CALLS: Final = 10_000
"""Of one answer. The calls of this wire are complete only at its end, so that all are kept."""
_MAX_CHECKS: Final = 1000


class _Call:
    __slots__ = ("checks", "extra", "id", "name", "pieces", "wire_id")

    def __init__(self, wire_id: str, call_id: ToolCallId) -> None:
        self.wire_id = wire_id
        self.id = call_id
        self.name = ""
        self.pieces: list[str] = []
        self.extra: Json = UNSET
        self.checks = 0


def _is_another(call: _Call, delta: wire.ToolCall) -> bool:
    """True if the delta starts another call: by its id, else by a name after complete arguments."""
    if delta.id and call.wire_id:
        return delta.id != call.wire_id
    function = delta.function
    begins = function is not None and function.name and function.arguments
    return bool(begins) and bool(call.name) and _is_whole(call)


def _is_whole(call: _Call) -> bool:
    """Reads all pieces, so that it may be asked so many times only."""
    pieces = call.pieces
    if not pieces or not pieces[-1].rstrip().endswith("}") or call.checks >= _MAX_CHECKS:
        return False
    call.checks += 1
    return isinstance(parse_json("".join(pieces)), dict)


class ToolCallBuilder:
    """Calls are complete only at the end of the answer.

    Call ids must be unique in a chat, because they are idempotency keys. Some servers send none or
    count from zero in every answer: `used_call_ids` are those of history, `salt` makes new ones.
    """

    def __init__(
        self,
        out: list[ModelEvent],
        origin: str,
        names: ToolNames,
        *,
        used_call_ids: Collection[str],
        salt: str,
    ) -> None:
        self._out = out
        self._origin = origin
        self._names = names
        self._used = set(used_call_ids)
        self._salt = salt
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_wire_id: dict[str, _Call] = {}
        self._id_counts: dict[str, int] = {}

    @property
    def has_calls(self) -> bool:
        """Asked once, at the end of the answer."""
        return any(call.name for call in self._calls)

    def add(self, delta: wire.ToolCall) -> None:
        call = self._find(delta) or self._begin(delta)
        if bytes(delta.extra_content).strip() != b"null":
            call.extra = storable_json(delta.extra_content.copy())
        function = delta.function or wire.Function()
        if function.name and not call.name:
            call.name = self._names.from_wire(function.name)
            self._out.append(ToolCallStart(id=call.id, name=call.name))
        if function.arguments:
            piece = function.arguments
            if not isinstance(piece, str):
                piece = replace_json_surrogates(decode_lenient(msgspec.json.encode(piece)))
            call.pieces.append(piece)
            if call.name:
                self._out.append(ToolCallDelta(id=call.id, delta=piece))

    def close(self) -> None:
        for call in self._calls:
            if not call.name:
                continue
            metadata: Json = UNSET
            if call.extra is not UNSET:
                metadata = pack_metadata(ChatMetadata(origin=self._origin, extra=call.extra))
            text = "".join(call.pieces)
            text = text if text.strip() else "{}"
            self._out.append(
                ToolCallDone(id=call.id, name=call.name, input=text, provider_metadata=metadata)
            )

    def _find(self, delta: wire.ToolCall) -> _Call | None:
        """The call of this delta. Some servers give all calls one index, others none."""
        if delta.index is not None:
            call = self._by_index.get(delta.index)
        elif delta.id:
            call = self._by_wire_id.get(delta.id)
        elif delta.function is not None and delta.function.name:
            call = None
        else:
            call = self._calls[-1] if self._calls else None
        return None if call is not None and _is_another(call, delta) else call

    def _begin(self, delta: wire.ToolCall) -> _Call:
        if len(self._calls) >= MAX_DECODED_CALLS:
            raise TooManyCalls(f"the answer makes more than {MAX_DECODED_CALLS} tool calls")
        number = len(self._calls) if delta.index is None else delta.index
        call = _Call(delta.id or "", self._unique_id(delta.id, number))
        self._calls.append(call)
        self._by_wire_id.setdefault(call.wire_id, call)
        if delta.index is not None:
            self._by_index[delta.index] = call
        return call

    def _unique_id(self, given: str | None, number: int) -> ToolCallId:
        own = given or f"tool-call-{number}"
        if self._salt and (not given or given in self._used):
            own = f"{own}-{self._salt}"
        unique, count = own, self._id_counts.get(own, 1)
        while unique in self._used:
            count += 1
            unique = f"{own}-{count}"
        self._id_counts[own] = count
        self._used.add(unique)
        return ToolCallId(unique)
