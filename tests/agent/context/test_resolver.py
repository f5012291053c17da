"""The context read from a workspace, and the reasons for exclusions."""

import hashlib
import json
import os
from pathlib import Path

import msgspec
import pytest

from chatd.agent.context import context_sources
from chatd.agent.context.context_sources import (
    ContextSources,
    FoundResource,
    fingerprint,
    read_context,
)
from chatd.domain.workspace import agent_api
from chatd.domain.workspace.agent_api import check_context

SKILL = "---\nname: {name}\ndescription: Does {name}.\n---\n\nHow to {name}.\n"


@pytest.fixture
def sources(tmp_path: Path) -> ContextSources:
    (tmp_path / "home/.chatd").mkdir(parents=True)
    (tmp_path / "home/work").mkdir()
    return ContextSources(home=str(tmp_path / "home"), directory=str(tmp_path / "home/work"))


def write(path: str | Path, content: str | bytes = "x") -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read_all(sources: ContextSources) -> list[tuple[str, str, str]]:
    """Kind, status and source below the home directory."""
    return [
        (each.kind, each.status, each.source.removeprefix(f"{sources.home}/"))
        for each in read_context(sources, version=1).resources
    ]


def read_one(sources: ContextSources) -> FoundResource:
    (resource,) = read_context(sources, version=1).resources
    return resource


@pytest.mark.covers("instructions-1")
def test_an_empty_workspace_has_a_context_without_resources(sources: ContextSources) -> None:
    empty = read_context(sources, version=7)
    assert (empty.version, empty.directory, empty.os) == (7, sources.directory, "linux")
    assert empty.resources == ()
    assert len(empty.hash) == 64


@pytest.mark.covers("instructions-1")
def test_instructions_and_skills_are_found_in_fixed_places(sources: ContextSources) -> None:
    for name in ("AGENTS.md", "CLAUDE.md", ".cursorrules"):
        write(f"{sources.directory}/{name}", name)
    write(f"{sources.home}/.chatd/AGENTS.md", "home")
    write(f"{sources.directory}/.mcp.json", "{}")
    for place in ("skills", ".agents/skills", ".claude/skills", ".codex/skills"):
        name = place.strip(".").replace("/", "-")
        write(f"{sources.directory}/{place}/{name}/SKILL.md", SKILL.format(name=name))
    write(f"{sources.home}/.chatd/skills/mine/SKILL.md", SKILL.format(name="mine"))
    assert read_all(sources) == [
        ("instruction_file", "ok", "work/AGENTS.md"),
        ("instruction_file", "ok", "work/CLAUDE.md"),
        ("instruction_file", "ok", "work/.cursorrules"),
        ("mcp_config", "ok", "work/.mcp.json"),
        ("skill", "ok", "work/skills/skills/SKILL.md"),
        ("skill", "ok", "work/.agents/skills/agents-skills/SKILL.md"),
        ("skill", "ok", "work/.claude/skills/claude-skills/SKILL.md"),
        ("skill", "ok", "work/.codex/skills/codex-skills/SKILL.md"),
        ("instruction_file", "ok", ".chatd/AGENTS.md"),
        ("skill", "ok", ".chatd/skills/mine/SKILL.md"),
    ]


@pytest.mark.parametrize("directory", ["", "missing"])
def test_home_is_used_until_the_directory_exists(sources: ContextSources, directory: str) -> None:
    write(f"{sources.home}/AGENTS.md")
    early = ContextSources(home=sources.home, directory=directory and f"{sources.home}/{directory}")
    assert read_context(early, version=1).directory == sources.home
    assert read_all(early) == [("instruction_file", "ok", "AGENTS.md")]
    if directory:
        before = fingerprint(early)
        os.mkdir(early.directory)
        assert fingerprint(early) != before
        assert read_context(early, version=1).directory == early.directory
        assert read_all(early) == []


def test_subdirectories_and_other_spellings_are_ignored(sources: ContextSources) -> None:
    write(f"{sources.directory}/sub/AGENTS.md")
    write(f"{sources.directory}/agents.md")
    write(f"{sources.directory}/Agents.md")
    write(f"{sources.home}/AGENTS.md")
    write(f"{sources.directory}/sub/.mcp.json", "{}")
    write(f"{sources.directory}/skills/group/deep/SKILL.md", SKILL.format(name="deep"))
    write(f"{sources.directory}/skills/README.md")
    assert read_all(sources) == []


def test_a_resource_has_its_size_and_hash(sources: ContextSources) -> None:
    source = write(f"{sources.directory}/AGENTS.md", "be kind ü\r\n")
    assert read_one(sources) == FoundResource(
        kind="instruction_file",
        source=source,
        status="ok",
        content="be kind ü\r\n",
        hash=hashlib.sha256("be kind ü\r\n".encode()).hexdigest(),
        size=12,
    )


