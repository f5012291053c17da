"""From Gemini's stream to events.

Owns the framing and the end; what the parts of an answer mean is the business
of `answer`. An answer is complete once a reason to finish has been seen, but is
finished only when the stream ends: counts and sources may follow, and there
are servers that give a reason with every piece.
"""

from typing import Final

from msgspec import UNSET, Raw

from chatd.domain.chat.parts import Json
from chatd.domain.model.protocol import Finished, ModelEvent, StreamFailed
from chatd.providers.faults import garbled, incomplete
from chatd.providers.gemini import finish
from chatd.providers.gemini.answer import Answer
from chatd.providers.gemini.wire import (
    CHUNK,
    Candidate,
    Chunk,
    PromptFeedback,
    UsageMetadata,
)
from chatd.providers.reading import UNREADABLE, read
from chatd.providers.schema import ToolNames
from chatd.providers.sse import EventTooLong, SseParser

_MAX_BODY: Final = 4096


class Decoder:
    """One answer. What it is given is for `Answer`, which says what it means."""

    def __init__(self, *, model: str, names: ToolNames, call_prefix: str) -> None:
        self._sse = SseParser()
        self._answer = Answer(model=model, names=names, call_prefix=call_prefix)
        self._reason: str | None = None
        self._last: Candidate | None = None
        self._blocked: PromptFeedback | None = None
        self._usage = UsageMetadata()
        self._response_id: str | None = None
        self._failed = False

    @property
    def done(self) -> bool:
        return self._failed

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        out: list[ModelEvent] = []
        try:
            events = self._sse.feed(chunk)
        except EventTooLong as error:
            return self._fail(StreamFailed(fault=incomplete(str(error))))
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
        self._answer.end(out)
        out.append(self._ending())
        return out

    def _fail(self, failed: StreamFailed) -> list[ModelEvent]:
        self._failed = True
        return [failed]

    def _event(self, data: bytes, out: list[ModelEvent], *, cut: bool = False) -> None:
        try:
            chunk = read(CHUNK, data)
        except UNREADABLE:
            # Some gateways end with OpenAI's marker.
            if not cut and data.strip() not in (b"", b"[DONE]"):
                out.extend(self._fail(StreamFailed(fault=garbled(data))))
            return
        if chunk.error is not None:
            body = data[:_MAX_BODY].decode("utf-8", "replace")
            out.extend(self._fail(StreamFailed(fault=finish.error_fault(chunk.error, body))))
            return
        self._chunk(chunk, out)

    def _chunk(self, chunk: Chunk, out: list[ModelEvent]) -> None:
        if chunk.candidates:
            # We ask for one candidate; others would be other answers to the same question.
            candidate = chunk.candidates[0]
            if candidate.content is not None:
                for part in candidate.content.parts or ():
                    self._answer.add(part, out)
            if candidate.finish_reason:
                self._reason = candidate.finish_reason
                self._last = candidate
            if candidate.grounding_metadata is not UNSET:
                self._answer.note_grounding(candidate.grounding_metadata)
        if chunk.usage_metadata is not None:
            self._usage = finish.merged_usage(self._usage, chunk.usage_metadata)
        if chunk.response_id:
            self._response_id = chunk.response_id
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason:
            self._blocked = chunk.prompt_feedback

    # The end

    def _ending(self) -> Finished | StreamFailed:
        if self._blocked is not None and not self._answer.spoke:
            return self._finished("content-filter", finish.blocked(self._blocked))
        word, last = self._reason, self._last
        if word is None or last is None:
            if not self._answer.called:
                return StreamFailed(fault=incomplete())
            return self._finished("tool-calls", None)
        why = finish.explanation(word, last.finish_message, last.safety_ratings)
        reason = finish.finish_reason(word, called=self._answer.called)
        is_slip = finish.is_slip(word) and not self._answer.called
        if is_slip or (reason in ("error", "other") and not self._answer.spoke):
            return finish.broken_answer(word, why)
        return self._finished(reason, why)

    def _finished(self, reason: finish.FinishReason, why: str | None) -> Finished:
        metadata: Json = UNSET
        if self._answer.grounding is not UNSET:
            metadata = Raw(
                b'{"google":{"groundingMetadata":' + bytes(self._answer.grounding) + b"}}"
            )
        return Finished(
            reason=reason,
            usage=finish.usage_of(self._usage),
            response_id=self._response_id,
            explanation=why,
            provider_metadata=metadata,
        )
