"""Decodes Gemini's stream into model events.

Text and thoughts arrive in pieces without a start or an end: a run lasts until another kind of part
arrives. A call arrives whole. The answer is finished when the stream ends, not at the finish
reason: usage and sources may follow it, and some servers send a finish reason with every chunk.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, structs

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    Finished,
    FinishReason,
    ModelEvent,
    ProviderFault,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceFound,
    StreamFailed,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDone,
    ToolCallStart,
    ToolResultDone,
    UsageReported,
)
from chatd.domain.text import Json
from chatd.providers.faults import incomplete_fault, unreadable_fault
from chatd.providers.gemini.gemini_wire import (
    CHUNK,
    ERROR_BODY,
    GROUNDING,
    SERVER_TOOL,
    Candidate,
    Chunk,
    Error,
    ErrorBody,
    FunctionCall,
    GeminiMetadata,
    OptionalJson,
    Part,
    PromptFeedback,
    SafetyRating,
    ServerTool,
    SignedSpan,
    UsageMetadata,
    pack_metadata,
)
from chatd.providers.sse import DECODE_ERRORS, FramedDecoder, decode_event
from chatd.providers.tool_schema import ToolNames

# The parts of an answer

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


# Finish reasons

_REASONS: Final[dict[str, FinishReason]] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content-filter",
    "RECITATION": "content-filter",
    "LANGUAGE": "content-filter",
    "BLOCKLIST": "content-filter",
    "PROHIBITED_CONTENT": "content-filter",
    "SPII": "content-filter",
    "IMAGE_SAFETY": "content-filter",
    "IMAGE_PROHIBITED_CONTENT": "content-filter",
    "IMAGE_RECITATION": "content-filter",
    "MODEL_ARMOR": "content-filter",
    "JAILBREAK": "content-filter",
    "OTHER": "other",
    "FINISH_REASON_UNSPECIFIED": "unknown",
    "MALFORMED_FUNCTION_CALL": "error",
    "MALFORMED_RESPONSE": "error",
    "UNEXPECTED_TOOL_CALL": "error",
    "TOO_MANY_TOOL_CALLS": "error",
}

_MALFORMED_CALLS: Final = frozenset(
    {"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"}
)

_EXPLANATIONS: Final[dict[str, str]] = {
    "SAFETY": "The answer was stopped by a safety filter",
    "RECITATION": "The answer was stopped because it repeats a known source",
    "LANGUAGE": "The answer was stopped because its language is not supported",
    "BLOCKLIST": "The answer was stopped because it has a forbidden term in it",
    "PROHIBITED_CONTENT": "The answer was stopped because its content is prohibited",
    "SPII": "The answer was stopped because it may reveal personal information",
    "MALFORMED_FUNCTION_CALL": "The model made a tool call that cannot be read",
    "MALFORMED_RESPONSE": "The model made an answer that cannot be read",
    "UNEXPECTED_TOOL_CALL": "The model called a tool that it was not given",
    "TOO_MANY_TOOL_CALLS": "The model called too many tools in a row",
}


def convert_finish_reason(word: str, *, called: bool) -> FinishReason:
    """`called`: chatd must answer a call. An unknown reason is `other`."""
    reason = _REASONS.get(word.upper(), "other")
    return "tool-calls" if called and reason in ("stop", "unknown") else reason


def explain_finish(
    word: str, message: str | None, ratings: Iterable[SafetyRating] | None
) -> str | None:
    """Why the answer stopped, for users; None after a normal end."""
    if _REASONS.get(word.upper(), "other") in ("stop", "length"):
        return None
    why = message or _EXPLANATIONS.get(word.upper()) or f"The answer was stopped: {word}"
    return _with_categories(why, ratings)


def block_reason_text(feedback: PromptFeedback) -> str:
    why = feedback.block_reason_message or (
        f"The prompt was refused: {feedback.block_reason or 'no reason given'}"
    )
    return _with_categories(why, feedback.safety_ratings)


def _with_categories(why: str, ratings: Iterable[SafetyRating] | None) -> str:
    names = [
        rating.category.removeprefix("HARM_CATEGORY_").replace("_", " ").lower()
        for rating in ratings or ()
        if rating.blocked and rating.category
    ]
    why = why.strip().rstrip(".")
    return f"{why} ({', '.join(names)})." if names else f"{why}."


def is_malformed_call(word: str) -> bool:
    """The model failed to write a tool call. The text before it is not an answer, and a retry
    mostly succeeds."""
    return word.upper() in _MALFORMED_CALLS


def unusable_answer(word: str, why: str | None) -> StreamFailed:
    """The model ended without usable content."""
    return StreamFailed(
        fault=ProviderFault(message=why or f"the answer ended with {word}", type=word.lower())
    )


# Usage


def merge_usage(old: UsageMetadata, new: UsageMetadata) -> UsageMetadata:
    """Each chunk has the counts so far and omits unchanged ones."""
    return UsageMetadata(
        prompt_token_count=_newer(old.prompt_token_count, new.prompt_token_count),
        cached_content_token_count=_newer(
            old.cached_content_token_count, new.cached_content_token_count
        ),
        candidates_token_count=_newer(old.candidates_token_count, new.candidates_token_count),
        thoughts_token_count=_newer(old.thoughts_token_count, new.thoughts_token_count),
        tool_use_prompt_token_count=_newer(
            old.tool_use_prompt_token_count, new.tool_use_prompt_token_count
        ),
        total_token_count=_newer(old.total_token_count, new.total_token_count),
    )


def _newer(old: int | None, new: int | None) -> int | None:
    return old if new is None else new


def convert_usage(counts: UsageMetadata) -> TokenUsage:
    """Google's prompt count includes cached tokens. Thoughts are not in the output count, and input
    of provider-executed tools is not in the prompt count."""
    cached = _count(counts.cached_content_token_count)
    prompt = max(_count(counts.prompt_token_count), cached)
    tool_input = _count(counts.tool_use_prompt_token_count)
    read = prompt - cached + tool_input
    thoughts = _count(counts.thoughts_token_count)
    output = _count(counts.candidates_token_count) + thoughts
    return TokenUsage(
        input_tokens=read,
        output_tokens=output,
        total_tokens=_count(counts.total_token_count) or read + cached + output,
        reasoning_tokens=thoughts,
        cache_read_tokens=cached,
        # Search results are read once and do not stay in the context.
        context_tokens=prompt if tool_input else None,
    )


def _count(value: int | None) -> int:
    return max(0, value or 0)


# Errors

_DELAY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")


def gemini_fault(error: Error, body: str | None = None) -> ProviderFault:
    """The retry delay and the mark of an invalid key are in the error's details."""
    details = error.details or ()
    reasons = [detail.reason for detail in details if detail.reason]
    key = next((reason for reason in reasons if reason.startswith("API_KEY_")), None)
    return ProviderFault(
        message=error.message or f"status {error.code or error.status or 'unknown'}",
        status_code=error.code if error.code and 100 <= error.code < 600 else None,
        type=key or error.status,
        body=body,
        retry_after_s=_retry_after(error),
    )


