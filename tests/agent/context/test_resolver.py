"""What is found in a workspace for a model to read, and what is left out and why."""

import hashlib
import json
import os
from pathlib import Path

import msgspec
import pytest

from chatd.agent.context import resolver
from chatd.agent.context.resolver import FoundResource, read_context
from chatd.agent.context.sources import ContextSources, fingerprint
from chatd.domain.workspace import agent_api
from chatd.domain.workspace.agent_api import check_context

SKILL = "---\nname: {name}\ndescription: Does {name}.\n---\n\nHow to {name}.\n"


@pytest.fixture
def places(tmp_path: Path) -> ContextSources:
    (tmp_path / "home/.chatd").mkdir(parents=True)
    (tmp_path / "home/work").mkdir()
    return ContextSources(home=str(tmp_path / "home"), directory=str(tmp_path / "home/work"))


def write(path: str | Path, content: str | bytes = "x") -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def found(places: ContextSources) -> list[tuple[str, str, str]]:
    """Kind, status and source below the home directory."""
    return [
        (each.kind, each.status, each.source.removeprefix(f"{places.home}/"))
        for each in read_context(places, version=1).resources
    ]


def only(places: ContextSources) -> FoundResource:
    (resource,) = read_context(places, version=1).resources
    return resource


@pytest.mark.covers("instructions-1")
def test_an_empty_workspace_has_a_context_without_resources(places: ContextSources) -> None:
    empty = read_context(places, version=7)
    assert (empty.version, empty.directory, empty.os) == (7, places.directory, "linux")
    assert empty.resources == ()
    assert len(empty.hash) == 64


