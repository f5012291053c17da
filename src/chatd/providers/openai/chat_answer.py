"""Builds model events from the deltas of a chat completion.

Deltas mark neither the start nor the end of a block: a block lasts until other content arrives.
Gateways send reasoning a second time in `reasoning_details`, to be sent back. Gemini's compatible
endpoint and servers without a reasoning parser mix thoughts into the text.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    ModelEvent,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceFound,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
)
from chatd.domain.text import (
    Json,
    decode_lenient,
    parse_json,
    replace_json_surrogates,
    storable_json,
)
from chatd.providers.openai import chat_wire
from chatd.providers.openai.chat_wire import ChatMetadata, pack_metadata
from chatd.providers.sse import DECODE_ERRORS, TooManyCalls, decode_event
from chatd.providers.tool_schema import ToolNames

# Tool calls: which delta belongs to which call, and the id of the call.

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


def _is_another(call: _Call, delta: chat_wire.ToolCall) -> bool:
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

    def add(self, delta: chat_wire.ToolCall) -> None:
        call = self._find(delta) or self._begin(delta)
        if bytes(delta.extra_content).strip() != b"null":
            call.extra = storable_json(delta.extra_content.copy())
        function = delta.function or chat_wire.Function()
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

    def _find(self, delta: chat_wire.ToolCall) -> _Call | None:
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

    def _begin(self, delta: chat_wire.ToolCall) -> _Call:
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


# Text and reasoning

GEMINI_TAGS: Final = (("<thought>", "</thought>"),)
THINK_TAGS: Final = (("<think>", "</think>"), ("<mm:think>", "</mm:think>"))


class ThoughtSplitter:
    """Separates thoughts from text by the tags around thoughts at the start of an answer.

    Gemini's server marks each piece and mostly adds tags as well. The closing tag comes at the
    start of the answer, and a tag may be cut in two. `feed` and `flush` return pieces as (is
    thought, text); `flush` returns what was held back.
    """

    def __init__(self, tags: Sequence[tuple[str, str]]) -> None:
        self._tags = tags
        self._close = ""
        self._held = ""
        self._begun = False
        self._inside = False
        self._tagged = False

    @property
    def opening_tag(self) -> str:
        """The tag of the thoughts seen last; empty if they had none."""
        return next((start for start, end in self._tags if end == self._close), "")

    def feed(self, text: str, *, marked: bool) -> list[tuple[bool, str]]:
        text = self._held + text
        self._held = ""
        if not self._inside and (marked or not self._begun):
            text = self._opened(text, marked=marked)
        if not text:
            return []
        self._begun = True
        if not self._inside:
            return [(False, text)]
        if not marked and not self._tagged:
            self._inside = False
            return [(False, text)]
        return self._closed(text)

    def flush(self) -> list[tuple[bool, str]]:
        held, self._held = self._held, ""
        return [(self._inside, held)] if held else []

    def _opened(self, text: str, *, marked: bool) -> str:
        """The text after the opening tag; empty while the tag may be incomplete."""
        start = text.lstrip()
        for opening, closing in self._tags:
            if start.startswith(opening):
                self._inside = self._tagged = True
                self._close = closing
                return start[len(opening) :]
        if any(opening.startswith(start) for opening, _ in self._tags):
            self._held = text
            return ""
        if marked:
            self._inside, self._tagged = True, False
        return text

    def _closed(self, text: str) -> list[tuple[bool, str]]:
        close = self._close or self._tags[0][1]
        thought, tag, rest = text.partition(close)
        if not tag:
            cut = next((n for n in range(len(close) - 1, 0, -1) if text.endswith(close[:n])), 0)
            self._held = text[len(text) - cut :]
            thought = text[: len(text) - cut]
        else:
            self._inside = self._tagged = False
        return [piece for piece in ((True, thought), (False, rest)) if piece[1]]


class ChatAnswerBuilder:
    """Writes events to `out`. `used_call_ids` and `salt` keep ids of calls unique.
    `thought_tags` are around thoughts in the text; `replays_tags`: those go back in the text."""

    def __init__(
        self,
        origin: str,
        names: ToolNames,
        *,
        used_call_ids: Collection[str] = (),
        salt: str = "",
        thought_tags: Sequence[tuple[str, str]] = (),
        replays_tags: bool = False,
    ) -> None:
        self.out: list[ModelEvent] = []
        self._origin = origin
        self._splitter = ThoughtSplitter(thought_tags) if thought_tags else None
        self._replays_tags = replays_tags
        self._blocks = 0
        self._text: str | None = None
        self._reasoning: str | None = None
        self._field = ""
        self._details = ReasoningDetails()
        self._calls = ToolCallBuilder(
            self.out, origin, names, used_call_ids=used_call_ids, salt=salt
        )
        self._refusal: list[str] = []
        self._sources: set[str] = set()

    @property
    def has_calls(self) -> bool:
        return self._calls.has_calls

    @property
    def refusal(self) -> str | None:
        return "".join(self._refusal) or None

    def add(self, delta: chat_wire.Delta) -> None:
        if delta.reasoning_content or delta.reasoning or delta.reasoning_details:
            self._add_reasoning(delta)
        content = delta.content
        if content:
            if self._splitter is not None and isinstance(content, str):
                marked = _is_thought(delta.extra_content)
                self._add_pieces(self._splitter.feed(content, marked=marked))
            elif isinstance(content, str):
                self._add_text(content)
            else:
                self._parts(content)
        if delta.refusal:
            self._refusal.append(delta.refusal)
            self._add_text(delta.refusal)
        for found in delta.annotations or ():
            self._source(found)
        if delta.tool_calls:
            self._flush()
            self._end_block()
            for call in delta.tool_calls:
                self._calls.add(call)

    def close(self) -> None:
        self._flush()
        self._end_block()
        if sealed := self._details.pack():
            block = self._next()
            metadata = pack_metadata(ChatMetadata(origin=self._origin, details=sealed))
            self.out.append(ReasoningStart(id=block))
            self.out.append(ReasoningEnd(id=block, provider_metadata=metadata))
        self._calls.close()

    # Text and reasoning

    def _add_text(self, text: str) -> None:
        if self._text is None:
            self._end_block()
            self._text = self._next()
            self.out.append(TextStart(id=self._text))
        self.out.append(TextDelta(id=self._text, delta=text))

    def _add_thought(self, text: str, field: str) -> None:
        if self._reasoning is None:
            self._end_block()
            self._reasoning = self._next()
            self._field = field
            self.out.append(ReasoningStart(id=self._reasoning))
        self.out.append(ReasoningDelta(id=self._reasoning, delta=text))

    def _add_reasoning(self, delta: chat_wire.Delta) -> None:
        """Gateways send reasoning twice: as text, and as details to be sent back."""
        text = self._details.add(delta.reasoning_details or ())
        if delta.reasoning_content:
            self._add_thought(delta.reasoning_content, "reasoning_content")
        elif delta.reasoning:
            self._add_thought(delta.reasoning, "reasoning")
        elif text:
            self._add_thought(text, "")

    def _flush(self) -> None:
        if self._splitter is not None:
            self._add_pieces(self._splitter.flush())

    def _add_pieces(self, pieces: list[tuple[bool, str]]) -> None:
        for thought, text in pieces:
            if thought:
                tag = self._splitter.opening_tag if self._splitter and self._replays_tags else ""
                self._add_thought(text, tag)
            else:
                self._add_text(text)

    def _parts(self, parts: tuple[chat_wire.ContentPart, ...]) -> None:
        for part in parts:
            if part.type == "thinking":
                inner = part.thinking
                whole = (
                    inner if isinstance(inner, str) else "".join(p.text or "" for p in inner or ())
                )
                if whole:
                    self._add_thought(whole, "")
            elif part.text:
                self._add_text(part.text)

    def _end_block(self) -> None:
        if self._text is not None:
            self.out.append(TextEnd(id=self._text))
            self._text = None
        if self._reasoning is not None:
            metadata: Json = UNSET
            if self._field:
                metadata = pack_metadata(ChatMetadata(origin=self._origin, field=self._field))
            self.out.append(ReasoningEnd(id=self._reasoning, provider_metadata=metadata))
            self._reasoning = None

    def _next(self) -> str:
        self._blocks += 1
        return str(self._blocks)

    def _source(self, found: chat_wire.Annotation) -> None:
        cited = found.url_citation
        if cited is not None and cited.url and cited.url not in self._sources:
            self._sources.add(cited.url)
            self.out.append(SourceFound(url=cited.url, title=cited.title or None))


def _is_thought(extra: chat_wire.ExtraContent | None) -> bool:
    if extra is None:
        return False
    return any(part is not None and part.thought is True for part in (extra.google, extra.vertex))


_FIELDS = msgspec.json.Decoder(dict[str, object])
_MERGED_FIELDS = {"reasoning.text": "text", "reasoning.summary": "summary"}


class ReasoningDetails:
    """Merges pieces of one text; a signature or encrypted data arrives once. Keeps the order and
    unknown fields."""

    def __init__(self) -> None:
        self._pieces: list[dict[str, object]] = []
        self._growing: list[str] = []

    def add(self, details: tuple[Raw, ...]) -> str:
        """Returns the readable text."""
        texts: list[str] = []
        for raw in details:
            try:
                piece = decode_event(_FIELDS, raw)
                known = decode_event(chat_wire.DETAIL, raw)
            except DECODE_ERRORS:
                continue
            texts.append(known.text or known.summary or "")
            if not self._merge(piece):
                self._join()
                self._pieces.append(piece)
        return "".join(texts)

    def _join(self) -> None:
        """Add the texts that continue the last piece to it."""
        if self._growing:
            last = self._pieces[-1]
            key = _MERGED_FIELDS[str(last.get("type"))]
            last[key] = "".join((str(last[key]), *self._growing))
            self._growing.clear()

    def pack(self) -> tuple[Raw, ...]:
        self._join()
        return tuple(
            Raw(replace_json_surrogates(decode_lenient(msgspec.json.encode(piece))).encode())
            for piece in self._pieces
        )

    def _merge(self, piece: dict[str, object]) -> bool:
        """True if the piece was merged into the last one, which it continues."""
        if not self._pieces:
            return False
        last = self._pieces[-1]
        growing = _MERGED_FIELDS.get(str(piece.get("type")))
        if growing is None or any(last.get(key) != piece.get(key) for key in ("type", "index")):
            return False
        if None is not last.get("id") != piece.get("id") is not None:
            return False
        for key, value in piece.items():
            before = last.get(key)
            if key == growing and isinstance(value, str) and isinstance(before, str):
                self._growing.append(value)
            elif value is not None:
                last[key] = value
        return True
