"""Which versions of messages an export and a fork carry, and what a file may say of them.

A message that was edited or answered again has versions, each the beginning of a line of messages.
One version is within another line or within history; the others begin hidden lines of their own. A
copy has those that its reader can reach from history. All versions of a message follow the same
messages: with that and the order of ids no line can contain itself.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.chat.row import LineEnd

HISTORY: Final = 0
"""Stands for history where a line is named by the id of its first message."""


class VersionRow(Struct, frozen=True, kw_only=True):
    """A stored version. `hidden` are the messages of its line, with the version as the first; None:
    it is within another line, or within history if `is_shown`. `previous` is the message before it
    in history."""

    message_id: int
    group_id: int
    hidden: tuple[int, ...] | None = None
    end: LineEnd | None = None
    is_shown: bool = False
    previous: int | None = None


class CopiedVersion(Struct, frozen=True, kw_only=True):
    """`first` is the first version of the message."""

    message_id: int
    first: int
    hidden: tuple[int, ...] | None = None
    end: LineEnd | None = None


class CopiedVersions(Struct, frozen=True, kw_only=True):
    """`lines` are the hidden lines by their messages; `left_out` the hidden messages that are not
    copied."""

    versions: tuple[CopiedVersion, ...] = ()
    lines: Mapping[int, int] = {}
    left_out: frozenset[int] = frozenset()

    @property
    def hidden(self) -> list[int]:
        return sorted(self.lines)


NO_VERSIONS: Final = CopiedVersions()


def reachable_versions(rows: Sequence[VersionRow], until: int | None = None) -> CopiedVersions:
    """What can be shown from history, step by step. With `until` only versions of the messages of
    history up to that one, each with its whole line."""
    lines = _lines(rows)
    whole = {row.message_id: sorted(row.hidden) for row in rows if row.hidden is not None}
    groups: dict[int, list[VersionRow]] = {}
    for row in rows:
        groups.setdefault(row.group_id, []).append(row)
    within: dict[int, list[list[VersionRow]]] = {}
    for group in groups.values():
        if (line := _line_of_group(group, lines, whole, until)) is not None:
            within.setdefault(line, []).append(group)
    found: list[CopiedVersion] = []
    kept: dict[int, int] = {}
    todo = [HISTORY]
    while todo:
        for group in within.get(todo.pop(), ()):
            first = min(row.message_id for row in group if _is_copied(row, lines))
            for row in group:
                if not _is_copied(row, lines):
                    continue
                found.append(
                    CopiedVersion(
                        message_id=row.message_id, first=first, hidden=row.hidden, end=row.end
                    )
                )
                if row.hidden is not None:
                    kept.update(dict.fromkeys(row.hidden, row.message_id))
                    todo.append(row.message_id)
    return CopiedVersions(
        versions=tuple(sorted(found, key=lambda version: version.message_id)),
        lines=kept,
        left_out=frozenset(one for row in rows for one in row.hidden or () if one not in kept),
    )


def _lines(rows: Iterable[VersionRow]) -> dict[int, int]:
    """The hidden lines by their messages, of rows that can be stored lines."""
    lines: dict[int, int] = {}
    for row in rows:
        hidden = row.hidden or ()
        if hidden and min(hidden) == row.message_id and lines.keys().isdisjoint(hidden):
            lines.update(dict.fromkeys(hidden, row.message_id))
    return lines


def _is_copied(row: VersionRow, lines: Mapping[int, int]) -> bool:
    if row.hidden is None:
        return row.is_shown or row.message_id in lines
    return lines.get(row.message_id) == row.message_id


def _line_of_group(
    group: Sequence[VersionRow],
    lines: Mapping[int, int],
    whole: Mapping[int, Sequence[int]],
    until: int | None,
) -> int | None:
    """The line from which its versions are reached. None if they cannot be shown, or if there are
    no two of them. `whole` are the messages of each line, in order."""
    copied = [row for row in group if _is_copied(row, lines)]
    shown = [row for row in copied if row.hidden is None]
    if len(shown) != 1 or len(copied) == 1:
        return None
    at = shown[0]
    first = min(row.message_id for row in copied)
    if at.is_shown:
        is_wanted = until is None or at.message_id <= until
        return HISTORY if is_wanted and (at.previous or 0) < first else None
    line = lines[at.message_id]
    place = bisect_left(whole[line], at.message_id)
    return line if place > 0 and whole[line][place - 1] < first else None


class LineReader:
    """Checks what the messages of a chat in a file say of their versions. Raises ValueError with
    what is wrong."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {HISTORY: 0}
        self._versions: dict[int, int] = {}
        self._shown: set[int] = set()

    def add(
        self, message_id: int, *, line: int | None, version_of: int | None, is_prompt: bool
    ) -> int:
        """The line of the message. Messages come in the order of their ids."""
        if line == message_id:
            if version_of is None:
                raise ValueError("a hidden line begins with a message that has version_of")
        elif line is not None and line not in self._last:
            raise ValueError("line must be the first message of a hidden line, and not a later one")
        place = HISTORY if line is None else line
        if version_of is not None:
            if not is_prompt:
                raise ValueError("only a message of a user has versions")
            self._add_version(message_id, place, version_of)
        self._last[place] = message_id
        return place

    def _add_version(self, message_id: int, line: int, first: int) -> None:
        if first != message_id and first not in self._versions:
            raise ValueError("version_of must be the first version of the message")
        self._versions[first] = self._versions.get(first, 0) + 1
        if line == message_id:
            return
        if first in self._shown:
            raise ValueError(f"of the versions of message {first} two are not hidden")
        if self._last[line] >= first:
            raise ValueError(f"the versions of message {first} do not follow the same message")
        self._shown.add(first)

    def finish(self) -> None:
        for first, count in self._versions.items():
            if first not in self._shown:
                raise ValueError(f"all versions of message {first} are hidden")
            if count == 1:
                raise ValueError(f"message {first} has no other version")
