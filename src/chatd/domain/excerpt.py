"""A chat in a few thousand characters, for whoever names or labels it."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.heal import for_model
from chatd.domain.messages import Message
from chatd.domain.parts import Text

MAX_EXCERPT: Final = 6000
MAX_SAID: Final = 1000
LAST_TURNS: Final = 3
GAP: Final = "[...]"


class Turn(Struct, frozen=True, kw_only=True):
    """What a person said, and the last thing that was answered."""

    user: str
    answer: str = ""


def turns(history: Sequence[Message]) -> list[Turn]:
    """Turns in which something was said; what only the model sees is in none."""
    found: list[Turn] = []
    for row in history:
        if row.deleted or row.compressed or row.visibility == "model":
            continue
        said = words(row)
        if row.begins_turn and said:
            found.append(Turn(user=said))
        elif row.role == "assistant" and said and found:
            found[-1] = Turn(user=found[-1].user, answer=said)
    return found


def words(row: Message) -> str:
    texts = (part.text.strip() for part in row.content if isinstance(part, Text))
    return for_model(" ".join(text for text in texts if text))


def chat_excerpt(history: Sequence[Message]) -> str:
    """The first turn and the last few, and a mark where turns between them are left out."""
    every = turns(history)
    shown = every[:1] + every[1:][-LAST_TURNS:]
    lines = [_lines(turn) for turn in shown]
    if len(every) > len(shown):
        lines.insert(1, GAP)
    return shorten("\n\n".join(lines), MAX_EXCERPT)


def _lines(turn: Turn) -> str:
    asked = f"User: {shorten(turn.user, MAX_SAID)}"
    return f"{asked}\nAssistant: {shorten(turn.answer, MAX_SAID)}" if turn.answer else asked


def last_answer(history: Sequence[Message]) -> str:
    every = turns(history)
    return shorten(every[-1].answer, MAX_EXCERPT) if every else ""


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