def test_the_content_of_an_mcp_configuration_is_not_sent(sources: ContextSources) -> None:
    write(f"{sources.directory}/.mcp.json", '{"token": "secret"}')
    config = read_one(sources)
    assert (config.status, config.content, bool(config.hash)) == ("ok", "", True)
    write(f"{sources.directory}/.mcp.json", '{"token": "secret"')
    config = read_one(sources)
    assert (config.status, config.content) == ("invalid", "")
    assert "secret" not in json.dumps(read_context(sources, version=1).body())


def test_a_skill_has_a_name_a_description_and_a_body(sources: ContextSources) -> None:
    write(f"{sources.directory}/skills/bake/SKILL.md", SKILL.format(name="bake"))
    skill = read_one(sources)
    assert (skill.name, skill.description) == ("bake", "Does bake.")
    assert skill.content == "How to bake.\n"


@pytest.mark.parametrize(
    ("header", "description"),
    [
        ("name: a\ndescription: plain # not this", "plain"),
        ("name: 'a'\ndescription: 'it''s: so'", "it's: so"),
        ('description: "a \\"b\\""\nname: "a"', 'a "b"'),
        ("name: a\ndescription: >-\n  two\n  lines\nother: x", "two lines"),
        ("name: a\ndescription: |\n  two\n  lines", "two\nlines"),
        ("name: a\ndescription: goes\n  on", "goes on"),
        ("tools:\n  - x\n  - name: y\nname: a\ndescription: z", "z"),
        ("name: a \r\ndescription: dos\r", "dos"),
    ],
)
def test_common_skill_headers_are_parsed(
    sources: ContextSources, header: str, description: str
) -> None:
    write(f"{sources.directory}/skills/a/SKILL.md", f"---\n{header}\n---\nbody")
    skill = read_one(sources)
    assert (skill.status, skill.error) == ("ok", "")
    assert (skill.name, skill.description, skill.content) == ("a", description, "body")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "must begin with a line of three dashes"),
        ("# Title\n", "must begin with a line of three dashes"),
        ("---\nname: a\n", "is not closed"),
        ("---\nname: A\ndescription: d\n---\n", "lower-case words"),
        ("---\ndescription: d\n---\n", "lower-case words"),
        ("---\nname: b\ndescription: d\n---\n", "the directory is 'a'"),
        ("---\nname: a\n---\n", "description is missing"),
        (f"---\nname: a\ndescription: {'d' * 5000}\n---\n", "longer than 4096"),
        (b"---\nname: a\ndescription: \xff\n---\n", "not UTF-8"),
    ],
)
def test_an_invalid_skill_reports_the_reason(
    sources: ContextSources, text: str | bytes, error: str
) -> None:
    write(f"{sources.directory}/skills/a/SKILL.md", text)
    skill = read_one(sources)
    assert (skill.status, skill.content, skill.name) == ("invalid", "", "")
    assert error in skill.error