def _retry_after(error: Error) -> float | None:
    for detail in error.details or ():
        if match := _DELAY.fullmatch(detail.retry_delay or ""):
            return float(match[1])
    return None


def refine_fault(fault: ProviderFault) -> ProviderFault:
    """Add the facts of Google's error body to the fault of a rejected request."""
    if fault.body is None or fault.status_code is None:
        return fault
    error = _error_in(fault.body)
    if error is None:
        return fault
    found = gemini_fault(error)
    return structs.replace(
        fault,
        message=found.message if error.message else fault.message,
        type=found.type or fault.type,
        retry_after_s=fault.retry_after_s if found.retry_after_s is None else found.retry_after_s,
        body=_unwrapped(fault.body),
    )


def _error_in(body: str) -> Error | None:
    try:
        decoded = ERROR_BODY.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if isinstance(decoded, ErrorBody):
        return decoded.error
    return decoded[0].error if decoded else None


def _unwrapped(body: str) -> str:
    text = body.strip()
    return text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text


# The decoder

_MAX_BODY_BYTES: Final = 4096


class GeminiDecoder(FramedDecoder):
    """Decodes one answer. The parameters are those of `GeminiAnswerBuilder`."""

    def __init__(self, *, model: str, names: ToolNames, call_prefix: str) -> None:
        super().__init__()
        self._answer = GeminiAnswerBuilder(model=model, names=names, call_prefix=call_prefix)
        self._reason: str | None = None
        self._last: Candidate | None = None
        self._blocked: PromptFeedback | None = None
        self._usage = UsageMetadata()
        self._response_id: str | None = None

    def _decode(self, name: bytes, data: bytes, *, is_last: bool = False) -> None:
        del name  # Gemini does not name its events.
        try:
            chunk = decode_event(CHUNK, data)
        except DECODE_ERRORS:
            # Some gateways end the stream with OpenAI's marker.
            if not is_last and data.strip() not in (b"", b"[DONE]"):
                self._fail(unreadable_fault(data))
            return
        if chunk.error is not None:
            body = data[:_MAX_BODY_BYTES].decode("utf-8", "replace")
            self._fail(gemini_fault(chunk.error, body))
            return
        self._chunk(chunk, self._out)

    def _end(self) -> None:
        self._answer.close(self._out)
        self._out.append(self._ending())

    def _chunk(self, chunk: Chunk, out: list[ModelEvent]) -> None:
        if chunk.candidates:
            # The request asks for one candidate; others are alternative answers.
            candidate = chunk.candidates[0]
            if candidate.content is not None:
                for part in candidate.content.parts or ():
                    self._answer.add(part, out)
            if candidate.finish_reason:
                self._reason = candidate.finish_reason
                self._last = candidate
            if candidate.grounding_metadata is not UNSET:
                self._answer.add_grounding(candidate.grounding_metadata)
        if chunk.usage_metadata is not None:
            self._usage = merge_usage(self._usage, chunk.usage_metadata)
            out.append(UsageReported(usage=convert_usage(self._usage)))
        if chunk.response_id:
            self._response_id = chunk.response_id
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason:
            self._blocked = chunk.prompt_feedback

    def _ending(self) -> Finished | StreamFailed:
        if self._blocked is not None and not self._answer.has_content:
            return self._finished("content-filter", block_reason_text(self._blocked))
        word, last = self._reason, self._last
        if word is None or last is None:
            if not self._answer.has_calls:
                return StreamFailed(fault=incomplete_fault())
            return self._finished("tool-calls", None)
        why = explain_finish(word, last.finish_message, last.safety_ratings)
        reason = convert_finish_reason(word, called=self._answer.has_calls)
        is_malformed = is_malformed_call(word) and not self._answer.has_calls
        if is_malformed or (reason in ("error", "other") and not self._answer.has_content):
            return unusable_answer(word, why)
        return self._finished(reason, why)

    def _finished(self, reason: FinishReason, why: str | None) -> Finished:
        metadata: Json = UNSET
        if self._answer.grounding is not UNSET:
            metadata = Raw(
                b'{"google":{"groundingMetadata":' + bytes(self._answer.grounding) + b"}}"
            )
        return Finished(
            reason=reason,
            usage=convert_usage(self._usage),
            response_id=self._response_id,
            explanation=why,
            provider_metadata=metadata,
        )
