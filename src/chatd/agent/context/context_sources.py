"""The context of a workspace for a model: instruction files, skills and MCP configurations.

Decides where they are, in which order they count, what is valid and how much is sent. The server
cleans the texts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from chatd.agent.context.mcp_config import (
    McpConfigError,
    McpServerConfig,
    merge_configs,
    parse_config,
)
from chatd.agent.context.mcp_servers import ServerReport
from chatd.agent.errors import AgentError, clip_text
from chatd.agent.files.file_paths import open_regular, printable_name, read_at_most

# The fixed places of context files, and the parser of SKILL.md headers

INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md", ".cursorrules")
MCP_CONFIG = ".mcp.json"
SKILL_DIRECTORIES = ("skills", ".agents/skills", ".claude/skills", ".codex/skills")
MAX_DESCRIPTION_BYTES = 4096
_MAX_SKILLS_PER_DIRECTORY = 2000
_SKILL_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_KEY = re.compile(r"([A-Za-z_][\w-]*):(?:[ \t]+(.*))?")
_BLOCK = re.compile(r"[|>][+-]?(?:[ \t]+#.*)?")


@dataclass(frozen=True)
class ContextSources:
    home: str
    directory: str

    @property
    def working_directory(self) -> str:
        """The default directory of commands: home until `directory` exists."""
        return self.directory if os.path.isdir(self.directory) else self.home

    def roots(self) -> list[str]:
        roots = [
            self.working_directory,
            os.path.join(self.home, ".chatd"),
            os.path.join(self.home, ".chatd/skills"),
            os.path.join(self.home, ".claude/plugins/cache"),
        ]
        return list(dict.fromkeys(os.path.normpath(each) for each in roots))


class ContextCandidate(NamedTuple):
    kind: str
    path: str
    root: str


def fingerprint(sources: ContextSources) -> tuple[tuple[object, ...], ...]:
    """Changes whenever the result of `read_context` might. Reads names and stats only."""
    stats: list[tuple[object, ...]] = []
    for candidate in find_candidates(sources):
        try:
            info = os.stat(candidate.path)
        except OSError as error:
            stats.append((candidate, error.errno))
            continue
        times = (info.st_mtime_ns, info.st_ctime_ns)
        stats.append((candidate, info.st_dev, info.st_ino, info.st_size, info.st_mode, times))
    return tuple(stats)


def find_candidates(sources: ContextSources) -> Iterator[ContextCandidate]:
    """The paths at which a resource may exist."""
    for root in sources.roots():
        for name in INSTRUCTION_FILES:
            yield ContextCandidate("instruction_file", os.path.join(root, name), root)
        yield ContextCandidate("mcp_config", os.path.join(root, MCP_CONFIG), root)
        directories = [os.path.join(root, name) for name in SKILL_DIRECTORIES]
        if os.path.basename(root) == "skills":
            directories.append(root)
        for directory in directories:
            for name in _list_names(directory):
                yield ContextCandidate("skill", os.path.join(directory, name, "SKILL.md"), root)


def _list_names(directory: str) -> list[str]:
    names: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(names) == _MAX_SKILLS_PER_DIRECTORY:
                    break
                names.append(entry.name)
    except OSError:
        return []
    return sorted(names)


def is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


class SkillError(Exception):
    """The message says what is wrong with the skill."""


@dataclass(frozen=True)
class SkillFile:
    name: str
    description: str
    body: str


def parse_skill(data: bytes, directory: str) -> SkillFile:
    """Parse a SKILL.md with just enough YAML for two strings.

    `directory` is the name of the directory that contains the file; the skill must have the same.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise SkillError("it is not UTF-8 text") from None
    lines = text.replace("\r\n", "\n").lstrip("\ufeff").split("\n")
    if lines[0].rstrip() != "---":
        raise SkillError("SKILL.md must begin with a line of three dashes and name the skill")
    end = next((index for index in range(1, len(lines)) if lines[index].rstrip() == "---"), None)
    if end is None:
        raise SkillError("the header of SKILL.md is not closed by a line of three dashes")
    fields = _parse_header(lines[1:end])
    name, description = fields.get("name", ""), fields.get("description", "")
    if not _SKILL_NAME.fullmatch(name) or len(name) > 256:
        raise SkillError("name must be lower-case words of letters and digits joined by dashes")
    if name != directory:
        raise SkillError(f"name is {name!r} but the directory is {directory!r}")
    if not description:
        raise SkillError("description is missing")
    if len(description.encode("utf-8")) > MAX_DESCRIPTION_BYTES:
        raise SkillError(f"description is longer than {MAX_DESCRIPTION_BYTES} bytes")
    return SkillFile(name, description, "\n".join(lines[end + 1 :]).lstrip("\n"))


def _parse_header(lines: list[str]) -> dict[str, str]:
    """The strings at the top level. Lists and maps are skipped."""
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        key = _KEY.fullmatch(lines[at].rstrip())
        at += 1
        begin = at
        while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t"):
            at += 1
        if key is not None:
            found[key[1]] = _parse_value(key[2] or "", lines[begin:at])
    return found


def _parse_value(first: str, more: list[str]) -> str:
    first = first.strip()
    if _BLOCK.fullmatch(first):
        texts = [line.strip() for line in more]
        return ("\n" if first[0] == "|" else " ").join(texts).strip()
    value = " ".join(part for part in (first, *(line.strip() for line in more)) if part)
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if value.startswith('"'):
        try:
            unquoted: object = json.loads(value)
        except ValueError:
            return value
        return unquoted if isinstance(unquoted, str) else value
    return re.sub(r"\s+#.*", "", value)


# Reading

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


# Declared MCP servers, and their tools as resources


def find_mcp_servers(sources: ContextSources) -> list[McpServerConfig]:
    """Blocks while it reads a few files of bounded size. A file that cannot be used declares
    nothing; its own resource says why."""
    found: list[McpServerConfig] = []
    for candidate in find_candidates(sources):
        if candidate.kind != "mcp_config":
            continue
        if not is_within(os.path.realpath(candidate.path), os.path.realpath(candidate.root)):
            continue
        try:
            found += parse_config(_read_config(candidate.path), printable_name(candidate.path))
        except (AgentError, McpConfigError):
            continue
    return merge_configs(found)


def _read_config(path: str) -> bytes:
    fd, _ = open_regular(path)
    try:
        data = read_at_most(fd, MAX_RESOURCE_BYTES + 1, path=path)
    finally:
        os.close(fd)
    if len(data) > MAX_RESOURCE_BYTES:
        raise McpConfigError("it is too large")
    return data


def server_resources(reports: Sequence[ServerReport]) -> tuple[FoundResource, ...]:
    """A server that was not tried yet is left out."""
    return tuple(
        FoundResource(
            "mcp_server",
            report.source,
            "ok" if report.tools else "unreadable",
            content=report.tools,
            hash=report.hash,
            size=len(report.tools),
            error=clip_text(report.error, MAX_ERROR_BYTES),
            name=report.name,
        )
        for report in reports
        if report.tools or report.error
    )
