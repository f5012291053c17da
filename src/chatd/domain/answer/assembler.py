"""Assembles the events of one model call into live parts and one answer.

Parts are in the order in which their blocks were completed. Blocks still open at the end follow
in the order in which they started.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.answer.answer import Answer
from chatd.domain.answer.tool_calls import DEFAULT_STEP_LIMITS, kept_calls
from chatd.domain.chat.messages import Draft, TokenUsage, local_calls
from chatd.domain.chat.parts import (
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    validate_json,
)
from chatd.domain.chat.person_commands import is_persons_call
from chatd.domain.ids import ToolCallId
from chatd.domain.model.failures import ModelError, known_failure
from chatd.domain.model.protocol import (
    Finished,
    FinishReason,
    ModelEvent,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceFound,
    StreamFailed,
    StreamPing,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    ToolResultDone,
    UsageReported,
)
from chatd.domain.model.usage import (
    complete_usage,
    estimate_output_tokens,
    merge_usage,
    streamed_bytes,
    utf8_size,
)
from chatd.domain.text import (
    Json,
    decode_lenient,
    is_empty_json,
    replace_json_surrogates,
    replace_surrogates,
)

EMPTY_OBJECT: Final = Raw(b"{}")


class BlockBuilder:
    """Text, reasoning or the input of a call while it is being streamed."""

    __slots__ = ("began_at", "metadata", "pieces")

    def __init__(self, began_at: str | None) -> None:
        self.pieces: list[str] = []
        self.metadata: Json = UNSET
        self.began_at = began_at

    def set_metadata(self, metadata: Json) -> None:
        """A later event without metadata must not erase a signature."""
        if not is_empty_json(metadata):
            self.metadata = storable_metadata(metadata)

    @property
    def text(self) -> str:
        return replace_surrogates("".join(self.pieces))


class TextBuilder(BlockBuilder):
    def part(self, _ended_at: str | None) -> Part | None:
        if not self.pieces and self.metadata is UNSET:
            return None
        return TextPart(text=self.text, provider_metadata=self.metadata)


class ReasoningBuilder(BlockBuilder):
    def part(self, ended_at: str | None) -> Part | None:
        if not self.pieces and self.metadata is UNSET:
            return None
        return ReasoningPart(
            text=self.text,
            created_at=self.began_at,
            completed_at=ended_at,
            provider_metadata=self.metadata,
        )


class CallBuilder(BlockBuilder):
    __slots__ = ("call_id", "name", "provider_executed")

    def __init__(self, call_id: ToolCallId, start: ToolCallStart, began_at: str | None) -> None:
        super().__init__(began_at)
        self.call_id = call_id
        self.name = start.name
        self.provider_executed = start.provider_executed

    def part(self, ended_at: str | None) -> Part | None:
        """The call is incomplete: a missing input is not stored as an empty one."""
        args = storable_args(self.text)
        return ToolCallPart(
            tool_call_id=self.call_id,
            tool_name=self.name,
            args=args,
            args_text=args_text(args, self.text),
            provider_executed=self.provider_executed,
            created_at=ended_at,
        )


def storable_args(text: str) -> Json:
    """Arguments as sent; UNSET unless they are JSON that can be stored and read again."""
    try:
        return validate_json(replace_json_surrogates(text))
    except ValueError:
        return UNSET


def args_text(args: Json, text: str) -> str | None:
    """The model's own text, if `args` could not be made of it."""
    return replace_surrogates(text) if args is UNSET and text.strip() else None


def storable_metadata(raw: Json) -> Json:
    """A vendor's own JSON; UNSET unless it can be stored and read again."""
    return UNSET if raw is UNSET else storable_args(decode_lenient(bytes(raw)))


MAX_ANSWER_CHARS: Final = 32 * 1024 * 1024
"""Of one answer, with the vendor's own data. Ends the call of a provider that never ends its
stream."""
MAX_ANSWER_PARTS: Final = 10_000
"""Of one answer: texts, reasoning blocks, calls, results and sources, dropped calls included. An
answer with more of them ends in an error of kind `answer_too_large`."""
_EVENT_OVERHEAD_CHARS: Final = 64

CUT_REASONS: Final[frozenset[FinishReason]] = frozenset(
    {"length", "content-filter", "refusal", "error"}
)
"""The provider ended the answer, not the model. Arguments that happen to be valid JSON, such as
none at all, may lack the rest."""


