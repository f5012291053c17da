"""Decode Gemini's stream into model events.

The answer is finished when the stream ends, not at the finish reason: usage and sources may follow
it, and some servers send a finish reason with every chunk.
"""

from typing import Final

from msgspec import UNSET, Raw

from chatd.domain.model.protocol import Finished, ModelEvent, StreamFailed, UsageReported
from chatd.domain.text import Json
from chatd.providers.faults import incomplete_fault, unreadable_fault
from chatd.providers.gemini import completion
from chatd.providers.gemini.answer import GeminiAnswerBuilder
from chatd.providers.gemini.wire import (
    CHUNK,
    Candidate,
    Chunk,
    PromptFeedback,
    UsageMetadata,
)
from chatd.providers.sse import DECODE_ERRORS, FramedDecoder, decode_event
from chatd.providers.tool_schema import ToolNames

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
            self._fail(completion.gemini_fault(chunk.error, body))
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
            self._usage = completion.merge_usage(self._usage, chunk.usage_metadata)
            out.append(UsageReported(usage=completion.convert_usage(self._usage)))
        if chunk.response_id:
            self._response_id = chunk.response_id
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason:
            self._blocked = chunk.prompt_feedback

    def _ending(self) -> Finished | StreamFailed:
        if self._blocked is not None and not self._answer.has_content:
            return self._finished("content-filter", completion.block_reason_text(self._blocked))
        word, last = self._reason, self._last
        if word is None or last is None:
            if not self._answer.has_calls:
                return StreamFailed(fault=incomplete_fault())
            return self._finished("tool-calls", None)
        why = completion.explain_finish(word, last.finish_message, last.safety_ratings)
        reason = completion.convert_finish_reason(word, called=self._answer.has_calls)
        is_malformed = completion.is_malformed_call(word) and not self._answer.has_calls
        if is_malformed or (reason in ("error", "other") and not self._answer.has_content):
            return completion.unusable_answer(word, why)
        return self._finished(reason, why)

    def _finished(self, reason: completion.FinishReason, why: str | None) -> Finished:
        metadata: Json = UNSET
        if self._answer.grounding is not UNSET:
            metadata = Raw(
                b'{"google":{"groundingMetadata":' + bytes(self._answer.grounding) + b"}}"
            )
        return Finished(
            reason=reason,
            usage=completion.convert_usage(self._usage),
            response_id=self._response_id,
            explanation=why,
            provider_metadata=metadata,
        )
