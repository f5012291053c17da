"""An answer while it comes: text and reasoning out of deltas.

Deltas say neither where a block begins nor where it ends: a block lasts until
something else is said.
"""

from collections.abc import Collection

from msgspec import UNSET

from chatd.domain.chat.parts import Json
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
from chatd.providers.openai_chat import wire
from chatd.providers.openai_chat.calls import Calls
from chatd.providers.openai_chat.details import Details
from chatd.providers.openai_chat.thoughts import ThoughtSplitter
from chatd.providers.openai_chat.wire import Kept, pack
from chatd.providers.schema import ToolNames


class Answer:
    """Writes events to `out`.

    `taken` and `salt` keep ids of calls apart. `thoughts`: they come mixed with the text.
    """

    def __init__(
        self,
        origin: str,
        names: ToolNames,
        *,
        taken: Collection[str] = (),
        salt: str = "",
        thoughts: bool = False,
    ) -> None:
        self.out: list[ModelEvent] = []
        self._origin = origin
        self._splitter = ThoughtSplitter() if thoughts else None
        self._blocks = 0
        self._text: str | None = None
        self._reasoning: str | None = None
        self._field = ""
        self._details = Details()
        self._calls = Calls(self.out, origin, names, taken=taken, salt=salt)
        self._refusal: list[str] = []
        self._sources: set[str] = set()

    @property
    def called(self) -> bool:
        return self._calls.any

    @property
    def refusal(self) -> str | None:
        return "".join(self._refusal) or None

    def add(self, delta: wire.Delta) -> None:
        if delta.reasoning_content or delta.reasoning or delta.reasoning_details:
            self._think_aloud(delta)
        content = delta.content
        if content:
            if self._splitter is not None and isinstance(content, str):
                marked = _is_thought(delta.extra_content)
                self._said(self._splitter.feed(content, marked=marked))
            elif isinstance(content, str):
                self._say(content)
            else:
                self._parts(content)
        if delta.refusal:
            self._refusal.append(delta.refusal)
            self._say(delta.refusal)
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
        if sealed := self._details.sealed():
            block = self._next()
            kept = pack(Kept(origin=self._origin, details=sealed))
            self.out.append(ReasoningStart(id=block))
            self.out.append(ReasoningEnd(id=block, provider_metadata=kept))
        self._calls.close()

    # Text and reasoning

    def _say(self, text: str) -> None:
        if self._text is None:
            self._end_block()
            self._text = self._next()
            self.out.append(TextStart(id=self._text))
        self.out.append(TextDelta(id=self._text, delta=text))

    def _think(self, text: str, field: str) -> None:
        if self._reasoning is None:
            self._end_block()
            self._reasoning = self._next()
            self._field = field
            self.out.append(ReasoningStart(id=self._reasoning))
        self.out.append(ReasoningDelta(id=self._reasoning, delta=text))

    def _think_aloud(self, delta: wire.Delta) -> None:
        """Gateways send the same thought twice: for reading, and in pieces to be given back."""
        told = self._details.add(delta.reasoning_details or ())
        if delta.reasoning_content:
            self._think(delta.reasoning_content, "reasoning_content")
        elif delta.reasoning:
            self._think(delta.reasoning, "reasoning")
        elif told:
            self._think(told, "")

    def _flush(self) -> None:
        if self._splitter is not None:
            self._said(self._splitter.flush())

    def _said(self, pieces: list[tuple[bool, str]]) -> None:
        for thought, text in pieces:
            if thought:
                self._think(text, "")
            else:
                self._say(text)

    def _parts(self, parts: tuple[wire.ContentPart, ...]) -> None:
        for part in parts:
            if part.type == "thinking":
                inner = part.thinking
                whole = (
                    inner if isinstance(inner, str) else "".join(p.text or "" for p in inner or ())
                )
                if whole:
                    self._think(whole, "")
            elif part.text:
                self._say(part.text)

    def _end_block(self) -> None:
        if self._text is not None:
            self.out.append(TextEnd(id=self._text))
            self._text = None
        if self._reasoning is not None:
            kept: Json = UNSET
            if self._field:
                kept = pack(Kept(origin=self._origin, field=self._field))
            self.out.append(ReasoningEnd(id=self._reasoning, provider_metadata=kept))
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
