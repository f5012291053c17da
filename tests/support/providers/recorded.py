"""The recorded streams of each API, with the decoder that reads them."""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.answer.assembler import Answer
from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    Finished,
    ModelEvent,
    ProviderFault,
    StreamFailed,
    UsageReported,
)
from chatd.providers.anthropic.anthropic_decoder import AnthropicDecoder
from chatd.providers.gemini.gemini_decoder import GeminiDecoder
from chatd.providers.openai.chat_answer import GEMINI_TAGS, ChatAnswerBuilder
from chatd.providers.openai.chat_decoder import ChatDecoder
from chatd.providers.openai.responses_decoder import ResponsesDecoder
from chatd.providers.sse import FramedDecoder
from chatd.providers.tool_schema import ToolNames
from tests.support.providers import anthropic, gemini, openai_chat, openai_responses
from tests.support.providers.stream_reader import answer_of, read_whole

ORIGIN = "my server"
GEMINI_MODEL = "gemini-3-flash-preview"
_T = TypeVar("_T")


class RecordedApi:
    def __init__(
        self, stream: Callable[[str], bytes], names: list[str], new: Callable[[str], FramedDecoder]
    ) -> None:
        self.stream = stream
        self.names = names
        self._new = new

    def new_decoder(self, name: str = "") -> FramedDecoder:
        return self._new(name)

    def decode(self, data: bytes, name: str = "") -> list[ModelEvent]:
        return read_whole(lambda: self._new(name), data)

    def decode_end(self, data: bytes) -> Finished:
        return ending(Finished, self.decode(data))

    def read(self, name: str) -> list[ModelEvent]:
        return self.decode(self.stream(name), name)

    def answer(self, name: str) -> Answer:
        return answer_of(self.read(name))

    def parts(self, name: str) -> list[Part]:
        """The answer without provider metadata."""
        kinds = TextPart | ReasoningPart | ToolCallPart | ToolResultPart
        return [
            msgspec.structs.replace(part, provider_metadata=UNSET)
            if isinstance(part, kinds)
            else part
            for part in self.answer(name).content
        ]

    def finished(self, name: str) -> Finished:
        return ending(Finished, self.read(name))

    def failed(self, data: bytes) -> ProviderFault:
        return ending(StreamFailed, self.decode(data)).fault


def ending(kind: type[_T], events: list[ModelEvent]) -> _T:
    last = events[-1]
    assert isinstance(last, kind)
    return last


def only(kind: type[_T], found: Iterable[object]) -> list[_T]:
    return [one for one in found if isinstance(one, kind)]


def without_usage(events: Iterable[ModelEvent]) -> list[ModelEvent]:
    return [event for event in events if not isinstance(event, UsageReported)]


def tool_call(call_id: str, name: str, args: str) -> ToolCallPart:
    return ToolCallPart(tool_call_id=ToolCallId(call_id), tool_name=name, args=Raw(args.encode()))


def tokens(taken: int, given: int, total: int, **more: int) -> TokenUsage:
    """Input, output and total tokens, and other counts by their names."""
    counted = TokenUsage(input_tokens=taken, output_tokens=given, total_tokens=total)
    return msgspec.structs.replace(counted, **more)


def chat_decoder(
    *, thoughts: bool = False, taken: Collection[str] = (), salt: str = "abc"
) -> ChatDecoder:
    names = ToolNames(["read_file", "show.time"])
    return ChatDecoder(
        ChatAnswerBuilder(
            ORIGIN,
            names,
            used_call_ids=taken,
            salt=salt,
            thought_tags=GEMINI_TAGS if thoughts else (),
        )
    )


ANTHROPIC = RecordedApi(anthropic.stream, anthropic.NAMES, lambda _: AnthropicDecoder())
GEMINI = RecordedApi(
    gemini.stream,
    gemini.NAMES,
    lambda _: GeminiDecoder(
        model=GEMINI_MODEL, names=ToolNames(["show.time"]), call_prefix="call-abc"
    ),
)
CHAT = RecordedApi(
    openai_chat.stream,
    openai_chat.NAMES,
    lambda name: chat_decoder(thoughts=name.startswith("gemini")),
)
RESPONSES = RecordedApi(
    openai_responses.stream,
    openai_responses.NAMES,
    lambda _: ResponsesDecoder(ORIGIN, ToolNames(["read_file", "show.time"])),
)
APIS = {"anthropic": ANTHROPIC, "gemini": GEMINI, "chat": CHAT, "responses": RESPONSES}
