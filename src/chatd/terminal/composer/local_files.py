"""Files of this machine that a draft names as `@path`: finding the word, completing it, and whether
the file can be attached. Nothing here reads a file's content."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from chatd.terminal.safe_text import safe_text

MAX_MESSAGE_FILES: Final = 10
"""Maximum files in one message, as on the page."""
MAX_FILE_BYTES: Final = 20 * 1024 * 1024
"""The server's default of `files.max_bytes`; a server that allows less refuses the upload."""
MAX_SCANNED_NAMES: Final = 5000
"""How many names of one directory completion reads."""
MAX_SHOWN_NAMES: Final = 50

_MENTION: Final = re.compile(r'(?:(?<=\s)|^)@(?:"([^"\n]*)"|([^\s"]+))')
_OPEN: Final = re.compile(r'(?:(?<=\s)|^)@(?:"([^"\n]*)|([^\s"]*))$')


class Mention(Struct, frozen=True):
    """A file that a text names: `word` as it stands there, `path` as it was meant."""

    word: str
    path: str


class PathWord(Struct, frozen=True):
    """The word before the cursor, while it is being typed; `start` is its place in the line."""

    start: int
    typed: str


class FileName(Struct, frozen=True, kw_only=True):
    """One line of the list of files."""

    path: str
    is_directory: bool


def mentions_of(text: str) -> tuple[Mention, ...]:
    """Each path once, in order. The full stop or comma after a word is not part of its path."""
    found: dict[str, Mention] = {}
    for match in _MENTION.finditer(text):
        word = match.group(0)
        path = match.group(1)
        if path is None:
            path = match.group(2).rstrip(".,;:!?)]}")
            word = f"@{path}"
        if path:
            found.setdefault(path, Mention(word, path))
    return tuple(found.values())


def path_word(line: str, column: int) -> PathWord | None:
    """The `@path` that ends at the cursor; None: there is none."""
    match = _OPEN.search(line[:column])
    if match is None:
        return None
    typed = match.group(1) if match.group(1) is not None else match.group(2)
    return PathWord(match.start(), typed)


def write_mention(path: str) -> str:
    return f'@"{path}"' if re.search(r"\s", path) or path[-1:] in ".,;:!?)]}" else f"@{path}"


def complete_path(typed: str, base: Path, home: Path) -> tuple[FileName, ...]:
    """Names in the directory of what was typed, directories first. Reads the disk: call it in a
    thread. A name that cannot be shown as it is (control or hidden characters) is left out."""
    head, slash, prefix = typed.rpartition("/")
    directory = resolve(head + slash, base, home) if slash else base
    try:
        with os.scandir(directory) as entries:
            listed = list(_fitting(islice(entries, MAX_SCANNED_NAMES), prefix))
    except (OSError, ValueError):
        return ()
    listed.sort(key=lambda one: (not one[1], one[0].lower()))
    return tuple(
        FileName(path=f"{head}{slash}{name}", is_directory=is_directory)
        for name, is_directory in listed[:MAX_SHOWN_NAMES]
    )


def _fitting(entries: Iterator[os.DirEntry[str]], prefix: str) -> Iterator[tuple[str, bool]]:
    wanted = prefix.lower()
    for entry in entries:
        name = entry.name
        if not name.lower().startswith(wanted) or (name[0] == "." and prefix[:1] != "."):
            continue
        if '"' in name or "\n" in name or "\t" in name or safe_text(name) != name:
            continue
        try:
            is_directory = entry.is_dir()
        except OSError:
            continue
        yield name, is_directory


def resolve(path: str, base: Path, home: Path) -> Path:
    """`~` is the user's home; what is relative begins where `chatd` was started."""
    if path == "~" or path.startswith("~/"):
        return home / path[2:]
    return base / path


def check_file(path: Path) -> tuple[int, str]:
    """Its size, and why it cannot be attached; empty: it can. Never opens it: a pipe blocks."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, "There is no such file."
    except (OSError, ValueError) as error:
        return 0, f"It cannot be read: {reason_of(error)}."
    if stat.S_ISDIR(found.st_mode):
        return 0, "It is a directory. Attach its files one by one."
    if not stat.S_ISREG(found.st_mode):
        return 0, "It is not an ordinary file."
    if found.st_size == 0:
        return 0, "It is empty."
    if found.st_size > MAX_FILE_BYTES:
        return found.st_size, f"It is larger than {MAX_FILE_BYTES // 1024 // 1024} MiB."
    if not os.access(path, os.R_OK):
        return found.st_size, "You may not read it."
    return found.st_size, ""


def reason_of(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "unknown error"


def existing_mentions(text: str, base: Path, home: Path) -> Sequence[Mention]:
    """Those that name a file on this machine. `@ada` in a sentence does not, and a directory is
    only spoken of."""
    return [one for one in mentions_of(text) if _is_file(resolve(one.path, base, home))]


def _is_file(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        return False
