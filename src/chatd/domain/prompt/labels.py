"""Short words on where a chat stands: for lists and for notices on a phone.

Owns what the model is asked and what is taken from it. A label that is not one is not shown;
something plain is.

A chat in a few thousand characters, for whoever names or labels it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import ChatError
from chatd.domain.chat.states import PublicStatus
from chatd.domain.model.protocol import ModelRequest, PromptMessage, PromptText
from chatd.domain.prompt.titles import TITLE_MAX_OUTPUT_TOKENS, strip_quotes
from chatd.domain.text import clip, model_text, parse_json

MAX_EXCERPT_CHARS: Final = 6000
MAX_EXCERPT_MESSAGE_CHARS: Final = 1000
LAST_TURNS: Final = 3
OMITTED_TURNS_MARK: Final = "[...]"


class TurnExcerpt(Struct, frozen=True, kw_only=True):
    """What a person said, and the last thing that was answered."""

    user: str
    answer: str = ""


def list_turns(history: Sequence[Message]) -> list[TurnExcerpt]:
    """Turns in which something was said; what only the model sees is in none."""
    found: list[TurnExcerpt] = []
    for row in history:
        if row.deleted or row.compressed or row.visibility == "model":
            continue
        said = visible_text(row)
        if row.starts_turn and said:
            found.append(TurnExcerpt(user=said))
        elif row.role == "assistant" and said and found:
            found[-1] = TurnExcerpt(user=found[-1].user, answer=said)
    return found


def visible_text(row: Message) -> str:
    texts = (part.text.strip() for part in row.content if isinstance(part, TextPart))
    return model_text(" ".join(text for text in texts if text))


def chat_excerpt(history: Sequence[Message]) -> str:
    """The first turn and the last few, and a mark where turns between them are left out."""
    every = list_turns(history)
    shown = every[:1] + every[1:][-LAST_TURNS:]
    lines = [_lines(turn) for turn in shown]
    if len(every) > len(shown):
        lines.insert(1, OMITTED_TURNS_MARK)
    return clip("\n\n".join(lines), MAX_EXCERPT_CHARS)


def _lines(turn: TurnExcerpt) -> str:
    asked = f"User: {clip(turn.user, MAX_EXCERPT_MESSAGE_CHARS)}"
    return (
        f"{asked}\nAssistant: {clip(turn.answer, MAX_EXCERPT_MESSAGE_CHARS)}"
        if turn.answer
        else asked
    )


def last_answer(history: Sequence[Message]) -> str:
    every = list_turns(history)
    return clip(every[-1].answer, MAX_EXCERPT_CHARS) if every else ""


TURNS_PER_SUMMARY: Final = 3
MAX_CHAT_SUMMARY_CHARS: Final = 300
MAX_LABEL_CHARS: Final = 60

LABEL_INSTRUCTION: Final = """\
Say in 2 to 5 words what was done or is needed now in the chat below, as a label for a list: no \
sentence, no subject, no final full stop. Examples of the form: Fixed failing tests; Needs \
database password; Compared three libraries."""

SUMMARY_INSTRUCTION: Final = """\
Say in one to three short sentences what the chat below is about and where it stands, for someone \
who comes back to it after a week. Do not address anyone and do not answer the chat."""

_FALLBACK: Final[Mapping[PublicStatus, str]] = {
    "waiting": "Finished",
    "pending": "Waiting for a worker",
    "running": "Working",
    "interrupting": "Stopping",
    "requires_action": "Waiting for you",
    "error": "Stopped with an error",
    "archived": "Archived",
}
_SUBJECT: Final = re.compile(
    r"^(?:the|this|(?:an?\s+)?(?:agent|assistant|ai|model|user)|i|we|it|he|she|they|you)\b",
    re.IGNORECASE,
)
_SENTENCES: Final = re.compile(r"[.!?]\s+\S|。\S")


def label_request(model: str, title: str, answer: str) -> ModelRequest:
    """`answer` is the last thing the model said in the chat."""
    return _request(model, LABEL_INSTRUCTION, "label", f"Title: {title}\n\n{answer}")


def chat_summary_request(model: str, title: str, excerpt: str) -> ModelRequest:
    return _request(model, SUMMARY_INSTRUCTION, "summary", f"Title: {title}\n\n{excerpt}")


def _request(model: str, instruction: str, field: str, chat: str) -> ModelRequest:
    schema = {
        "type": "object",
        "properties": {field: {"type": "string"}},
        "required": [field],
        "additionalProperties": False,
    }
    return ModelRequest(
        model=model,
        messages=(
            PromptMessage(role="system", parts=(PromptText(text=instruction),)),
            PromptMessage(role="user", parts=(PromptText(text=f"<chat>\n{chat}\n</chat>"),)),
        ),
        max_output_tokens=TITLE_MAX_OUTPUT_TOKENS,
        temperature=0.0,
        reasoning_effort="none",
        output_schema=Raw(msgspec.json.encode(schema)),
    )


def read_label(text: str) -> str | None:
    """The label in an answer, if it is one: a few words, not a sentence, about no one."""
    label = strip_quotes(_said(text, "label"))
    fits = 2 <= len(label.split()) <= 5 and len(label) <= MAX_LABEL_CHARS
    return label if fits and not _SENTENCES.search(label) and not _SUBJECT.match(label) else None


def read_chat_summary(text: str) -> str | None:
    return clip(_said(text, "summary"), MAX_CHAT_SUMMARY_CHARS) or None


def _said(text: str, field: str) -> str:
    value = parse_json(text.strip())
    if value is not UNSET and isinstance(value, dict):
        found = msgspec.convert(value, dict[str, object]).get(field)
        text = found if isinstance(found, str) else ""
    return " ".join(model_text(text).split())


def status_label(status: PublicStatus, label: str | None = None) -> str:
    """A model's label speaks of a turn that ended well; any other status speaks for itself."""
    return label if label is not None and status == "waiting" else _FALLBACK[status]


def notification_text(status: PublicStatus, label: str | None, error: ChatError | None) -> str:
    """What a notice says. Of an error it says which."""
    if status == "error" and error is not None:
        return error.message
    return status_label(status, label)


def is_chat_summary_due(turns: int) -> bool:
    return turns > 0 and turns % TURNS_PER_SUMMARY == 0
