"""Labels and short summaries of a chat for lists and notifications, and the excerpt they read.

Owns the requests and the checks of the replies. An invalid label is replaced by a fixed text.
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
    """The user's message and the last answer to it."""

    user: str
    answer: str = ""


def list_turns(history: Sequence[Message]) -> list[TurnExcerpt]:
    """Turns with visible text. Rows that only the model sees are skipped."""
    turns: list[TurnExcerpt] = []
    for row in history:
        if row.deleted or row.compressed or row.visibility == "model":
            continue
        text = visible_text(row)
        if row.starts_turn and text:
            turns.append(TurnExcerpt(user=text))
        elif row.role == "assistant" and text and turns:
            turns[-1] = TurnExcerpt(user=turns[-1].user, answer=text)
    return turns


def visible_text(row: Message) -> str:
    texts = (part.text.strip() for part in row.content if isinstance(part, TextPart))
    return model_text(" ".join(text for text in texts if text))


def chat_excerpt(history: Sequence[Message]) -> str:
    """The first turn and the last few, with a mark for omitted turns between them."""
    turns = list_turns(history)
    shown = turns[:1] + turns[1:][-LAST_TURNS:]
    lines = [_lines(turn) for turn in shown]
    if len(turns) > len(shown):
        lines.insert(1, OMITTED_TURNS_MARK)
    return clip("\n\n".join(lines), MAX_EXCERPT_CHARS)


def _lines(turn: TurnExcerpt) -> str:
    text = f"User: {clip(turn.user, MAX_EXCERPT_MESSAGE_CHARS)}"
    if turn.answer:
        text += f"\nAssistant: {clip(turn.answer, MAX_EXCERPT_MESSAGE_CHARS)}"
    return text


def last_answer(history: Sequence[Message]) -> str:
    turns = list_turns(history)
    return clip(turns[-1].answer, MAX_EXCERPT_CHARS) if turns else ""


TURNS_PER_SUMMARY: Final = 3
MAX_CHAT_SUMMARY_CHARS: Final = 300
MAX_LABEL_CHARS: Final = 60

LABEL_INSTRUCTION: Final = """\
Say in 2 to 5 words what was done or is needed now in the chat below, as a label for a list: no \
sentence, no subject, no final full stop. Examples of the form: Fixed failing tests; Needs \
database password; Compared three libraries."""

CHAT_SUMMARY_INSTRUCTION: Final = """\
Say in one to three short sentences what the chat below is about and where it stands, for a \
user who returns to it after a week. Do not address the reader and do not answer the chat."""

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
    """`answer` is the model's last answer in the chat."""
    return _request(model, LABEL_INSTRUCTION, "label", f"Title: {title}\n\n{answer}")


def chat_summary_request(model: str, title: str, excerpt: str) -> ModelRequest:
    return _request(model, CHAT_SUMMARY_INSTRUCTION, "summary", f"Title: {title}\n\n{excerpt}")


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
    """The label in a reply; None unless it is 2 to 5 words, no sentence, and without a subject."""
    label = strip_quotes(_read_field(text, "label"))
    fits = 2 <= len(label.split()) <= 5 and len(label) <= MAX_LABEL_CHARS
    return label if fits and not _SENTENCES.search(label) and not _SUBJECT.match(label) else None


def read_chat_summary(text: str) -> str | None:
    return clip(_read_field(text, "summary"), MAX_CHAT_SUMMARY_CHARS) or None


def _read_field(text: str, field: str) -> str:
    value = parse_json(text.strip())
    if value is not UNSET and isinstance(value, dict):
        found = msgspec.convert(value, dict[str, object]).get(field)
        text = found if isinstance(found, str) else ""
    return " ".join(model_text(text).split())


def status_label(status: PublicStatus, label: str | None = None) -> str:
    """The model's label if the turn ended well, else a fixed text for the status."""
    return label if label is not None and status == "waiting" else _FALLBACK[status]


def notification_text(status: PublicStatus, label: str | None, error: ChatError | None) -> str:
    if status == "error" and error is not None:
        return error.message
    return status_label(status, label)


def is_chat_summary_due(turns: int) -> bool:
    return turns > 0 and turns % TURNS_PER_SUMMARY == 0
