"""Short words on where a chat stands: for lists and for notices on a phone.

Owns what the model is asked and what is taken from it. A label that is not one is not shown;
something plain is.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.chat import ChatError
from chatd.domain.excerpt import shorten
from chatd.domain.heal import for_model, parse
from chatd.domain.model import ModelRequest, PromptMessage, PromptText
from chatd.domain.states import PublicStatus
from chatd.domain.titles import MAX_OUTPUT_TOKENS, unquoted

TURNS_PER_SUMMARY: Final = 3
MAX_SUMMARY: Final = 300
MAX_LABEL: Final = 60

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
        max_output_tokens=MAX_OUTPUT_TOKENS,
        temperature=0.0,
        reasoning_effort="none",
        output_schema=Raw(msgspec.json.encode(schema)),
    )


def read_label(text: str) -> str | None:
    """The label in an answer, if it is one: a few words, not a sentence, about no one."""
    label = unquoted(_said(text, "label"))
    fits = 2 <= len(label.split()) <= 5 and len(label) <= MAX_LABEL
    return label if fits and not _SENTENCES.search(label) and not _SUBJECT.match(label) else None


def read_chat_summary(text: str) -> str | None:
    return shorten(_said(text, "summary"), MAX_SUMMARY) or None


def _said(text: str, field: str) -> str:
    value = parse(text.strip())
    if value is not UNSET and isinstance(value, dict):
        found = msgspec.convert(value, dict[str, object]).get(field)
        text = found if isinstance(found, str) else ""
    return " ".join(for_model(text).split())


def status_label(status: PublicStatus, label: str | None = None) -> str:
    """A model's label speaks of a turn that ended well; any other status speaks for itself."""
    return label if label is not None and status == "waiting" else _FALLBACK[status]


def notice(status: PublicStatus, label: str | None, error: ChatError | None) -> str:
    """What a notice says. Of an error it says which."""
    if status == "error" and error is not None:
        return error.message
    return status_label(status, label)


def chat_summary_due(turns: int) -> bool:
    return turns > 0 and turns % TURNS_PER_SUMMARY == 0
