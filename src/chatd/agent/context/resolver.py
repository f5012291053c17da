"""Read the workspace's context for a model: instruction files, skills and MCP configurations.

Owns what counts as valid and how much is sent. The server cleans the texts.
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
    find_candidates,
    is_within,
    parse_skill,
)
from chatd.agent.errors import AgentError
from chatd.agent.files.paths import open_regular, printable_name, read_at_most
from chatd.agent.mcp.config import McpConfigError, parse_config
from chatd.agent.text import clip_text

MAX_RESOURCE_BYTES = 64 << 10
MAX_CONTEXT_BYTES = 2 << 20
MAX_RESOURCES = 500
MAX_SOURCE_BYTES = 1024
MAX_ERROR_BYTES = 4096


@dataclass(frozen=True)
class FoundResource:
    """`source` is the path before links are resolved. An MCP configuration may contain secrets:
    its content never leaves the workspace, only its hash does."""

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


def read_context(sources: ContextSources, *, version: int) -> ContextSnapshot:
    """Blocks while it reads a bounded number of files of bounded size."""
    resources = tuple(_limit(_find_resources(sources)))
    return ContextSnapshot(
        version=version,
        hash=aggregate_hash(resources),
        directory=printable_name(sources.working_directory),
        os=sys.platform,
        resources=resources,
    )


def aggregate_hash(resources: Sequence[FoundResource]) -> str:
    """The hash of what the model reads, which does not include MCP configurations."""
    values = [
        [each.kind, each.source, each.status, each.hash, each.size, each.name, each.description]
        for each in resources
        if not each.kind.startswith("mcp_")
    ]
    return hashlib.sha256(json.dumps(values).encode("ascii")).hexdigest()


def _find_resources(sources: ContextSources) -> Iterator[FoundResource]:
    found: set[tuple[int, int]] = set()
    for candidate in find_candidates(sources):
        try:
            info = os.stat(candidate.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield _resource(candidate, "unreadable", os.strerror(error.errno or 0).lower())
            continue
        # Several names of one file are one resource.
        if (info.st_dev, info.st_ino) not in found:
            found.add((info.st_dev, info.st_ino))
            yield _read(candidate)


def _read(candidate: ContextCandidate) -> FoundResource:
    if not is_within(os.path.realpath(candidate.path), os.path.realpath(candidate.root)):
        return _resource(candidate, "excluded", f"it is a link that leads out of {candidate.root}")
    try:
        fd, info = open_regular(candidate.path)
        try:
            data = read_at_most(fd, MAX_RESOURCE_BYTES + 1, path=candidate.path)
        finally:
            os.close(fd)
    except AgentError as error:
        return _resource(candidate, "unreadable", error.message)
    size = max(info.st_size, len(data))
    resource = replace(
        _resource(candidate, "ok", ""), size=size, hash=hashlib.sha256(data).hexdigest()
    )
    if len(data) > MAX_RESOURCE_BYTES:
        return _oversize(resource, data)
    return _PARSERS[candidate.kind](resource, data)


def _oversize(resource: FoundResource, data: bytes) -> FoundResource:
    """Keeps the beginning of instructions; the beginning of any other kind is of no use."""
    reason = f"it has {resource.size} bytes, over the limit of {MAX_RESOURCE_BYTES}"
    content = ""
    if resource.kind == "instruction_file":
        content = data[:MAX_RESOURCE_BYTES].decode("utf-8", "ignore")
    return replace(resource, status="oversize", error=reason, content=content)


def _parse_instructions(resource: FoundResource, data: bytes) -> FoundResource:
    try:
        return replace(resource, content=data.decode("utf-8"))
    except UnicodeDecodeError:
        return replace(resource, status="invalid", error="it is not UTF-8 text")


def _parse_mcp_config(resource: FoundResource, data: bytes) -> FoundResource:
    try:
        parse_config(data)
    except McpConfigError as error:
        return replace(resource, status="invalid", error=str(error))
    return resource


def _parse_skill(resource: FoundResource, data: bytes) -> FoundResource:
    directory = os.path.basename(os.path.dirname(resource.source))
    try:
        skill = parse_skill(data, directory)
    except SkillError as error:
        text = clip_text(str(error), MAX_ERROR_BYTES)
        return replace(resource, status="invalid", error=text)
    return replace(resource, name=skill.name, description=skill.description, content=skill.body)


_PARSERS = {
    "instruction_file": _parse_instructions,
    "mcp_config": _parse_mcp_config,
    "skill": _parse_skill,
}


def _limit(resources: Iterator[FoundResource]) -> Iterator[FoundResource]:
    """Apply the limits of number and total size; an excluded resource says so."""
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
            reason = f"all resources together are over the limit of {MAX_CONTEXT_BYTES} bytes"
            yield replace(resource, status="excluded", content="", error=reason)
            continue
        total += size
        yield resource


def _resource(candidate: ContextCandidate, status: str, error: str) -> FoundResource:
    source = clip_text(printable_name(candidate.path), MAX_SOURCE_BYTES)
    return FoundResource(candidate.kind, source, status, error=clip_text(error, MAX_ERROR_BYTES))
