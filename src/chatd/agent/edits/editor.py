"""Editing several files at once: first everything in memory, then every file in one rename.

Any refusal while computing means that nothing is written. A failure while writing may leave the
files before it changed; the error then names them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from chatd.agent.edits.diffs import unified_diff
from chatd.agent.edits.matcher import apply_edit
from chatd.agent.errors import AgentError
from chatd.agent.files.paths import (
    open_regular,
    printable_name,
    read_at_most,
    require_absolute,
    resolve_path,
)
from chatd.agent.files.writer import directory_lock, replace_content, require_writable, stat_target

MAX_FILES = 200
MAX_EDITS = 1000
MAX_FILE_BYTES = 10 << 20
MAX_TOTAL_BYTES = 64 << 20
_MAX_REPORTED = 20
_ATTEMPTS = 5


@dataclass(frozen=True)
class EditSpec:
    search: str
    replace: str
    replace_all: bool = False


@dataclass(frozen=True)
class FileEditSpec:
    path: str
    edits: Sequence[EditSpec]


@dataclass(frozen=True)
class PlannedWrite:
    """One file's new content, and what the file was when that was computed."""

    path: str
    target: str
    before: os.stat_result
    old: bytes
    new: bytes


def edit_files(files: Sequence[FileEditSpec], *, include_diff: bool) -> list[dict[str, str]]:
    """Path and diff of each file, in order; the diff is empty if it is not wanted."""
    merged = _merged(files)
    plans = _plan(merged)
    done: list[PlannedWrite] = []
    for index, entry in enumerate(merged):
        try:
            done.append(_commit(entry, plans[index]))
        except AgentError as error:
            written = [plan.path for plan in done if plan.new != plan.old]
            raise _incomplete(error, written, entry.path) from error
    return [{"path": plan.path, "diff": _diff(plan) if include_diff else ""} for plan in done]


def _incomplete(error: AgentError, written: Sequence[str], path: str) -> AgentError:
    if not written:
        return _nothing_applied(error.status, [error.message])
    return AgentError(
        error.status,
        f"{error.message}\nalready written: {', '.join(written)}; "
        f"not written: {path} and what comes after it",
    )


def _merged(files: Sequence[FileEditSpec]) -> list[FileEditSpec]:
    """One entry a path, edits in order. Everything that is wrong is said at once."""
    wrong: list[str] = []
    by_path: dict[str, list[EditSpec]] = {}
    if not files:
        wrong.append("files is required and must not be empty")
    for index, entry in enumerate(files):
        try:
            path = require_absolute(entry.path)
        except AgentError as error:
            wrong.append(f"files[{index}]: {error.message}")
            continue
        if not entry.edits:
            wrong.append(f"files[{index}].edits is required and must not be empty ({path})")
        wrong += [f"files[{index}].edits[{at}]: {text}" for at, text in _bad_edits(entry.edits)]
        by_path.setdefault(path, []).extend(entry.edits)
    if len(by_path) > MAX_FILES or sum(map(len, by_path.values())) > MAX_EDITS:
        wrong.append(f"at most {MAX_FILES} files and {MAX_EDITS} edits can be made at once")
    if wrong:
        raise _nothing_applied(400, wrong)
    return [FileEditSpec(path, edits) for path, edits in by_path.items()]


def _bad_edits(edits: Sequence[EditSpec]) -> list[tuple[int, str]]:
    bad: list[tuple[int, str]] = []
    for index, edit in enumerate(edits):
        if not edit.search:
            bad.append((index, "the text to find is empty; to make a new file use write_file"))
        try:
            (edit.search + edit.replace).encode("utf-8")
        except UnicodeEncodeError:
            bad.append((index, "the text is not valid Unicode"))
    return bad


def _plan(files: Sequence[FileEditSpec]) -> list[PlannedWrite]:
    plans: list[PlannedWrite] = []
    wrong: list[AgentError] = []
    names: dict[tuple[int, int], str] = {}
    room = MAX_TOTAL_BYTES
    for entry in files:
        try:
            target, before, old = _read(entry.path, room)
            other = names.setdefault((before.st_dev, before.st_ino), entry.path)
            if other != entry.path:
                raise AgentError(
                    400, f"{entry.path} and {other} are the same file; put all edits under one path"
                )
            room -= len(old)
            plans.append(PlannedWrite(entry.path, target, before, old, _edited(entry, old)))
        except AgentError as error:
            wrong.append(error)
    if wrong:
        status = max(error.status for error in wrong)
        raise _nothing_applied(status, [error.message for error in wrong])
    return plans


def _read(path: str, room: int) -> tuple[str, os.stat_result, bytes]:
    target = resolve_path(path)
    fd, info = open_regular(target)
    try:
        limit = min(MAX_FILE_BYTES, room)
        data = read_at_most(fd, limit + 1, path=path) if info.st_size <= limit else None
    finally:
        os.close(fd)
    if data is None or len(data) > limit:
        raise AgentError(
            413,
            f"{path} is too large to edit: at most {MAX_FILE_BYTES} bytes a file and "
            f"{MAX_TOTAL_BYTES} bytes in all; use execute with sed or a script",
        )
    require_writable(info, target)
    return target, info, data


def _edited(entry: FileEditSpec, old: bytes) -> bytes:
    """Bytes that are not UTF-8 pass through unharmed. Every edit that fails is reported."""
    content = old.decode("utf-8", "surrogateescape")
    wrong: list[AgentError] = []
    for number, edit in enumerate(entry.edits, start=1):
        try:
            content = apply_edit(content, edit.search, edit.replace, replace_all=edit.replace_all)
        except AgentError as error:
            which = f"edit {number} of {len(entry.edits)}: " if len(entry.edits) > 1 else ""
            wrong.append(AgentError(error.status, f"{entry.path}: {which}{error.message}"))
    if wrong:
        status = max(error.status for error in wrong)
        raise AgentError(status, "\n".join(error.message for error in wrong[:_MAX_REPORTED]))
    return content.encode("utf-8", "surrogateescape")


def _commit(entry: FileEditSpec, plan: PlannedWrite) -> PlannedWrite:
    """Writes the file if it is still what the plan was made for; otherwise plans it again."""
    if plan.new == plan.old:
        return plan
    with directory_lock(plan.target):
        for _ in range(_ATTEMPTS):
            if not _has_changed(plan):
                if plan.new != plan.old:
                    replace_content(plan.target, plan.new, before=plan.before)
                return plan
            (plan,) = _plan([entry])
    raise AgentError(409, f"{entry.path} kept changing while it was edited; try again")


def _has_changed(plan: PlannedWrite) -> bool:
    now = stat_target(plan.target)
    return now is None or _identity(now) != _identity(plan.before)


def _identity(info: os.stat_result) -> tuple[int, int, int, int]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _diff(plan: PlannedWrite) -> str:
    old, new = plan.old.decode("utf-8", "replace"), plan.new.decode("utf-8", "replace")
    return unified_diff(old, new, printable_name(plan.path))


def _nothing_applied(status: int, wrong: Sequence[str]) -> AgentError:
    shown = [*wrong[:_MAX_REPORTED]]
    if len(wrong) > _MAX_REPORTED:
        shown.append(f"and {len(wrong) - _MAX_REPORTED} more")
    return AgentError(status, "\n".join([*shown, "nothing in this batch was applied"]))