@pytest.mark.covers("instructions-1")
def test_instructions_and_skills_are_found_in_their_fixed_places(places: ContextSources) -> None:
    for name in ("AGENTS.md", "CLAUDE.md", ".cursorrules"):
        write(f"{places.directory}/{name}", name)
    write(f"{places.home}/.chatd/AGENTS.md", "home")
    write(f"{places.directory}/.mcp.json", "{}")
    for place in ("skills", ".agents/skills", ".claude/skills", ".codex/skills"):
        name = place.strip(".").replace("/", "-")
        write(f"{places.directory}/{place}/{name}/SKILL.md", SKILL.format(name=name))
    write(f"{places.home}/.chatd/skills/mine/SKILL.md", SKILL.format(name="mine"))
    assert found(places) == [
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
def test_until_its_directory_is_there_a_workspace_is_at_home(
    places: ContextSources, directory: str
) -> None:
    write(f"{places.home}/AGENTS.md")
    early = ContextSources(home=places.home, directory=directory and f"{places.home}/{directory}")
    assert read_context(early, version=1).directory == places.home
    assert found(early) == [("instruction_file", "ok", "AGENTS.md")]
    if directory:
        before = fingerprint(early)
        os.mkdir(early.directory)
        assert fingerprint(early) != before
        assert read_context(early, version=1).directory == early.directory
        assert found(early) == []


def test_nothing_is_looked_for_further_down_or_under_another_spelling(
    places: ContextSources,
) -> None:
    write(f"{places.directory}/sub/AGENTS.md")
    write(f"{places.directory}/agents.md")
    write(f"{places.directory}/Agents.md")
    write(f"{places.home}/AGENTS.md")
    write(f"{places.directory}/sub/.mcp.json", "{}")
    write(f"{places.directory}/skills/group/deep/SKILL.md", SKILL.format(name="deep"))
    write(f"{places.directory}/skills/README.md")
    assert found(places) == []


def test_a_file_is_given_with_its_size_and_hash(places: ContextSources) -> None:
    source = write(f"{places.directory}/AGENTS.md", "be kind ü\r\n")
    assert only(places) == FoundResource(
        kind="instruction_file",
        source=source,
        status="ok",
        content="be kind ü\r\n",
        hash=hashlib.sha256("be kind ü\r\n".encode()).hexdigest(),
        size=12,
    )


def test_the_content_of_an_mcp_configuration_stays_where_it_is(places: ContextSources) -> None:
    write(f"{places.directory}/.mcp.json", '{"token": "secret"}')
    config = only(places)
    assert (config.status, config.content, bool(config.hash)) == ("ok", "", True)
    write(f"{places.directory}/.mcp.json", '{"token": "secret"')
    config = only(places)
    assert (config.status, config.content) == ("invalid", "")
    assert "secret" not in json.dumps(read_context(places, version=1).body())


def test_a_skill_has_a_name_a_description_and_a_body(places: ContextSources) -> None:
    write(f"{places.directory}/skills/bake/SKILL.md", SKILL.format(name="bake"))
    skill = only(places)
    assert (skill.name, skill.description) == ("bake", "Does bake.")
    assert skill.content == "How to bake.\n"


@pytest.mark.parametrize(
    ("head", "description"),
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
def test_heads_of_skills_that_people_write(
    places: ContextSources, head: str, description: str
) -> None:
    write(f"{places.directory}/skills/a/SKILL.md", f"---\n{head}\n---\nbody")
    skill = only(places)
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
def test_a_skill_that_is_none_says_why(
    places: ContextSources, text: str | bytes, error: str
) -> None:
    write(f"{places.directory}/skills/a/SKILL.md", text)
    skill = only(places)
    assert (skill.status, skill.content, skill.name) == ("invalid", "", "")
    assert error in skill.error


@pytest.mark.covers("instructions-1")
def test_a_file_over_the_limit_gives_its_beginning_only(places: ContextSources) -> None:
    write(f"{places.directory}/AGENTS.md", "é" * (resolver.MAX_RESOURCE_BYTES // 2))
    assert only(places).status == "ok"
    write(f"{places.directory}/AGENTS.md", "x" + "é" * (resolver.MAX_RESOURCE_BYTES // 2))
    large = only(places)
    assert (large.status, large.size) == ("oversize", resolver.MAX_RESOURCE_BYTES + 1)
    assert large.content == "x" + "é" * (resolver.MAX_RESOURCE_BYTES // 2 - 1)
    assert "over the limit" in large.error


@pytest.mark.parametrize("name", [".mcp.json", "skills/a/SKILL.md"])
def test_other_things_over_the_limit_give_nothing(places: ContextSources, name: str) -> None:
    write(f"{places.directory}/{name}", SKILL.format(name="a") + "x" * resolver.MAX_RESOURCE_BYTES)
    assert (only(places).status, only(places).content) == ("oversize", "")


def test_what_cannot_be_read_says_so_and_holds_nothing_up(places: ContextSources) -> None:
    os.mkfifo(f"{places.directory}/AGENTS.md")
    os.mkdir(f"{places.directory}/CLAUDE.md")
    write(f"{places.directory}/.cursorrules", b"\xff\xfe")
    os.symlink("AGENTS.md", f"{places.home}/.chatd/AGENTS.md")
    os.symlink("nowhere", f"{places.home}/.chatd/CLAUDE.md")
    resources = read_context(places, version=1).resources
    assert [each.status for each in resources] == [
        "unreadable",
        "unreadable",
        "invalid",
        "unreadable",
    ]
    assert not any(each.content for each in resources)
    assert "named pipe" in resources[0].error


@pytest.mark.covers("hostile-4")
def test_links_count_inside_their_root_only(places: ContextSources) -> None:
    write(f"{places.directory}/docs/rules.md", "rules")
    write(f"{places.home}/elsewhere.md", "elsewhere")
    os.symlink("docs/rules.md", f"{places.directory}/AGENTS.md")
    os.symlink("../elsewhere.md", f"{places.directory}/CLAUDE.md")
    inside, outside = read_context(places, version=1).resources
    assert (inside.status, inside.content) == ("ok", "rules")
    assert inside.source == f"{places.directory}/AGENTS.md"
    assert (outside.status, outside.content, outside.hash) == ("excluded", "", "")
    assert "leads out of" in outside.error


def test_several_names_of_one_file_are_one_resource(places: ContextSources) -> None:
    write(f"{places.directory}/AGENTS.md")
    os.symlink("AGENTS.md", f"{places.directory}/CLAUDE.md")
    os.link(f"{places.directory}/AGENTS.md", f"{places.directory}/.cursorrules")
    assert found(places) == [("instruction_file", "ok", "work/AGENTS.md")]


def test_too_much_in_all_is_left_out_and_said_to_be(
    places: ContextSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "MAX_CONTEXT_BYTES", 10)
    for name, content in (("AGENTS.md", "123456"), ("CLAUDE.md", "12345"), (".cursorrules", "12")):
        write(f"{places.directory}/{name}", content)
    resources = read_context(places, version=1).resources
    assert [(each.status, each.content) for each in resources] == [
        ("ok", "123456"),
        ("excluded", ""),
        ("ok", "12"),
    ]


def test_too_many_are_left_out_and_counted(
    places: ContextSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "MAX_RESOURCES", 3)
    for name in "abcde":
        write(f"{places.directory}/skills/{name}/SKILL.md", SKILL.format(name=name))
    resources = read_context(places, version=1).resources
    assert [(each.status, each.name) for each in resources] == [
        ("ok", "a"),
        ("ok", "b"),
        ("excluded", ""),
    ]
    assert resources[-1].error.startswith("3 are left out")


def test_the_hash_is_of_what_a_model_is_told(places: ContextSources) -> None:
    hashes = [read_context(places, version=1).hash]
    write(f"{places.directory}/AGENTS.md", "one")
    hashes.append(read_context(places, version=1).hash)
    write(f"{places.directory}/AGENTS.md", "two")
    hashes.append(read_context(places, version=1).hash)
    assert len(set(hashes)) == 3
    write(f"{places.directory}/.mcp.json", "{}")
    assert read_context(places, version=2).hash == hashes[-1]


def test_the_server_can_decode_a_context_with_long_and_invalid_names(
    places: ContextSources,
) -> None:
    deep = ContextSources(home=places.home, directory="/".join([places.home, *["d" * 200] * 6]))
    write(f"{deep.directory}/AGENTS.md", "x" * 100_000)
    write(f"{deep.directory}/CLAUDE.md")
    write(f"{deep.home}/.chatd/skills/a/SKILL.md", SKILL.format(name="a"))
    write(f"{deep.home}/.chatd/skills/\udcff/SKILL.md")
    body = json.dumps(read_context(deep, version=1).body()).encode()
    decoded = msgspec.json.decode(body, type=agent_api.WorkspaceContext)
    check_context(decoded)
    assert [each.name for each in decoded.resources] == ["", "", "a", ""]


def test_a_fingerprint_changes_with_what_is_there(places: ContextSources) -> None:
    seen = [fingerprint(places)]
    write(f"{places.directory}/AGENTS.md", "one")
    seen.append(fingerprint(places))
    write(f"{places.directory}/AGENTS.md", "longer")
    seen.append(fingerprint(places))
    write(f"{places.directory}/skills/a/SKILL.md")
    seen.append(fingerprint(places))
    os.chmod(f"{places.directory}/AGENTS.md", 0o600)
    seen.append(fingerprint(places))
    os.unlink(f"{places.directory}/AGENTS.md")
    seen.append(fingerprint(places))
    assert len(set(seen)) == len(seen)
    write(f"{places.directory}/other.txt")
    assert fingerprint(places) == seen[-1]
