"""The line that names the keys of a form, and what stands beside its title."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from textual.content import Content

from chatd.terminal.answers.asks import Ask, time_left
from chatd.terminal.answers.form import AskForm, Body
from chatd.terminal.answers.open_asks import Item, OpenAsks
from chatd.terminal.keys import KEYS, key_name
from chatd.terminal.safe_text import safe_line


def _key_names() -> Mapping[str, str]:
    """By action; of `answer('approve')` by its argument."""
    first = {key.action: key.keys.partition(",")[0] for key in KEYS["answers"]}
    return {
        action.removeprefix("answer('").removesuffix("')"): key_name(name)
        for action, name in first.items()
    }


def hint_line(actions: Sequence[tuple[str, str]], *, before: str = "") -> list[Content]:
    """`before` comes first, such as how to get here. Actions without a word are not named."""
    names = _key_names()
    parts = [Content.styled(before, "bold")] if before else []
    parts += [
        Content.assemble((names[action], "bold $text-accent"), f" {word}")
        for action, word in actions
        if word
    ]
    return parts


def notes_of(form: AskForm, item: Item, asks: OpenAsks, now: datetime) -> list[str]:
    """Who asks, how far the answer is, until when, and which of several this is."""
    notes = [form.note]
    if isinstance(item, Ask):
        notes = [safe_line(item.asker, 30), form.note, time_left(item.call.deadline, now)]
    count = len(asks.items)
    if form.query_one(Body).has_more_below:
        notes.append("more below ↓")
    return [*notes, f"{asks.place_of(item)} of {count}" if count > 1 else ""]