@pytest.mark.covers("instructions-1")
def test_an_oversize_instruction_file_is_clipped(sources: ContextSources) -> None:
    write(f"{sources.directory}/AGENTS.md", "é" * (context_sources.MAX_RESOURCE_BYTES // 2))
    assert read_one(sources).status == "ok"
    write(f"{sources.directory}/AGENTS.md", "x" + "é" * (context_sources.MAX_RESOURCE_BYTES // 2))
    large = read_one(sources)
    assert (large.status, large.size) == ("oversize", context_sources.MAX_RESOURCE_BYTES + 1)
    assert large.content == "x" + "é" * (context_sources.MAX_RESOURCE_BYTES // 2 - 1)
    assert "over the limit" in large.error


@pytest.mark.parametrize("name", [".mcp.json", "skills/a/SKILL.md"])
def test_an_oversize_skill_or_mcp_config_has_no_content(sources: ContextSources, name: str) -> None:
    write(
        f"{sources.directory}/{name}",
        SKILL.format(name="a") + "x" * context_sources.MAX_RESOURCE_BYTES,
    )
    assert (read_one(sources).status, read_one(sources).content) == ("oversize", "")


def test_an_unreadable_file_is_reported_without_blocking(sources: ContextSources) -> None:
    os.mkfifo(f"{sources.directory}/AGENTS.md")
    os.mkdir(f"{sources.directory}/CLAUDE.md")
    write(f"{sources.directory}/.cursorrules", b"\xff\xfe")
    os.symlink("AGENTS.md", f"{sources.home}/.chatd/AGENTS.md")
    os.symlink("nowhere", f"{sources.home}/.chatd/CLAUDE.md")
    resources = read_context(sources, version=1).resources
    assert [each.status for each in resources] == [
        "unreadable",
        "unreadable",
        "invalid",
        "unreadable",
    ]
    assert not any(each.content for each in resources)
    assert "named pipe" in resources[0].error


@pytest.mark.covers("hostile-4")
def test_a_link_out_of_its_root_is_excluded(sources: ContextSources) -> None:
    write(f"{sources.directory}/docs/rules.md", "rules")
    write(f"{sources.home}/elsewhere.md", "elsewhere")
    os.symlink("docs/rules.md", f"{sources.directory}/AGENTS.md")
    os.symlink("../elsewhere.md", f"{sources.directory}/CLAUDE.md")
    inside, outside = read_context(sources, version=1).resources
    assert (inside.status, inside.content) == ("ok", "rules")
    assert inside.source == f"{sources.directory}/AGENTS.md"
    assert (outside.status, outside.content, outside.hash) == ("excluded", "", "")
    assert "leads out of" in outside.error


def test_several_names_of_one_file_are_one_resource(sources: ContextSources) -> None:
    write(f"{sources.directory}/AGENTS.md")
    os.symlink("AGENTS.md", f"{sources.directory}/CLAUDE.md")
    os.link(f"{sources.directory}/AGENTS.md", f"{sources.directory}/.cursorrules")
    assert read_all(sources) == [("instruction_file", "ok", "work/AGENTS.md")]


def test_resources_over_the_total_size_are_excluded(
    sources: ContextSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_sources, "MAX_CONTEXT_BYTES", 10)
    for name, content in (("AGENTS.md", "123456"), ("CLAUDE.md", "12345"), (".cursorrules", "12")):
        write(f"{sources.directory}/{name}", content)
    resources = read_context(sources, version=1).resources
    assert [(each.status, each.content) for each in resources] == [
        ("ok", "123456"),
        ("excluded", ""),
        ("ok", "12"),
    ]


def test_resources_over_the_number_limit_are_counted(
    sources: ContextSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_sources, "MAX_RESOURCES", 3)
    for name in "abcde":
        write(f"{sources.directory}/skills/{name}/SKILL.md", SKILL.format(name=name))
    resources = read_context(sources, version=1).resources
    assert [(each.status, each.name) for each in resources] == [
        ("ok", "a"),
        ("ok", "b"),
        ("excluded", ""),
    ]
    assert resources[-1].error.startswith("3 are left out")


def test_the_hash_covers_what_the_model_reads(sources: ContextSources) -> None:
    hashes = [read_context(sources, version=1).hash]
    write(f"{sources.directory}/AGENTS.md", "one")
    hashes.append(read_context(sources, version=1).hash)
    write(f"{sources.directory}/AGENTS.md", "two")
    hashes.append(read_context(sources, version=1).hash)
    assert len(set(hashes)) == 3
    write(f"{sources.directory}/.mcp.json", "{}")
    assert read_context(sources, version=2).hash == hashes[-1]


def test_the_server_can_decode_a_context_with_long_and_invalid_names(
    sources: ContextSources,
) -> None:
    deep = ContextSources(home=sources.home, directory="/".join([sources.home, *["d" * 200] * 6]))
    write(f"{deep.directory}/AGENTS.md", "x" * 100_000)
    write(f"{deep.directory}/CLAUDE.md")
    write(f"{deep.home}/.chatd/skills/a/SKILL.md", SKILL.format(name="a"))
    write(f"{deep.home}/.chatd/skills/\udcff/SKILL.md")
    body = json.dumps(read_context(deep, version=1).body()).encode()
    decoded = msgspec.json.decode(body, type=agent_api.WorkspaceContext)
    check_context(decoded)
    assert [each.name for each in decoded.resources] == ["", "", "a", ""]


def test_a_fingerprint_changes_with_the_files(sources: ContextSources) -> None:
    seen = [fingerprint(sources)]
    write(f"{sources.directory}/AGENTS.md", "one")
    seen.append(fingerprint(sources))
    write(f"{sources.directory}/AGENTS.md", "longer")
    seen.append(fingerprint(sources))
    write(f"{sources.directory}/skills/a/SKILL.md")
    seen.append(fingerprint(sources))
    os.chmod(f"{sources.directory}/AGENTS.md", 0o600)
    seen.append(fingerprint(sources))
    os.unlink(f"{sources.directory}/AGENTS.md")
    seen.append(fingerprint(sources))
    assert len(set(seen)) == len(seen)
    write(f"{sources.directory}/other.txt")
    assert fingerprint(sources) == seen[-1]
