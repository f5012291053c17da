"""An answer of Gemini's while it comes: text, thoughts, calls and pages, out of parts.

Text and thoughts come in pieces that say neither where a run of them begins nor where it ends: a
run lasts until something else comes. A call comes whole.
"""

from typing import Final

from msgspec import UNSET, Raw

from chatd.domain.chat.parts import Json
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
    ToolCallDone,
    ToolCallStart,
    ToolResultDone,
)
from chatd.providers.gemini.wire import (
    GROUNDING,
    SERVER_TOOL,
    FunctionCall,
    Mark,
    Maybe,
    Part,
    ServerTool,
    SignedSpan,
    as_metadata,
)
from chatd.providers.reading import UNREADABLE, read
from chatd.providers.schema import ToolNames

MAX_SOURCES: Final = 200


class _Run:
    """Text or thoughts while they come."""

    __slots__ = ("id", "length", "spans", "thought")

    def __init__(self, run_id: str, *, thought: bool) -> None:
        self.id = run_id
        self.thought = thought
        self.length = 0
        self.spans: list[SignedSpan] = []


class Answer:
    """`call_prefix` begins the ids of calls that come without one: it must differ from request to
    request, and be the same for the same request.

    `called`: there are calls for us to answer. `spoke`: something was said besides thoughts.
    """

    def __init__(self, *, model: str, names: ToolNames, call_prefix: str) -> None:
        self.called = False
        self.spoke = False
        self.grounding: Maybe = UNSET
        self._model = model
        self._names = names
        self._call_prefix = call_prefix
        self._run: _Run | None = None
        self._runs = 0
        self._ids: set[str] = set()
        self._calls = 0
        self._sources: dict[str, SourceFound] = {}

    def add(self, part: Part, out: list[ModelEvent]) -> None:
        if part.function_call is not None:
            self._end_run(out)
            self._call(part.function_call, part.thought_signature, out)
        elif part.tool_call is not UNSET or part.tool_response is not UNSET:
            self._end_run(out)
            self._server_tool(part, out)
        elif part.text is not None or part.thought_signature is not None:
            self._text(part, out)

    def note_grounding(self, raw: Raw) -> None:
        try:
            found = read(GROUNDING, raw)
        except UNREADABLE:
            return
        self.grounding = raw.copy()
        for chunk in found.grounding_chunks or ():
            page = chunk.web or chunk.retrieved_context or chunk.maps
            if page is None or not page.uri or page.uri in self._sources:
                continue
            if len(self._sources) < MAX_SOURCES:
                self._sources[page.uri] = SourceFound(url=page.uri, title=page.title or None)

    def end(self, out: list[ModelEvent]) -> None:
        """Pages come last: they are told of in no certain place."""
        self._end_run(out)
        out.extend(self._sources.values())

    # Text and thoughts

    def _text(self, part: Part, out: list[ModelEvent]) -> None:
        thought, text = bool(part.thought), part.text or ""
        if not text and part.thought_signature is None:
            return
        run = self._run
        if run is None or run.thought is not thought:
            run = self._begin_run(out, thought=thought)
        if part.thought_signature is not None:
            run.spans.append(
                SignedSpan(
                    start=run.length,
                    end=run.length + len(text),
                    signature=part.thought_signature,
                )
            )
        if not text:
            return
        run.length += len(text)
        if thought:
            out.append(ReasoningDelta(id=run.id, delta=text))
        else:
            self.spoke = True
            out.append(TextDelta(id=run.id, delta=text))

    def _begin_run(self, out: list[ModelEvent], *, thought: bool) -> _Run:
        self._end_run(out)
        self._run = run = _Run(str(self._runs), thought=thought)
        self._runs += 1
        out.append(ReasoningStart(id=run.id) if thought else TextStart(id=run.id))
        return run

    def _end_run(self, out: list[ModelEvent]) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        metadata: Json = UNSET
        if run.spans:
            metadata = as_metadata(Mark(model=self._model, spans=tuple(run.spans)))
        end = ReasoningEnd if run.thought else TextEnd
        out.append(end(id=run.id, provider_metadata=metadata))

    # Calls

    def _call(self, call: FunctionCall, signature: str | None, out: list[ModelEvent]) -> None:
        call_id = self._call_id(call.id)
        name = self._names.own(call.name or "")
        mark = Mark(model=self._model, signature=signature, call_id=call.id or None)
        self.called = True
        self.spoke = True
        out.append(ToolCallStart(id=call_id, name=name))
        out.append(
            ToolCallDone(
                id=call_id,
                name=name,
                input=_json_text(call.args),
                provider_metadata=as_metadata(mark),
            )
        )

    def _call_id(self, given: str | None) -> ToolCallId:
        """Ids must be unique within an answer, whatever the vendor does."""
        index, self._calls = self._calls, self._calls + 1
        call_id = given or f"{self._call_prefix}-{index}"
        while call_id in self._ids:
            call_id = f"{call_id}-{index}"
        self._ids.add(call_id)
        return ToolCallId(call_id)

    def _server_tool(self, part: Part, out: list[ModelEvent]) -> None:
        """The model's own search. Both halves go back as they came."""
        signature = part.thought_signature
        if part.tool_call is not UNSET and (tool := _server_tool(part.tool_call)) is not None:
            mark = Mark(model=self._model, signature=signature, tool_call=part.tool_call)
            call_id, name = self._server_id(tool), _server_name(tool)
            out.append(ToolCallStart(id=call_id, name=name, provider_executed=True))
            out.append(
                ToolCallDone(
                    id=call_id,
                    name=name,
                    input=_json_text(tool.args),
                    provider_executed=True,
                    provider_metadata=as_metadata(mark),
                )
            )
        if part.tool_response is not UNSET and (tool := _server_tool(part.tool_response)):
            mark = Mark(model=self._model, signature=signature, tool_response=part.tool_response)
            out.append(
                ToolResultDone(
                    id=self._server_id(tool),
                    name=_server_name(tool),
                    result=Raw(_json_text(tool.response).encode()),
                    provider_metadata=as_metadata(mark),
                )
            )

    def _server_id(self, tool: ServerTool) -> ToolCallId:
        # A result names its call. Without a name, it answers the call before it.
        return ToolCallId(tool.id or f"{self._call_prefix}-{_server_name(tool)}")


def _json_text(raw: Maybe) -> str:
    """JSON as it was sent. No arguments at all are none: an empty object."""
    text = "" if raw is UNSET else bytes(raw).decode("utf-8", "replace")
    return "{}" if text in ("", "null") else text


def _server_tool(raw: Raw) -> ServerTool | None:
    try:
        return read(SERVER_TOOL, raw)
    except UNREADABLE:
        return None


def _server_name(tool: ServerTool) -> str:
    """GOOGLE_SEARCH_WEB is the search that every provider has, under the name they share."""
    kind = tool.tool_type or "server_tool"
    return "web_search" if kind.startswith("GOOGLE_SEARCH") else kind.lower()
