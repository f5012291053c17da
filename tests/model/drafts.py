"""Generated prompts, answers, calls and results; each prompt has a unique text."""

from collections.abc import Sequence
from random import Random
from typing import Final
from uuid import UUID

import msgspec

from chatd.domain.chat.messages import Draft, PendingCall, TokenUsage, UsageEntry, UserInput
from chatd.domain.chat.parts import Part, TextPart
from chatd.domain.ids import ModelConfigId, UserId
from chatd.domain.tool_modes import ModeChoice
from tests.model.reference_store import ChatRows
from tests.support.factories import OWNER, call, draft, result, text
from tests.support.seeds import CLIENT_TOOL

CLIENT_TOOLS = frozenset({CLIENT_TOOL})

_MODELS = (None, None, ModelConfigId(UUID(int=50)), ModelConfigId(UUID(int=51)))
_EFFORTS = (None, None, "low", "high")
_MODES: Final[Sequence[ModeChoice | None]] = (*[None] * 10, "plan", "off")
_AUTHORS = (OWNER, UserId(UUID(int=60)))


class Drafts:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._prompts = 0
        self._calls = 0

    def prompt(self) -> UserInput:
        self._prompts += 1
        return UserInput(
            content=(text(f"prompt {self._prompts}"),),
            created_by=self.rng.choice(_AUTHORS),
            model_config_id=self.rng.choice(_MODELS),
            reasoning_effort=self.rng.choice(_EFFORTS),
            mode=self.rng.choice(_MODES),
        )

    def answer(self, *, calls: int) -> Draft:
        """Text and calls: of chatd's tools, of client tools, of provider-executed tools."""
        parts: list[Part] = [text("words")]
        for _ in range(calls):
            self._calls += 1
            name = self.rng.choice(("execute", CLIENT_TOOL, "web_search"))
            parts.append(call(f"c{self._calls}", name, provider_executed=name == "web_search"))
        return draft("assistant", *parts)

    def asking(self) -> Draft:
        """Calls that someone outside must answer or approve."""
        parts: list[Part] = []
        for name in self.rng.choices((CLIENT_TOOL, "execute"), k=self.rng.randint(1, 3)):
            self._calls += 1
            parts.append(call(f"c{self._calls}", name))
        return draft("assistant", *parts)

    def results(self, calls: Sequence[PendingCall]) -> tuple[Draft, ...]:
        return tuple(draft("tool", result(call.id, call.name)) for call in calls)

    def summary(self) -> tuple[Draft, ...]:
        """The rows of a compaction: a summary for the model, a record for users."""
        self._calls += 1
        name = f"c{self._calls}"
        return (
            draft("user", text("In short"), visibility="model", compressed=True),
            draft("assistant", call(name, "compact"), visibility="user", compressed=True),
            draft("tool", result(name, "compact"), compressed=True),
        )

    def usage(self) -> tuple[UsageEntry, ...]:
        if self.rng.random() < 0.5:
            return ()
        cost = self.rng.choice((None, 0, 7))
        return (
            UsageEntry(
                kind="turn", provider="demo", model="m", usage=TokenUsage(), cost_micros=cost
            ),
        )


def check_prompts_unique(rows: ChatRows) -> None:
    """A prompt is in history once or in the queue once, never in both."""
    in_history = [_words(message) for message in rows.messages if message.starts_turn]
    queued = [_words(item) for item in rows.queue]
    everything = [words for words in (*in_history, *queued) if words]
    assert len(everything) == len(set(everything)), "a prompt is stored twice"


def _words(of: Draft | UserInput) -> str | None:
    first = of.content[0]
    return first.text if isinstance(first, TextPart) else msgspec.json.encode(first).decode()
