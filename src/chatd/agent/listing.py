"""Listing one directory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from chatd.agent.errors import AgentError, from_os
from chatd.agent.paths import check_encodable, printable

MAX_ENTRIES = 10_000


def list_directory(
    path: Sequence[str], relativity: str, *, home: str | None = None
) -> dict[str, object]:
    """What is in the directory: directories first, then by name.

    `path` is a list of names under the home directory ("home") or the root ("root").
    """
    directory = _place(path, relativity, home or os.path.expanduser("~"))
    return {
        "absolute_path": [printable(part) for part in directory.split("/") if part],
        "absolute_path_string": printable(directory),
        "contents": [
            {
                "name": printable(name),
                "absolute_path_string": printable(os.path.join(directory, name)),
                "is_dir": is_dir,
            }
            for is_dir, name in _entries(directory)
        ],
    }


def _place(path: Sequence[str], relativity: str, home: str) -> str:
    if relativity == "home":
        base = home
    elif relativity == "root":
        base = "/"
    else:
        raise AgentError(400, f'relativity must be "home" or "root", got {relativity!r}')
    directory = os.path.normpath(os.path.join(base, *(part.lstrip("/") for part in path)))
    check_encodable(directory)
    return directory


def _entries(directory: str) -> list[tuple[bool, str]]:
    found: list[tuple[bool, str]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(found) == MAX_ENTRIES:
                    raise AgentError(
                        413,
                        f"{directory} has more than {MAX_ENTRIES} entries; "
                        "use execute with find or ls to look for the ones you need",
                    )
                found.append((_is_dir(entry), entry.name))
    except OSError as error:
        raise from_os(error, f"list {directory}") from error
    return sorted(found, key=lambda each: (not each[0], each[1]))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads nowhere we may look
