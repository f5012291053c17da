"""What a message does to a chat that is busy: the five behaviours of the API, in words."""

from typing import Final

from msgspec import Struct

from chatd.domain.chat.commands import WhenBusy


class Behaviour(Struct, frozen=True, kw_only=True):
    """`word` is typed after /busy; `verb` says what Enter does."""

    value: WhenBusy
    word: str
    verb: str
    effect: str
    sent: str


BEHAVIOURS: Final[tuple[Behaviour, ...]] = (
    Behaviour(
        value="queue", word="queue", verb="queues", effect="it waits for its turn", sent="Queued"
    ),
    Behaviour(
        value="steer",
        word="steer",
        verb="steers",
        effect="it joins before the next model call",
        sent="It joins before the next step",
    ),
    Behaviour(
        value="interrupt",
        word="interrupt",
        verb="interrupts",
        effect="the answer stops, what was said is kept",
        sent="Interrupting",
    ),
    Behaviour(
        value="rollback",
        word="replace",
        verb="replaces the turn",
        effect="the running turn is dropped, this takes its place",
        sent="Replacing the turn",
    ),
    Behaviour(
        value="reject",
        word="refuse",
        verb="is refused while busy",
        effect="nothing is sent while the chat works",
        sent="Sent",
    ),
)


def behaviour_of(value: WhenBusy) -> Behaviour:
    return next(one for one in BEHAVIOURS if one.value == value)


def find_behaviour(word: str) -> Behaviour | None:
    """By the word that is typed, or by the value of the API."""
    wanted = word.strip().lower()
    return next((one for one in BEHAVIOURS if wanted in (one.word, one.value)), None)


def next_behaviour(value: WhenBusy) -> WhenBusy:
    at = BEHAVIOURS.index(behaviour_of(value))
    return BEHAVIOURS[(at + 1) % len(BEHAVIOURS)].value


class BusyChoice(Struct, frozen=True, kw_only=True):
    """What is kept until it is changed, and what holds for the next message alone."""

    kept: WhenBusy = "queue"
    once: WhenBusy | None = None

    @property
    def value(self) -> WhenBusy:
        return self.kept if self.once is None else self.once

    def cycled(self) -> "BusyChoice":
        """The next behaviour, for one message."""
        following = next_behaviour(self.value)
        return BusyChoice(kept=self.kept, once=None if following == self.kept else following)

    def with_kept(self, value: WhenBusy) -> "BusyChoice":
        return BusyChoice(kept=value)

    def after_send(self) -> "BusyChoice":
        return BusyChoice(kept=self.kept)