class Assembler:
    """One attempt. Every attempt gets a new assembler, so nothing of a failed one remains.

    `used_ids` are the ids of the chat's earlier calls. Some vendors number calls from 0 in every
    answer, but results and running commands are stored by call id. `expected` estimates the input,
    for a provider that does not tell it. Of an answer that makes more than `max_calls` calls, twice
    as many are kept; the others are counted, and neither shown nor stored. The answer begins with
    the text that it `continues`, which another call was paid for.
    """

    def __init__(
        self,
        used_ids: Iterable[ToolCallId] = (),
        *,
        expected: TokenUsage | None = None,
        max_calls: int = DEFAULT_STEP_LIMITS.calls,
        continues: str | None = None,
    ) -> None:
        self._open: dict[tuple[str, str], TextBuilder | ReasoningBuilder | CallBuilder] = {}
        self._done: list[Part] = [TextPart(text=continues)] if continues else []
        self._finished: Finished | None = None
        self._at: str | None = None
        self._used_ids = set(used_ids)
        self._id_counts: dict[str, int] = {}
        self._max_kept_calls = kept_calls(max_calls)
        self._calls = 0
        self._dropped: set[ToolCallId] = set()
        self._parts = 0
        self._chars = 0
        self._expected = expected or TokenUsage()
        self._streamed_bytes = 0
        self.told = TokenUsage()

    def feed(self, event: ModelEvent, at: str | None = None) -> tuple[Part, ...]:
        """Add an event that arrived at time `at`, which deltas may omit. Returns the live parts to
        show for it."""
        parts = self._feed(event, at)
        for part in parts:
            self._streamed_bytes += streamed_bytes(part)
        return parts

    @property
    def usage(self) -> TokenUsage:
        """The usage so far, with estimates for what the provider has not told."""
        return complete_usage(
            self.told,
            is_final=self._finished is not None,
            expected=self._expected,
            output_tokens=estimate_output_tokens(self._streamed_bytes),
        )

    def _feed(self, event: ModelEvent, at: str | None) -> tuple[Part, ...]:
        self._at = at or self._at
        match event:
            case TextStart() | TextDelta() | TextEnd():
                return self._text(event)
            case ReasoningStart() | ReasoningDelta() | ReasoningEnd():
                return self._reasoning(event)
            case ToolCallStart() | ToolCallDelta() | ToolCallDone():
                return self._call(event)
            case ToolResultDone():
                self._count_part()
                self._grow(_size(event.result) + _size(event.provider_metadata))
                return self._add(_provider_result(event, at))
            case SourceFound():
                self._count_part()
                self._grow(len(event.url) + len(event.title or ""))
                return self._add(SourcePart(url=event.url, source_id=event.id, title=event.title))
            case UsageReported():
                self.told = merge_usage(self.told, event.usage)
                return ()
            case Finished():
                self._finished = event
                self.told = merge_usage(self.told, event.usage)
                return ()
            case StreamPing() | StreamFailed():
                return ()

    def finished(self) -> Answer:
        """The answer after the stream has ended well. Blocks still open count as complete, unless
        the provider cut the answer off."""
        content = self._content()
        if self._finished is not None and self._finished.reason in CUT_REASONS:
            content = tuple(mark_cut(part) for part in content)
        return Answer(
            content=content,
            finished=self._finished,
            usage=self.usage,
            calls_made=self._calls,
        )

    def interrupted(self, at: str | None = None) -> Answer:
        """The partial answer so far. Its calls, also incomplete ones, still need a result. Those
        whose arguments were being written are marked as cut."""
        self._at = at or self._at
        return Answer(content=self._content(is_cut=True), usage=self.usage, calls_made=self._calls)

    def _count_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_ANSWER_PARTS:
            raise _too_large(f"The answer has more than {MAX_ANSWER_PARTS} parts.")

    def _grow(self, chars: int) -> None:
        self._chars += chars + _EVENT_OVERHEAD_CHARS
        if self._chars > MAX_ANSWER_CHARS:
            raise _too_large(f"The answer is longer than {MAX_ANSWER_CHARS} characters.")

    def _content(self, *, is_cut: bool = False) -> tuple[Part, ...]:
        parts = (block.part(self._at) for block in self._open.values())
        begun = [part for part in parts if part is not None]
        return merge_text([*self._done, *(map(mark_cut, begun) if is_cut else begun)])

    def _add(self, part: Part) -> tuple[Part, ...]:
        self._done.append(part)
        return (part,)

    def _close(self, key: tuple[str, str], metadata: Json) -> None:
        block = self._open.pop(key, None)
        if block is None:
            return
        self._set_metadata(block, metadata)
        part = block.part(self._at)
        if part is not None:
            self._done.append(part)

    def _set_metadata(self, block: BlockBuilder, metadata: Json) -> None:
        if metadata is not UNSET:
            self._grow(_size(metadata))
            block.set_metadata(metadata)

    def _text(self, event: TextStart | TextDelta | TextEnd) -> tuple[Part, ...]:
        key = ("text", event.id)
        if isinstance(event, TextEnd):
            self._close(key, event.provider_metadata)
            return ()
        block = self._open.get(key)
        if block is None:
            self._count_part()
            block = self._open[key] = TextBuilder(self._at)
        if isinstance(event, TextStart) or not event.delta:
            return ()
        self._grow(len(event.delta))
        block.pieces.append(event.delta)
        return (TextPart(text=replace_surrogates(event.delta)),)

    def _reasoning(self, event: ReasoningStart | ReasoningDelta | ReasoningEnd) -> tuple[Part, ...]:
        key = ("reasoning", event.id)
        if isinstance(event, ReasoningEnd):
            self._close(key, event.provider_metadata)
            return ()
        block = self._open.get(key)
        if block is None:
            self._count_part()
            block = self._open[key] = ReasoningBuilder(self._at)
        self._set_metadata(block, event.provider_metadata)
        text = event.text if isinstance(event, ReasoningStart) else event.delta
        if not text:
            return ()
        self._grow(len(text))
        block.pieces.append(text)
        return (ReasoningPart(text=replace_surrogates(text)),)

    def _call(self, event: ToolCallStart | ToolCallDelta | ToolCallDone) -> tuple[Part, ...]:
        key = ("call", event.id)
        block = self._open.get(key)
        if event.id in self._dropped or (block is None and self._drops_new_call(event)):
            return self._drop_call(event)
        if isinstance(event, ToolCallStart):
            if block is None:
                self._open[key] = CallBuilder(self._unique_id(event), event, self._at)
            return ()
        if isinstance(event, ToolCallDone):
            # The complete call is authoritative; earlier deltas are discarded.
            self._open.pop(key, None)
            self._grow(len(event.input) + _size(event.provider_metadata))
            if block is None or not block.pieces:
                self._streamed_bytes += utf8_size(event.input)
            call_id = block.call_id if isinstance(block, CallBuilder) else self._unique_id(event)
            return self._add(_complete_call(event, call_id, self._at))
        if not isinstance(block, CallBuilder) or not event.delta:
            return ()
        self._grow(len(event.delta))
        block.pieces.append(event.delta)
        return (
            ToolCallPart(
                tool_call_id=block.call_id,
                tool_name=block.name,
                args_delta=replace_surrogates(event.delta),
                provider_executed=block.provider_executed,
            ),
        )

    def _drops_new_call(self, event: ToolCallStart | ToolCallDelta | ToolCallDone) -> bool:
        """Count the call that this event begins. The provider's own calls run at the provider."""
        if isinstance(event, ToolCallDelta):
            return False
        self._count_part()
        if event.provider_executed:
            return False
        self._calls += 1
        return self._calls > self._max_kept_calls

    def _drop_call(self, event: ToolCallStart | ToolCallDelta | ToolCallDone) -> tuple[Part, ...]:
        """The model wrote it, so it counts for the limits and for the usage."""
        match event:
            case ToolCallStart():
                self._dropped.add(event.id)
            case ToolCallDelta():
                self._grow(len(event.delta))
                self._streamed_bytes += utf8_size(event.delta)
            case ToolCallDone():
                self._grow(len(event.input))
                self._dropped.discard(event.id)
        return ()

    def _unique_id(self, call: ToolCallStart | ToolCallDone) -> ToolCallId:
        """An id that no other call of the chat has. Provider-executed calls keep their id."""
        given = replace_surrogates(call.id) or "call"
        if call.provider_executed:
            return ToolCallId(given)
        if is_persons_call(given):  # A provider chooses ids; no tool policy holds for a person's.
            given = f"call-{given}"
        unique, count = given, self._id_counts.get(given, 1)
        while unique in self._used_ids:
            count += 1
            unique = f"{given}-{count}"
        self._id_counts[given] = count
        self._used_ids.add(ToolCallId(unique))
        return ToolCallId(unique)


