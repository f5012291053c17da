"""What the line below the text box shows, in an order that its user may choose with `/statusline`;
kept on this machine, like the colours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, get_args

from msgspec import Struct
from rich.text import Text

from chatd.client.resources import Chat, ChatCost, ModelChoice
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.model.protocol import Effort
from chatd.terminal.composer.composer_lines import Hints, context_text, cost_text, left_text
from chatd.terminal.composer.model_texts import EFFORT_NAMES, model_name
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import keep_choice, read_kept_choice

StatusWord = Literal[
    "model", "effort", "workspace", "project", "branch", "context", "left", "cost", "title"
]
STATUS_WORDS: Final[tuple[StatusWord, ...]] = get_args(StatusWord)
DEFAULT_STATUS: Final[tuple[StatusWord, ...]] = ("model", "effort", "workspace", "context", "cost")
_SENT_WITH: Final = frozenset({"model", "effort", "workspace"})
_KEPT_FILE: Final = "status-line"
_MAX_NAME_CELLS: Final = 24


class StatusFacts(Struct, frozen=True, kw_only=True):
    """Of the open chat; `project` and `place` are names."""

    model: ModelChoice | None = None
    effort: Effort | None = None
    place: str = ""
    is_plan: bool = False
    chat: Chat | None = None
    project: str = ""
    messages: tuple[PublicMessage, ...] = ()
    context_limit: int | None = None
    cost: ChatCost | None = None


def read_status_words(text: str) -> tuple[StatusWord, ...] | None:
    """None if one of them is unknown; empty words mean the usual ones."""
    asked = text.lower().replace(",", " ").split()
    if asked in ([], ["default"]):
        return DEFAULT_STATUS
    places = {word: at for at, word in reversed(list(enumerate(asked)))}
    found = [word for word in STATUS_WORDS if places.get(word) is not None]
    if len(found) < len(places):
        return None
    found.sort(key=lambda word: places[word])
    return tuple(found)


def kept_status(directory: Path | None, environ: Mapping[str, str]) -> tuple[StatusWord, ...]:
    """That of CHATD_STATUS_LINE, else what was chosen before. Words of a newer version are none."""
    for text in (environ.get("CHATD_STATUS_LINE", ""), read_kept_choice(directory, _KEPT_FILE)):
        if text and (words := read_status_words(text)) is not None:
            return words
    return DEFAULT_STATUS


def keep_status(directory: Path | None, words: tuple[StatusWord, ...]) -> None:
    keep_choice(directory, _KEPT_FILE, " ".join(words))


def status_hints(words: tuple[StatusWord, ...], facts: StatusFacts, right: Text) -> Hints:
    """What a message is sent with stays in sight if it is first; what does not fit goes, the last
    first. Plan mode is always named."""
    texts = _texts(facts)
    leading = next((at for at, one in enumerate(words) if one not in _SENT_WITH), len(words))
    left = Text(no_wrap=True)
    for at, word in enumerate(words[:leading]):
        if text := texts[word]:
            left.append(f" · {text}" if left else text, "dim" if at else "")
    if facts.is_plan:
        left.append(" · " if left else "").append("plan mode", "bold")
    extras = [text for word in words[leading:] if (text := texts[word])]
    if not left and extras:
        left.append(extras.pop(0))
    return Hints(left=left, extras=tuple(extras), right=right)


def _texts(facts: StatusFacts) -> Mapping[StatusWord, str]:
    chat = facts.chat
    diff = None if chat is None else chat.diff_status
    return {
        "model": "no model" if facts.model is None else model_name(facts.model),
        "effort": "" if facts.effort is None else EFFORT_NAMES[facts.effort].lower(),
        "workspace": safe_line(facts.place, _MAX_NAME_CELLS),
        "project": safe_line(facts.project, _MAX_NAME_CELLS),
        "branch": "" if diff is None else safe_line(diff.branch, _MAX_NAME_CELLS),
        "context": context_text(facts.messages, facts.context_limit),
        "left": left_text(facts.messages, facts.context_limit),
        "cost": cost_text(facts.cost),
        "title": "" if chat is None else safe_line(chat.title, _MAX_NAME_CELLS),
    }
