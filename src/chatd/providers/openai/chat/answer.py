"""Build model events from the deltas of a completion.

Deltas mark neither the start nor the end of a block: a block lasts until other content arrives.
Gateways send reasoning a second time in `reasoning_details`, to be sent back. Gemini's compatible
endpoint and servers without a reasoning parser mix thoughts into the text.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.model.protocol import (
    ModelEvent,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceFound,
    TextDelta,
    TextEnd,
    TextStart,
)
from chatd.domain.text import Json, decode_lenient, replace_json_surrogates
from chatd.providers.openai.chat import wire
from chatd.providers.openai.chat.tool_calls import ToolCallBuilder
from chatd.providers.openai.chat.wire import ChatMetadata, pack_metadata
from chatd.providers.sse import DECODE_ERRORS, decode_event
from chatd.providers.tool_schema import ToolNames

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

    def add(self, delta: wire.Delta) -> None:
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

    def _add_reasoning(self, delta: wire.Delta) -> None:
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
        tag = self._splitter.opening_tag if self._splitter and self._replays_tags else ""
        for thought, text in pieces:
            if thought:
                self._add_thought(text, tag)
            else:
                self._add_text(text)

    def _parts(self, parts: tuple[wire.ContentPart, ...]) -> None:
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

    def _source(self, found: wire.Annotation) -> None:
        cited = found.url_citation
        if cited is not None and cited.url and cited.url not in self._sources:
            self._sources.add(cited.url)
            self.out.append(SourceFound(url=cited.url, title=cited.title or None))


def _is_thought(extra: wire.ExtraContent | None) -> bool:
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
                known = decode_event(wire.DETAIL, raw)
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
