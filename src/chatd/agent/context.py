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

from chatd.agent.context_places import Candidate, Places, candidates, within
from chatd.agent.context_skills import BadSkill, parse_skill
from chatd.agent.errors import AgentError
from chatd.agent.paths import open_regular, printable, read_at_most

MAX_BYTES = 64 << 10
MAX_TOTAL = 2 << 20
MAX_ITEMS = 500
MAX_SOURCE = 1024
MAX_ERROR = 4096


@dataclass(frozen=True)
class Resource:
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
class Context:
    version: int
    hash: str
    directory: str
    os: str
    resources: tuple[Resource, ...] = ()

    def body(self) -> dict[str, object]:
        return asdict(self)


def resolve(places: Places, *, version: int) -> Context:
    """Reads everything. Blocks on the disk, for a bounded number of bounded files."""
    resources = tuple(_bounded(_resources(places)))
    return Context(
        version=version,
        hash=aggregate_hash(resources),
        directory=printable(places.working),
        os=sys.platform,
        resources=resources,
    )


def aggregate_hash(resources: Sequence[Resource]) -> str:
    """Of what a model is told. How MCP is set up is not, so it does not count."""
    told = [
        [each.kind, each.source, each.status, each.hash, each.size, each.name, each.description]
        for each in resources
        if not each.kind.startswith("mcp_")
    ]
    return hashlib.sha256(json.dumps(told).encode("ascii")).hexdigest()


def _resources(places: Places) -> Iterator[Resource]:
    for source in places.sources:
        if not places.allows(source):
            reason = "a source must be inside the home directory or the working directory"
            yield Resource("instruction_file", _shown(source), "excluded", error=reason)
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


def _resource(candidate: Candidate) -> Resource:
    if not within(os.path.realpath(candidate.path), os.path.realpath(candidate.root)):
        reason = f"it is a link that leads out of {candidate.root}"
        return _problem(candidate, "excluded", reason)
    try:
        fd, info = open_regular(candidate.path)
        try:
            data = read_at_most(fd, MAX_BYTES + 1, path=candidate.path)
        finally:
            os.close(fd)
    except AgentError as error:
        return _problem(candidate, "unreadable", error.message)
    size = max(info.st_size, len(data))
    found = replace(_problem(candidate, "ok", ""), size=size, hash=hashlib.sha256(data).hexdigest())
    if len(data) > MAX_BYTES:
        return _oversize(found, data)
    return _INTERPRETERS[candidate.kind](found, data)


def _oversize(found: Resource, data: bytes) -> Resource:
    """The beginning of instructions is still worth having; that of anything else is not."""
    reason = f"it has {found.size} bytes, over the limit of {MAX_BYTES}"
    content = ""
    if found.kind == "instruction_file":
        content = data[:MAX_BYTES].decode("utf-8", "ignore")
    return replace(found, status="oversize", error=reason, content=content)


def _instructions(found: Resource, data: bytes) -> Resource:
    text = _text(data)
    if text is None:
        return replace(found, status="invalid", error="it is not UTF-8 text")
    return replace(found, content=text)


def _mcp_config(found: Resource, data: bytes) -> Resource:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return replace(found, status="invalid", error="it is not valid JSON")
    return found


def _skill(found: Resource, data: bytes) -> Resource:
    text = _text(data)
    if text is None:
        return replace(found, status="invalid", error="it is not UTF-8 text")
    directory = os.path.basename(os.path.dirname(found.source))
    try:
        skill = parse_skill(text, directory)
    except BadSkill as bad:
        return replace(found, status="invalid", error=_cut(str(bad), MAX_ERROR))
    return replace(found, name=skill.name, description=skill.description, content=skill.body)


_INTERPRETERS = {"instruction_file": _instructions, "mcp_config": _mcp_config, "skill": _skill}


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _bounded(resources: Iterator[Resource]) -> Iterator[Resource]:
    """Holds the whole to its limits. What is left out is said to be."""
    total = 0
    for index, resource in enumerate(resources):
        if index == MAX_ITEMS - 1:
            more = sum(1 for _ in resources)
            if more:
                reason = f"{more + 1} are left out: there are more than {MAX_ITEMS}"
                yield Resource(resource.kind, resource.source, "excluded", error=reason)
                return
        size = len(resource.content.encode("utf-8"))
        if total + size > MAX_TOTAL:
            reason = f"all together are over the limit of {MAX_TOTAL} bytes"
            yield replace(resource, status="excluded", content="", error=reason)
            continue
        total += size
        yield resource


def _problem(candidate: Candidate, status: str, error: str) -> Resource:
    return Resource(candidate.kind, _shown(candidate.path), status, error=_cut(error, MAX_ERROR))


def _shown(path: str) -> str:
    return _cut(printable(path), MAX_SOURCE)


def _cut(text: str, limit: int) -> str:
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
