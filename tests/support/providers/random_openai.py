"""Random events of a server, and random history."""

from collections.abc import Callable
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
    PromptReasoning,
    PromptResult,
    PromptText,
)

WORDS = ["", "a", "{}", '{"a":', '"b"}', "<thought>", "</thought>", "</thou", "é\\ud83d", "b" * 70]
EVENTS = [
    "response.output_text.delta",
    "response.refusal.delta",
    "response.content_part.added",
    "response.output_text.annotation.added",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_text.delta",
    "response.function_call_arguments.delta",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_item.done",
    "response.completed",
    "response.failed",
    "error",
    "response.novelty",
]
ITEMS = ["message", "reasoning", "function_call", "web_search_call", "computer_call", "news"]
IDS = ["rs_1", "rs_2", "fc_1", "msg_1", "ws_1", "cu_1", ""]

Fields = dict[str, object]


class RandomOpenAi:
    """Some fields are invalid. `origin` is the provider named in history."""

    def __init__(self, seed: int, origin: str = "o") -> None:
        self._random = Random(seed)
        self._origin = origin

    def chance(self, of: float) -> bool:
        return self._random.random() < of

    def word(self) -> str:
        return self._random.choice(WORDS)

    def one_of(self, *choices: object) -> object:
        return self._random.choice(choices)

    def number(self) -> int:
        return self._random.choice([0, 0, 1, 2, -1, 2**70])

    def several(self, draw: Callable[[], object]) -> list[object]:
        return [draw() for _ in range(self._random.randrange(3))]

    def value(self, depth: int = 2) -> object:
        match self._random.randrange(8 if depth else 6):
            case 0:
                return None
            case 1:
                return self.chance(0.5)
            case 2:
                return self.number()
            case 3:
                return self._random.random()
            case 4 | 5:
                return self.word()
            case 6:
                return self.several(lambda: self.value(depth - 1))
            case _:
                return {self.word(): self.value(depth - 1) for _ in range(2)}

    def fields(self, **known: Callable[[], object]) -> Fields:
        found: Fields = {}
        for name, draw in known.items():
            if (luck := self._random.random()) < 0.6:
                found[name] = self.value() if luck < 0.03 else draw()
        return found

    def item(self) -> Fields:
        return self.fields(
            type=lambda: self.one_of(*ITEMS),
            id=lambda: self.one_of(*IDS),
            call_id=lambda: self.one_of("c1", "c2", ""),
            name=lambda: self.one_of("a_b", "c", "?"),
            arguments=self.word,
            encrypted_content=self.word,
            summary=lambda: self.several(lambda: self.fields(text=self.word)),
            content=lambda: self.several(
                lambda: self.fields(type=lambda: "output_text", text=self.word)
            ),
            action=self.value,
            actions=self.value,
            pending_safety_checks=self.value,
            phase=self.word,
            status=self.word,
        )

    def event(self) -> tuple[str, Fields]:
        data = self.fields(
            delta=self.word,
            output_index=self.number,
            content_index=self.number,
            summary_index=self.number,
            item=self.item,
            part=lambda: {"type": self.one_of("output_text", "refusal", "x")},
            annotation=lambda: {"type": "url_citation", "url": self.word()},
            response=lambda: self.fields(
                id=self.word, usage=lambda: self.fields(input_tokens=self.number), error=self.error
            ),
            error=self.error,
            message=self.word,
        )
        return self._random.choice(EVENTS), data

    def error(self) -> Fields:
        return self.fields(message=self.word, code=self.value, type=self.word)

    def call(self) -> Fields:
        return self.fields(
            index=self.number,
            id=lambda: self.one_of("", "x", "y"),
            function=lambda: self.fields(
                name=lambda: self.one_of("a_b", "c", ""), arguments=self.word
            ),
            extra_content=self.value,
        )

    def delta(self) -> Fields:
        return self.fields(
            content=self.word,
            refusal=self.word,
            reasoning=self.word,
            reasoning_content=self.word,
            reasoning_details=lambda: self.several(
                lambda: self.fields(type=self.word, text=self.word, index=self.number)
            ),
            tool_calls=lambda: self.several(self.call),
            annotations=lambda: [{"url_citation": {"url": self.word()}}],
            extra_content=lambda: {"google": {"thought": self.chance(0.5)}},
        )

    def chunk(self) -> Fields:
        return self.fields(
            id=self.word,
            choices=lambda: self.several(
                lambda: self.fields(
                    delta=self.delta,
                    finish_reason=lambda: self.one_of("stop", "tool_calls", "", "x", None),
                )
            ),
            usage=lambda: self.fields(prompt_tokens=self.number, total_tokens=self.number),
        )

    def metadata(self) -> Raw:
        kept = self.fields(
            openai_responses=lambda: self.fields(
                origin=lambda: self._origin,
                id=lambda: self.one_of(*IDS),
                after=self.word,
                item=self.item,
            ),
            openai_chat=lambda: self.fields(
                origin=lambda: self._origin, field=self.word, extra=self.value
            ),
        )
        return Raw(msgspec.json.encode(self.one_of(kept, kept, self.value())))

    def part(self) -> PromptPart:
        call_id = ToolCallId(self.word() or "c1")
        match self._random.randrange(5):
            case 0:
                return PromptText(text=self.word(), provider_metadata=self.metadata())
            case 1:
                return PromptReasoning(text=self.word(), provider_metadata=self.metadata())
            case 2:
                return PromptFile(media_type="image/png", data=self.word().encode())
            case 3:
                return PromptCall(
                    id=call_id,
                    name=self.word(),
                    input=Raw(b"{}"),
                    provider_executed=self.chance(0.4),
                    provider_metadata=self.metadata(),
                )
            case _:
                return PromptResult(id=call_id, name=self.word(), text=self.word())

    def conversation(self) -> list[PromptMessage]:
        roles: list[Role] = ["system", "user", "assistant", "assistant", "tool"]
        return [
            PromptMessage(
                role=self._random.choice(roles), parts=tuple(self.part() for _ in range(4))
            )
            for _ in range(self._random.randrange(5))
        ]

    def several_of(self, draw: Callable[[], object]) -> list[object]:
        return [draw() for _ in range(self._random.randrange(10))]

    def corrupt(self, recorded: bytes) -> bytes:
        """With bytes changed, lost and doubled."""
        stream = bytearray(recorded)
        for _ in range(self._random.randrange(1, 6)):
            at = self._random.randrange(len(stream) or 1)
            match self._random.randrange(4):
                case 0:
                    stream[at : at + 1] = bytes([self._random.randrange(256)])
                case 1:
                    del stream[at : at + self._random.randrange(40)]
                case 2:
                    stream[at:at] = stream[at : at + self._random.randrange(200)]
                case _:
                    del stream[at + 1 :]
        return bytes(stream)
