"""Random variations of recorded streams and answers: odd values, any order, damaged bytes."""

from functools import cache
from random import Random

import msgspec
from msgspec import Raw

from chatd.domain.chat.messages import Role
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptResult,
)
from tests.support.providers.prompts import message, replayed
from tests.support.providers.recorded import RecordedApi

WORDS = ["", "a", "{}", '{"a":', '"b"}', "<thought>", "</thou", "\x00\u2028", "👋", "b" * 70]
NUMBERS = [0, 1, 2, -1, 2**70]
ODD = [None, True, 0.5, [], {}, {"type": "x"}, [1, {"": None}], *WORDS, *NUMBERS]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "assistant", "tool")


@cache
def _recorded_parts(api: RecordedApi) -> list[PromptPart]:
    answers = (replayed(api.answer(name)) for name in api.names)
    parts = [part for messages in answers for said in messages for part in said.parts]
    return [*parts, PromptFile(media_type="image/png", data=b"")]


class RandomStreams:
    """Some runs vary few values, so that a decoder gets to the end; others vary many."""

    def __init__(self, api: RecordedApi, seed: int) -> None:
        self._api = api
        self._random = Random(seed)
        self._rate = self._random.choice((0.001, 0.01, 0.04))

    def events(self) -> bytes:
        """Varied events of one recorded stream, or of any streams in any order."""
        if self._random.random() < 0.5:
            events = self._recorded().split(b"\n\n")
        else:
            found = [self._random.choice(self._recorded().split(b"\n\n")) for _ in range(12)]
            events = found[: self._random.randrange(13)]
        named = self._random.random() < 0.7
        return b"".join(self._vary_event(event, named=named) for event in events)

    def damaged(self, stream: bytes) -> bytes:
        """With bytes changed, lost and doubled."""
        data = bytearray(stream)
        for _ in range(self._random.randrange(1, 6)):
            at = self._random.randrange(len(data) or 1)
            match self._random.randrange(4):
                case 0:
                    data[at : at + 1] = self._random.randbytes(self._random.randrange(6))
                case 1:
                    del data[at : at + self._random.randrange(40)]
                case 2:
                    data[at:at] = data[at : at + self._random.randrange(200)]
                case _:
                    del data[at + 1 :]
        return bytes(data)

    def pieces(self, stream: bytes) -> list[bytes]:
        size = self._random.randint(1, 300)
        return [stream[at : at + size] for at in range(0, len(stream), size)]

    def recorded_name(self) -> str:
        return self._random.choice(self._api.names)

    def conversation(self) -> list[PromptMessage]:
        """Parts of recorded answers under any roles, with other ids, texts and metadata."""
        return [
            message(self._random.choice(ROLES), *(self._part() for _ in range(4)))
            for _ in range(self._random.randrange(5))
        ]

    def _recorded(self) -> bytes:
        return self._api.stream(self.recorded_name()).replace(b"\r\n", b"\n")

    def _vary_event(self, event: bytes, *, named: bool) -> bytes:
        head, mark, data = event.partition(b"data: ")
        try:
            varied = msgspec.json.encode(self._vary(msgspec.json.decode(data)))
        except msgspec.DecodeError:
            varied = data
        return (head if named else b"") + mark + varied + b"\n\n"

    def _vary(self, value: object) -> object:
        luck = self._random.random()
        if luck < self._rate:
            return self._random.choice(ODD)
        match value:
            case dict():
                fields = msgspec.convert(value, dict[str, object]).items()
                return {
                    name: self._vary(v) for name, v in fields if self._random.random() > self._rate
                }
            case list():
                return [self._vary(inner) for inner in msgspec.convert(value, list[object])]
            case str() if luck < 3 * self._rate:
                return self._random.choice(WORDS)
            case int() if luck < 5 * self._rate:
                return self._random.choice(NUMBERS)
            case _:
                return value

    def _part(self) -> PromptPart:
        part = self._random.choice(_recorded_parts(self._api))
        if isinstance(part, PromptFile):
            return msgspec.structs.replace(part, data=self._random.choice(WORDS).encode())
        if isinstance(metadata := part.provider_metadata, Raw):
            varied = msgspec.json.encode(self._vary(msgspec.json.decode(metadata)))
            part = msgspec.structs.replace(part, provider_metadata=Raw(varied))
        if self._random.random() < 0.5:
            return part
        word = self._random.choice(WORDS)
        if isinstance(part, PromptCall | PromptResult):
            return msgspec.structs.replace(part, id=ToolCallId(word or "c1"), name=word)
        return msgspec.structs.replace(part, text=word)
