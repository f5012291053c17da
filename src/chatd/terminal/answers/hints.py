"""The line that names the keys of a form."""

from collections.abc import Mapping, Sequence

from textual.content import Content

from chatd.terminal.keys import KEYS, key_name


def _key_names() -> Mapping[str, str]:
    """By action; of `answer('approve')` by its argument."""
    first = {key.action: key.keys.partition(",")[0] for key in KEYS["answers"]}
    return {
        action.removeprefix("answer('").removesuffix("')"): key_name(name)
        for action, name in first.items()
    }


def hint_line(actions: Sequence[tuple[str, str]], *, before: str = "") -> Content:
    """`before` comes first, such as how to get here. Actions without a word are not named."""
    names = _key_names()
    parts = [Content.styled(before, "bold")] if before else []
    parts += [
        Content.assemble((names[action], "bold $text-accent"), f" {word}")
        for action, word in actions
        if word
    ]
    return Content("   ").join(parts)
