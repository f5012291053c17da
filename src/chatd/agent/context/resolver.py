"""What the workspace has to say to a model: instruction files, skills, and that MCP is set up.

Owns what counts and how much of it is told. Where to look is in `context_places`; that something
has changed is noticed in `watching`, and cleaning the texts is left to the server.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from chatd.agent.context.sources import (
    ContextCandidate,
    ContextSources,
    SkillError,
    candidates,
    is_within,
    parse_skill,
)
from chatd.agent.errors import AgentError
from chatd.agent.files.paths import open_regular, printable_name, read_at_most

MAX_RESOURCE_BYTES = 64 << 10
MAX_CONTEXT_BYTES = 2 << 20
MAX_RESOURCES = 500
MAX_SOURCE_CHARS = 1024
MAX_ERROR_CHARS = 4096


@dataclass(frozen=True)
class FoundResource:
    """`source` is the path as it was looked for. An MCP configuration may hold secrets: its
    content never leaves the workspace, only its hash does."""

    kind: str
    source: str
    status: str
    content: str = ""
    hash: str = ""
    size: int = 0
    error: str = ""
    name: str = ""
    description: str = ""


@dataclass(frozen=True)
class ContextSnapshot:
    version: int
    hash: str
    directory: str
    os: str
    resources: tuple[FoundResource, ...] = ()

    def body(self) -> dict[str, object]:
        return asdict(self)


def read_context(places: ContextSources, *, version: int) -> ContextSnapshot:
    """Reads everything. Blocks on the disk, for a bounded number of bounded files."""
    resources = tuple(_bounded(_resources(places)))
    return ContextSnapshot(
        version=version,
        hash=aggregate_hash(resources),
        directory=printable_name(places.working),
        os=sys.platform,
        resources=resources,
    )


def aggregate_hash(resources: Sequence[FoundResource]) -> str:
    """Of what a model is told. How MCP is set up is not, so it does not count."""
    told = [
        [each.kind, each.source, each.status, each.hash, each.size, each.name, each.description]
        for each in resources
        if not each.kind.startswith("mcp_")
    ]
    return hashlib.sha256(json.dumps(told).encode("ascii")).hexdigest()


def _resources(places: ContextSources) -> Iterator[FoundResource]:
    for source in places.sources:
        if not places.allows(source):
            reason = "a source must be inside the home directory or the working directory"
            yield FoundResource("instruction_file", _shown(source), "excluded", error=reason)
    seen: set[tuple[int, int]] = set()
    for candidate in candidates(places):
        try:
            info = os.stat(candidate.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield _problem(candidate, "unreadable", os.strerror(error.errno or 0).lower())
            continue
        # Several names of one file, or one place reached from two roots, are one resource.
        if (info.st_dev, info.st_ino) in seen:
            continue
        seen.add((info.st_dev, info.st_ino))
        yield _resource(candidate)


def _resource(candidate: ContextCandidate) -> FoundResource:
    if not is_within(os.path.realpath(candidate.path), os.path.realpath(candidate.root)):
        reason = f"it is a link that leads out of {candidate.root}"
        return _problem(candidate, "excluded", reason)
    try:
        fd, info = open_regular(candidate.path)
        try:
            data = read_at_most(fd, MAX_RESOURCE_BYTES + 1, path=candidate.path)
        finally:
            os.close(fd)
    except AgentError as error:
        return _problem(candidate, "unreadable", error.message)
    size = max(info.st_size, len(data))
    found = replace(_problem(candidate, "ok", ""), size=size, hash=hashlib.sha256(data).hexdigest())
    if len(data) > MAX_RESOURCE_BYTES:
        return _oversize(found, data)
    return _INTERPRETERS[candidate.kind](found, data)


def _oversize(found: FoundResource, data: bytes) -> FoundResource:
    """The beginning of instructions is still worth having; that of anything else is not."""
    reason = f"it has {found.size} bytes, over the limit of {MAX_RESOURCE_BYTES}"
    content = ""
    if found.kind == "instruction_file":
        content = data[:MAX_RESOURCE_BYTES].decode("utf-8", "ignore")
    return replace(found, status="oversize", error=reason, content=content)


def _instructions(found: FoundResource, data: bytes) -> FoundResource:
    text = _text(data)
    if text is None:
        return replace(found, status="invalid", error="it is not UTF-8 text")
    return replace(found, content=text)


def _mcp_config(found: FoundResource, data: bytes) -> FoundResource:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return replace(found, status="invalid", error="it is not valid JSON")
    return found


def _skill(found: FoundResource, data: bytes) -> FoundResource:
    text = _text(data)
    if text is None:
        return replace(found, status="invalid", error="it is not UTF-8 text")
    directory = os.path.basename(os.path.dirname(found.source))
    try:
        skill = parse_skill(text, directory)
    except SkillError as bad:
        return replace(found, status="invalid", error=_cut(str(bad), MAX_ERROR_CHARS))
    return replace(found, name=skill.name, description=skill.description, content=skill.body)


_INTERPRETERS = {"instruction_file": _instructions, "mcp_config": _mcp_config, "skill": _skill}


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _bounded(resources: Iterator[FoundResource]) -> Iterator[FoundResource]:
    """Holds the whole to its limits. What is left out is said to be."""
    total = 0
    for index, resource in enumerate(resources):
        if index == MAX_RESOURCES - 1:
            more = sum(1 for _ in resources)
            if more:
                reason = f"{more + 1} are left out: there are more than {MAX_RESOURCES}"
                yield FoundResource(resource.kind, resource.source, "excluded", error=reason)
                return
        size = len(resource.content.encode("utf-8"))
        if total + size > MAX_CONTEXT_BYTES:
            reason = f"all together are over the limit of {MAX_CONTEXT_BYTES} bytes"
            yield replace(resource, status="excluded", content="", error=reason)
            continue
        total += size
        yield resource


def _problem(candidate: ContextCandidate, status: str, error: str) -> FoundResource:
    return FoundResource(
        candidate.kind, _shown(candidate.path), status, error=_cut(error, MAX_ERROR_CHARS)
    )


def _shown(path: str) -> str:
    return _cut(printable_name(path), MAX_SOURCE_CHARS)


def _cut(text: str, limit: int) -> str:
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
