"""Edits several files: computes all results in memory, then writes each file in one rename.

An error while computing means that nothing is written. An error while writing may leave earlier
files written; the error names them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from chatd.agent.errors import AgentError
from chatd.agent.files.edit_matcher import EMPTY_SEARCH_TEXT, apply_edit
from chatd.agent.files.file_content import (
    directory_lock,
    replace_content,
    require_writable,
    stat_target,
)
from chatd.agent.files.file_paths import (
    open_regular,
    printable_name,
    read_at_most,
    require_absolute,
    resolve_path,
)

# Unified diffs in bounded time and size. A diff of too many lines is one block; a diff of too many
# characters is left out.

CONTEXT_LINES = 3
MAX_DIFF_CHARS = 256 << 10
# Beyond this many changed lines the diff removes one block and adds one block.
_MAX_COMPARED_LINES = 20_000
_NO_NEWLINE = "\\ No newline at end of file\n"

Opcode = tuple[str, int, int, int, int]


def unified_diff(old: str, new: str, label: str) -> str:
    """Empty if nothing changed. `label`, the requested path, names both sides."""
    if old == new:
        return ""
    before, after = _lines(old), _lines(new)
    diff = "".join(_render(before, after, label))
    if len(diff) > MAX_DIFF_CHARS:
        return f"--- {label}\n+++ {label}\n(the diff has {len(diff)} characters and is left out)\n"
    return diff


def _lines(text: str) -> list[str]:
    """Split at "\\n" only, not at a form feed or U+2028."""
    lines = [f"{piece}\n" for piece in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _render(before: Sequence[str], after: Sequence[str], label: str) -> Iterator[str]:
    yield f"--- {label}\n+++ {label}\n"
    for group in _groups(_opcodes(before, after)):
        first, last = group[0], group[-1]
        yield f"@@ -{_span(first[1], last[2])} +{_span(first[3], last[4])} @@\n"
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                yield from _marked(" ", before[old_from:old_to])
            else:
                yield from _marked("-", before[old_from:old_to])
                yield from _marked("+", after[new_from:new_to])


def _marked(sign: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n{_NO_NEWLINE}"


def _span(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _opcodes(before: Sequence[str], after: Sequence[str]) -> list[Opcode]:
    """Those of difflib, which compares only the lines between the common start and end."""
    head = _common_length(before, after)
    tail = _common_length(before[head:][::-1], after[head:][::-1])
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    codes: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    if max(len(old), len(new)) > _MAX_COMPARED_LINES:
        codes.append(("replace", head, head + len(old), head, head + len(new)))
    else:
        codes += [
            (tag, a + head, b + head, c + head, d + head)
            for tag, a, b, c, d in SequenceMatcher(None, old, new).get_opcodes()
        ]
    if tail:
        codes.append(("equal", len(before) - tail, len(before), len(after) - tail, len(after)))
    return codes


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


def _groups(codes: Sequence[Opcode]) -> Iterator[list[Opcode]]:
    """Hunks: changes with their context lines, split where more lines lie between."""
    group: list[Opcode] = []
    for index, (tag, a, b, c, d) in enumerate(codes):
        if tag != "equal":
            group.append((tag, a, b, c, d))
            continue
        if group and (b - a > 2 * CONTEXT_LINES or index == len(codes) - 1):
            keep = min(CONTEXT_LINES, b - a)
            yield [*group, ("equal", a, a + keep, c, c + keep)]
            group = []
        if index < len(codes) - 1:
            keep = b - a if group else min(CONTEXT_LINES, b - a)
            group.append(("equal", b - keep, b, d - keep, d))
    if group:
        yield group


# The editor

MAX_EDITED_FILES = 200
MAX_EDITS = 1000
MAX_EDITED_FILE_BYTES = 10 << 20
MAX_EDITED_BYTES = 64 << 20
_MAX_REPORTED_ERRORS = 20
_MAX_WRITE_ATTEMPTS = 5


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
    """A file's new content, and the content and stat from which it was computed."""

    path: str
    target: str
    before: os.stat_result
    old: bytes
    new: bytes


def edit_files(files: Sequence[FileEditSpec], *, include_diff: bool) -> list[dict[str, str]]:
    """Path and diff of each file, in order; without `include_diff` the diffs are empty."""
    merged = _merge_by_path(files)
    plans = _plan(merged)
    done: list[PlannedWrite] = []
    for index, entry in enumerate(merged):
        try:
            done.append(_write(entry, plans[index]))
        except AgentError as error:
            written = [plan.path for plan in done if plan.new != plan.old]
            raise _incomplete_error(error, written, entry.path) from error
    return [{"path": plan.path, "diff": _diff(plan) if include_diff else ""} for plan in done]


def _incomplete_error(error: AgentError, written: Sequence[str], path: str) -> AgentError:
    if not written:
        return _nothing_applied_error(error.status, [error.message])
    return AgentError(
        error.status,
        f"{error.message}\nalready written: {', '.join(written)}; "
        f"not written: {path} and the files after it",
    )


