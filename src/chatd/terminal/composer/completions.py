"""What the menu above the text box offers: commands, their arguments, or files. Pure but for the
disk, which `offer_files` is given the result of."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from chatd.domain.chat.states import PublicStatus
from chatd.terminal.attachments.local_files import FileName, PathWord, path_word, write_mention
from chatd.terminal.composer.commands import ALIASES, BY_NAME, COMMANDS, refusal_of


class Offer(Struct, frozen=True, kw_only=True):
    """One line of the menu. `insert` takes the place of the text from `start` to the cursor.
    `refusal` says why it cannot be used now. `is_whole`: with it the command is complete, and
    Enter runs it."""

    label: str
    note: str = ""
    insert: str
    start: int = 0
    refusal: str = ""
    is_whole: bool = False
    kind: Literal["command", "argument", "file", "directory"] = "command"


def offer_commands(text: str, status: PublicStatus | None) -> tuple[Offer, ...]:
    """For a draft of one line that begins with a slash; empty if it is no command."""
    if not text.startswith("/") or text.startswith("//") or "\n" in text:
        return ()
    word, space, argument = text[1:].partition(" ")
    if space:
        return _offer_arguments(word.lower(), argument, start=len(word) + 2)
    typed = word.lower()
    return tuple(
        Offer(
            label=one.usage,
            note=one.effect,
            insert=f"/{one.name} " if one.argument else f"/{one.name}",
            refusal=refusal_of(one, status),
            is_whole=not one.argument or one.argument.startswith("["),
        )
        for one in COMMANDS
        if one.name.startswith(typed)
    )


def _offer_arguments(word: str, argument: str, *, start: int) -> tuple[Offer, ...]:
    command = BY_NAME.get(ALIASES.get(word, word))
    if command is None:
        return ()
    typed = argument.strip().lower()
    if typed in command.choices:
        return ()
    return tuple(
        Offer(label=choice, insert=choice, start=start, is_whole=True, kind="argument")
        for choice in command.choices
        if choice.startswith(typed)
    )


def wanted_path(line: str, column: int) -> PathWord | None:
    """The path that is being typed: after an at sign, or as the argument of /attach."""
    before = line[:column]
    if before.startswith("/attach "):
        return PathWord(len("/attach "), before[len("/attach ") :])
    return None if before.startswith("/") else path_word(line, column)


def offer_files(
    word: PathWord, names: Sequence[FileName], *, is_mention: bool
) -> tuple[Offer, ...]:
    """A chosen directory stays open, so that its files are offered next."""
    offers: list[Offer] = []
    for one in names:
        if one.is_directory:
            path = f"{one.path}/"
            opened = f'@"{path}' if " " in path else f"@{path}"
            insert = opened if is_mention else path
            offers.append(Offer(label=path, insert=insert, start=word.start, kind="directory"))
        else:
            insert = f"{write_mention(one.path)} " if is_mention else one.path
            offers.append(Offer(label=one.path, insert=insert, start=word.start, kind="file"))
    return tuple(offers)