def _too_large(detail: str) -> ModelError:
    return ModelError(known_failure("answer_too_large", "", detail=detail))


def _size(raw: Json) -> int:
    return 0 if raw is UNSET else memoryview(raw).nbytes


def used_call_ids(history: Iterable[Draft]) -> set[ToolCallId]:
    return {call.tool_call_id for row in history for call in local_calls(row.content)}


def _complete_call(event: ToolCallDone, call_id: ToolCallId, at: str | None) -> ToolCallPart:
    """Models often send no input at all for a tool without parameters."""
    args = storable_args(event.input) if event.input.strip() else EMPTY_OBJECT
    return ToolCallPart(
        tool_call_id=call_id,
        tool_name=event.name,
        args=args,
        args_text=args_text(args, event.input),
        provider_executed=event.provider_executed,
        created_at=at,
        provider_metadata=storable_metadata(event.provider_metadata),
    )


def mark_cut(part: Part) -> Part:
    if not isinstance(part, ToolCallPart) or part.provider_executed:
        return part
    return msgspec.structs.replace(part, cut=True)


def _provider_result(event: ToolResultDone, at: str | None) -> ToolResultPart:
    return ToolResultPart(
        tool_call_id=event.id,
        tool_name=event.name,
        result=storable_metadata(event.result),
        is_error=event.is_error,
        provider_executed=True,
        created_at=at,
        provider_metadata=storable_metadata(event.provider_metadata),
    )


def merge_text(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Merge adjacent plain text parts, so that a viewer's deltas and history agree."""
    out: list[Part] = []
    for is_plain, run in groupby(parts, key=_plain):
        group = list(run)
        if is_plain and len(group) > 1:
            whole = "".join(part.text for part in group if isinstance(part, TextPart))
            out.append(TextPart(text=whole))
        else:
            out.extend(group)
    return tuple(out)


def _plain(part: Part) -> bool:
    return isinstance(part, TextPart) and part.provider_metadata is UNSET