def _merge_by_path(files: Sequence[FileEditSpec]) -> list[FileEditSpec]:
    """One entry per path, with its edits in order. Reports all invalid fields at once."""
    errors: list[str] = []
    by_path: dict[str, list[EditSpec]] = {}
    if not files:
        errors.append("files is required and must not be empty")
    for index, entry in enumerate(files):
        try:
            path = require_absolute(entry.path)
        except AgentError as error:
            errors.append(f"files[{index}]: {error.message}")
            continue
        if not entry.edits:
            errors.append(f"files[{index}].edits is required and must not be empty ({path})")
        errors += [f"files[{index}].edits[{at}]: {text}" for at, text in _check_edits(entry.edits)]
        by_path.setdefault(path, []).extend(entry.edits)
    if len(by_path) > MAX_EDITED_FILES or sum(map(len, by_path.values())) > MAX_EDITS:
        errors.append(f"at most {MAX_EDITED_FILES} files and {MAX_EDITS} edits can be made at once")
    if errors:
        raise _nothing_applied_error(400, errors)
    return [FileEditSpec(path, edits) for path, edits in by_path.items()]


def _check_edits(edits: Sequence[EditSpec]) -> list[tuple[int, str]]:
    errors: list[tuple[int, str]] = []
    for index, edit in enumerate(edits):
        if not edit.search:
            errors.append((index, EMPTY_SEARCH_TEXT))
        try:
            (edit.search + edit.replace).encode("utf-8")
        except UnicodeEncodeError:
            errors.append((index, "the text is not valid Unicode"))
    return errors


def _plan(files: Sequence[FileEditSpec]) -> list[PlannedWrite]:
    plans: list[PlannedWrite] = []
    errors: list[AgentError] = []
    path_by_inode: dict[tuple[int, int], str] = {}
    free_bytes = MAX_EDITED_BYTES
    for entry in files:
        try:
            target, before, old = _read(entry.path, free_bytes)
            other = path_by_inode.setdefault((before.st_dev, before.st_ino), entry.path)
            if other != entry.path:
                raise AgentError(
                    400, f"{entry.path} and {other} are the same file; put all edits under one path"
                )
            free_bytes -= len(old)
            plans.append(PlannedWrite(entry.path, target, before, old, _apply_edits(entry, old)))
        except AgentError as error:
            errors.append(error)
    if errors:
        status = max(error.status for error in errors)
        raise _nothing_applied_error(status, [error.message for error in errors])
    return plans


def _read(path: str, free_bytes: int) -> tuple[str, os.stat_result, bytes]:
    target = resolve_path(path)
    fd, info = open_regular(target)
    try:
        limit = min(MAX_EDITED_FILE_BYTES, free_bytes)
        data = read_at_most(fd, limit + 1, path=path) if info.st_size <= limit else None
    finally:
        os.close(fd)
    if data is None or len(data) > limit:
        raise AgentError(
            413,
            f"{path} is too large to edit: at most {MAX_EDITED_FILE_BYTES} bytes a file and "
            f"{MAX_EDITED_BYTES} bytes in all; use execute with sed or a script",
        )
    require_writable(info, target)
    return target, info, data


def _apply_edits(entry: FileEditSpec, old: bytes) -> bytes:
    """Bytes that are not UTF-8 stay unchanged. Reports every edit that fails."""
    content = old.decode("utf-8", "surrogateescape")
    errors: list[AgentError] = []
    for number, edit in enumerate(entry.edits, start=1):
        try:
            content = apply_edit(content, edit.search, edit.replace, replace_all=edit.replace_all)
        except AgentError as error:
            which = f"edit {number} of {len(entry.edits)}: " if len(entry.edits) > 1 else ""
            errors.append(AgentError(error.status, f"{entry.path}: {which}{error.message}"))
    if errors:
        status = max(error.status for error in errors)
        messages = [error.message for error in errors[:_MAX_REPORTED_ERRORS]]
        raise AgentError(status, "\n".join(messages))
    return content.encode("utf-8", "surrogateescape")


def _write(entry: FileEditSpec, plan: PlannedWrite) -> PlannedWrite:
    """Write the file, or plan again if it has changed since the plan."""
    if plan.new == plan.old:
        return plan
    with directory_lock(plan.target):
        for _ in range(_MAX_WRITE_ATTEMPTS):
            if not _has_changed(plan):
                if plan.new != plan.old:
                    replace_content(plan.target, plan.new, before=plan.before)
                return plan
            target, before, old = _read(entry.path, MAX_EDITED_BYTES)
            plan = PlannedWrite(entry.path, target, before, old, _apply_edits(entry, old))
    raise AgentError(409, f"{entry.path} kept changing while it was edited; try again")


def _has_changed(plan: PlannedWrite) -> bool:
    current = stat_target(plan.target)
    return current is None or _identity(current) != _identity(plan.before)


def _identity(info: os.stat_result) -> tuple[int, int, int, int]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _diff(plan: PlannedWrite) -> str:
    old, new = plan.old.decode("utf-8", "replace"), plan.new.decode("utf-8", "replace")
    return unified_diff(old, new, printable_name(plan.path))


def _nothing_applied_error(status: int, errors: Sequence[str]) -> AgentError:
    lines = [*errors[:_MAX_REPORTED_ERRORS]]
    if len(errors) > _MAX_REPORTED_ERRORS:
        lines.append(f"and {len(errors) - _MAX_REPORTED_ERRORS} more")
    return AgentError(status, "\n".join([*lines, "nothing in this batch was applied"]))
