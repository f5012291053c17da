"""The chunks of a completion, as our events.

Owns the framing and the end: a finish reason is the server's last word, and
whether `[DONE]` follows or the stream just closes does not matter. What a
chunk adds to the answer is the business of `answer`.
"""

from typing import Final

from chatd.domain.model.protocol import Finished, ModelEvent, ProviderFault, StreamFailed
from chatd.providers.faults import garbled, incomplete
from chatd.providers.openai_chat import wire
from chatd.providers.openai_chat.answer import Answer
from chatd.providers.openai_chat.finish import (
    chunk_fault,
    failed_finish,
    finish_reason,
    said_fault,
    usage_of,
)
from chatd.providers.openai_chat.wire import Chunk
from chatd.providers.reading import UNREADABLE, read
from chatd.providers.sse import EventTooLong, SseParser

_DONE: Final = b"[DONE]"
_NO_ERROR: Final = (None, False, "")


class Decoder:
    """One completion: the first choice of it, for we never ask for more."""

    def __init__(self, answer: Answer) -> None:
        self.done = False
        self._sse = SseParser()
        self._answer = answer
        self._out = answer.out
        self._id: str | None = None
        self._reason: str | None = None
        self._usage: wire.Usage | None = None

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        if self.done:
            return []
        try:
            for name, data in self._sse.feed(chunk):
                self._event(name, data)
        except EventTooLong as error:
            self._fail(incomplete(str(error)))
        return self._taken()

    def close(self) -> list[ModelEvent]:
        if not self.done:
            for name, data in self._sse.end():
                self._event(name, data, last=True)
            self._finish()
        return self._taken()

    def _taken(self) -> list[ModelEvent]:
        out = self._out.copy()
        self._out.clear()
        return out

    def _event(self, name: bytes, data: bytes, *, last: bool = False) -> None:
        if self.done:
            return
        if data[:6] == _DONE:
            self._finish()
            return
        try:
            chunk = read(wire.CHUNK, data)
            if chunk.error not in _NO_ERROR or chunk.object == "error" or name == b"error":
                self._fail(chunk_fault(chunk, data))
            else:
                self._chunk(chunk, data)
        except UNREADABLE:
            if not last:
                self._fail(garbled(data))

    def _chunk(self, chunk: Chunk, data: bytes) -> None:
        if self._id is None and chunk.id:
            self._id = chunk.id
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            if choice.index != 0:
                continue
            if choice.error not in _NO_ERROR:
                self._fail(said_fault(choice.error, data))
                return
            if choice.usage is not None:
                self._usage = choice.usage
            if choice.delta is not None:
                self._answer.add(choice.delta)
            if choice.finish_reason:
                self._ended(choice.finish_reason)

    def _ended(self, word: str) -> None:
        self._reason = word
        if (fault := failed_finish(word)) is not None:
            self._fail(fault)

    def _finish(self) -> None:
        if self.done:
            return
        if self._reason is None:
            self._fail(incomplete())
            return
        self.done = True
        self._answer.close()
        refusal = self._answer.refusal
        reason = finish_reason(
            self._reason, called=self._answer.called, refused=refusal is not None
        )
        self._out.append(
            Finished(
                reason=reason,
                usage=usage_of(self._usage or wire.Usage()),
                response_id=self._id,
                explanation=refusal if reason == "content-filter" else None,
            )
        )

    def _fail(self, fault: ProviderFault) -> None:
        if not self.done:
            self.done = True
            self._out.append(StreamFailed(fault=fault))
