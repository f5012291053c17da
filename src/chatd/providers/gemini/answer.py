"""Build model events from the parts of a Gemini answer.

Text and thoughts arrive in pieces without a start or an end: a run lasts until another kind of part
arrives. A call arrives whole.
"""

from typing import Final

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
    ToolCallDone,
    ToolCallStart,
    ToolResultDone,
)
from chatd.domain.text import Json
from chatd.providers.gemini.wire import (
    GROUNDING,
    SERVER_TOOL,
    FunctionCall,
    GeminiMetadata,
    OptionalJson,
    Part,
    ServerTool,
    SignedSpan,
    pack_metadata,
)
from chatd.providers.sse import DECODE_ERRORS, decode_event
from chatd.providers.tool_schema import ToolNames

MAX_SOURCES: Final = 200


class _Run:
    """An open run of text or thoughts."""

    __slots__ = ("id", "length", "spans", "thought")

    def __init__(self, run_id: str, *, thought: bool) -> None:
        self.id = run_id
        self.thought = thought
        self.length = 0
        self.spans: list[SignedSpan] = []


class GeminiAnswerBuilder:
    """`call_prefix` starts the ids of calls that arrive without one. It must be equal for equal
    requests and differ between others.

    `has_calls`: chatd must answer a call. `has_content`: the answer has more than thoughts.
    """

    def __init__(self, *, model: str, names: ToolNames, call_prefix: str) -> None:
        self.has_calls = False
        self.has_content = False
        self.grounding: OptionalJson = UNSET
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

    def add_grounding(self, raw: Raw) -> None:
        try:
            found = decode_event(GROUNDING, raw)
        except DECODE_ERRORS:
            return
        self.grounding = raw.copy()
        for chunk in found.grounding_chunks or ():
            page = chunk.web or chunk.retrieved_context or chunk.maps
            if page is None or not page.uri or page.uri in self._sources:
                continue
            if len(self._sources) < MAX_SOURCES:
                self._sources[page.uri] = SourceFound(url=page.uri, title=page.title or None)

    def close(self, out: list[ModelEvent]) -> None:
        """Sources are reported last, because they may arrive in any chunk."""
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
            self.has_content = True
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
            metadata = pack_metadata(GeminiMetadata(model=self._model, spans=tuple(run.spans)))
        end = ReasoningEnd if run.thought else TextEnd
        out.append(end(id=run.id, provider_metadata=metadata))

    # Calls

    def _call(self, call: FunctionCall, signature: str | None, out: list[ModelEvent]) -> None:
        call_id = self._call_id(call.id)
        name = self._names.from_wire(call.name or "")
        metadata = GeminiMetadata(model=self._model, signature=signature, call_id=call.id or None)
        self.has_calls = True
        self.has_content = True
        out.append(ToolCallStart(id=call_id, name=name))
        out.append(
            ToolCallDone(
                id=call_id,
                name=name,
                input=_json_text(call.args),
                provider_metadata=pack_metadata(metadata),
            )
        )

    def _call_id(self, given: str | None) -> ToolCallId:
        """Makes ids unique within an answer; Google may repeat them."""
        index, self._calls = self._calls, self._calls + 1
        call_id = given or f"{self._call_prefix}-{index}"
        while call_id in self._ids:
            call_id = f"{call_id}-{index}"
        self._ids.add(call_id)
        return ToolCallId(call_id)

    def _server_tool(self, part: Part, out: list[ModelEvent]) -> None:
        """A provider-executed tool. Its call and result are sent back unchanged."""
        signature = part.thought_signature
        if part.tool_call is not UNSET and (tool := _server_tool(part.tool_call)) is not None:
            metadata = GeminiMetadata(
                model=self._model, signature=signature, tool_call=part.tool_call
            )
            call_id, name = self._server_id(tool), _server_name(tool)
            out.append(ToolCallStart(id=call_id, name=name, provider_executed=True))
            out.append(
                ToolCallDone(
                    id=call_id,
                    name=name,
                    input=_json_text(tool.args),
                    provider_executed=True,
                    provider_metadata=pack_metadata(metadata),
                )
            )
        if part.tool_response is not UNSET and (tool := _server_tool(part.tool_response)):
            metadata = GeminiMetadata(
                model=self._model, signature=signature, tool_response=part.tool_response
            )
            out.append(
                ToolResultDone(
                    id=self._server_id(tool),
                    name=_server_name(tool),
                    result=Raw(_json_text(tool.response).encode()),
                    provider_metadata=pack_metadata(metadata),
                )
            )

    def _server_id(self, tool: ServerTool) -> ToolCallId:
        # Without an id, call and result of one tool get the same id.
        return ToolCallId(tool.id or f"{self._call_prefix}-{_server_name(tool)}")


def _json_text(raw: OptionalJson) -> str:
    """The JSON text as sent; an empty object if it is missing or null."""
    text = "" if raw is UNSET else bytes(raw).decode("utf-8", "replace")
    return "{}" if text in ("", "null") else text


def _server_tool(raw: Raw) -> ServerTool | None:
    try:
        return decode_event(SERVER_TOOL, raw)
    except DECODE_ERRORS:
        return None


def _server_name(tool: ServerTool) -> str:
    """Google's search gets the name that web search has with all providers."""
    kind = tool.tool_type or "server_tool"
    return "web_search" if kind.startswith("GOOGLE_SEARCH") else kind.lower()
