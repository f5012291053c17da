"""From Gemini's stream to events.

An answer is a run of parts. Text and thoughts come in pieces, a call comes
whole. The answer is complete once a reason to finish has been seen, but is
finished only when the stream ends: counts and sources may follow, and there
are servers that give a reason with every piece.
"""

from typing import Final

from msgspec import UNSET, Raw

from chatd.domain.ids import ToolCallId
from chatd.domain.model import (
    CallDone,
    CallStart,
    Failed,
    Finished,
    ModelEvent,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResultDone,
    SourceFound,
    TextDelta,
    TextEnd,
    TextStart,
)
from chatd.domain.parts import Json
from chatd.providers.faults import garbled, incomplete
from chatd.providers.gemini import finish
from chatd.providers.gemini.wire import (
    CHUNK,
    GROUNDING,
    SERVER_TOOL,
    Candidate,
    Chunk,
    FunctionCall,
    Mark,
    Maybe,
    Part,
    PromptFeedback,
    ServerTool,
    SignedSpan,
    UsageMetadata,
    as_metadata,
)
from chatd.providers.reading import UNREADABLE, read
from chatd.providers.schema import ToolNames
from chatd.providers.sse import EventTooLong, SseParser

MAX_SOURCES: Final = 200


class _Run:
    """Text or thoughts while they come."""

    __slots__ = ("id", "length", "spans", "thought")

    def __init__(self, run_id: str, *, thought: bool) -> None:
        self.id = run_id
        self.thought = thought
        self.length = 0
        self.spans: list[SignedSpan] = []


class Decoder:
    """One answer. `call_prefix` begins the ids of calls that come without one: it must differ
    from request to request, and be the same for the same request."""

    def __init__(self, *, model: str, names: ToolNames, call_prefix: str) -> None:
        self._model = model
        self._names = names
        self._call_prefix = call_prefix
        self._sse = SseParser()
        self._run: _Run | None = None
        self._runs = 0
        self._ids: set[str] = set()
        self._calls = 0
        self._local_calls = 0
        self._spoke = False
        self._reason: str | None = None
        self._last: Candidate | None = None
        self._blocked: PromptFeedback | None = None
        self._usage = UsageMetadata()
        self._response_id: str | None = None
        self._grounding: Maybe = UNSET
        self._sources: dict[str, SourceFound] = {}
        self._failed = False

    @property
    def done(self) -> bool:
        return self._failed

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        out: list[ModelEvent] = []
        try:
            events = self._sse.feed(chunk)
        except EventTooLong as error:
            return self._fail(Failed(fault=incomplete(str(error))))
        for _, data in events:
            if self._failed:
                break
            self._event(data, out)
        return out

    def close(self) -> list[ModelEvent]:
        if self._failed:
            return []
        out: list[ModelEvent] = []
        # A server may leave out the blank line after its last event.
        for _, data in self._sse.end():
            self._event(data, out, cut=True)
        if self._failed:
            return out
        self._end_run(out)
        out.extend(self._sources.values())
        out.append(self._ending())
        return out

    def _fail(self, failed: Failed) -> list[ModelEvent]:
        self._failed = True
        return [failed]

    def _event(self, data: bytes, out: list[ModelEvent], *, cut: bool = False) -> None:
        try:
            chunk = read(CHUNK, data)
        except UNREADABLE:
            # Some gateways end with OpenAI's marker.
            if not cut and data.strip() not in (b"", b"[DONE]"):
                out.extend(self._fail(Failed(fault=garbled(data))))
            return
        if chunk.error is not None:
            body = data.decode("utf-8", "replace")
            out.extend(self._fail(Failed(fault=finish.error_fault(chunk.error, body))))
            return
        self._chunk(chunk, out)

    def _chunk(self, chunk: Chunk, out: list[ModelEvent]) -> None:
        if chunk.candidates:
            # We ask for one candidate; others would be other answers to the same question.
            candidate = chunk.candidates[0]
            if candidate.content is not None:
                for part in candidate.content.parts or ():
                    self._part(part, out)
            if candidate.finish_reason:
                self._reason = candidate.finish_reason
                self._last = candidate
            if candidate.grounding_metadata is not UNSET:
                self._note_grounding(candidate.grounding_metadata)
        if chunk.usage_metadata is not None:
            self._usage = finish.merged_usage(self._usage, chunk.usage_metadata)
        if chunk.response_id:
            self._response_id = chunk.response_id
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason:
            self._blocked = chunk.prompt_feedback

    def _part(self, part: Part, out: list[ModelEvent]) -> None:
        if part.function_call is not None:
            self._end_run(out)
            self._call(part.function_call, part.thought_signature, out)
        elif part.tool_call is not UNSET or part.tool_response is not UNSET:
            self._end_run(out)
            self._server_tool(part, out)
        elif part.text is not None or part.thought_signature is not None:
            self._text(part, out)

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
            self._spoke = True
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
        self._local_calls += 1
        self._spoke = True
        out.append(CallStart(id=call_id, name=name))
        out.append(
            CallDone(
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
            out.append(CallStart(id=call_id, name=name, provider_executed=True))
            out.append(
                CallDone(
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
                ResultDone(
                    id=self._server_id(tool),
                    name=_server_name(tool),
                    result=Raw(_json_text(tool.response).encode()),
                    provider_metadata=as_metadata(mark),
                )
            )

    def _server_id(self, tool: ServerTool) -> ToolCallId:
        # A result names its call. Without a name, it answers the call before it.
        return ToolCallId(tool.id or f"{self._call_prefix}-{_server_name(tool)}")

    # The end

    def _note_grounding(self, raw: Raw) -> None:
        try:
            found = read(GROUNDING, raw)
        except UNREADABLE:
            return
        self._grounding = raw.copy()
        for chunk in found.grounding_chunks or ():
            page = chunk.web or chunk.retrieved_context or chunk.maps
            if page is None or not page.uri or page.uri in self._sources:
                continue
            if len(self._sources) < MAX_SOURCES:
                self._sources[page.uri] = SourceFound(url=page.uri, title=page.title or None)

    def _ending(self) -> Finished | Failed:
        if self._blocked is not None and not self._spoke:
            return self._finished("content-filter", finish.blocked(self._blocked))
        word, last = self._reason, self._last
        if word is None or last is None:
            if not self._local_calls:
                return Failed(fault=incomplete())
            return self._finished("tool-calls", None)
        why = finish.explanation(word, last.finish_message, last.safety_ratings)
        reason = finish.finish_reason(word, called=self._local_calls > 0)
        is_slip = finish.is_slip(word) and not self._local_calls
        if is_slip or (reason in ("error", "other") and not self._spoke):
            return finish.broken_answer(word, why)
        return self._finished(reason, why)

    def _finished(self, reason: finish.FinishReason, why: str | None) -> Finished:
        metadata: Json = UNSET
        if self._grounding is not UNSET:
            metadata = Raw(b'{"google":{"groundingMetadata":' + bytes(self._grounding) + b"}}")
        return Finished(
            reason=reason,
            usage=finish.usage_of(self._usage),
            response_id=self._response_id,
            explanation=why,
            provider_metadata=metadata,
        )


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
