"""`chatd admin templates`, as processes, and templates as files."""

import tomllib
from pathlib import Path

import pytest

from chatd.cli.administration.template_files import Table, read_templates, template_toml
from chatd.cli.api_session import UsageProblem
from tests.support.command_line import ServerProcess

pytestmark = pytest.mark.timeout(240)

SHOP = """
[[templates]]
name = "shop"
description = "The web shop."
backend = "container"
groups = ["data"]

[templates.spec]
image = "docker.io/library/debian:13"
env = { SHOP_ENV = "test" }

[[templates.parameters]]
name = "branch"
default = "main"
"""


def test_templates_are_made_changed_versioned_and_deleted(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Over a second: each of its commands is a process."""

    def admin(*words: str) -> str:
        return server.done("admin", "templates", *words).out

    file = tmp_path / "shop.toml"
    file.write_text(SHOP)
    assert admin("create", "--file", str(file)) == "shop\n"
    shown = admin("show", "shop")
    assert tomllib.loads(shown) == tomllib.loads(SHOP), "only what differs from the defaults"
    file.write_text(shown.replace("debian:13", "debian:12"))
    edited = server.done("admin", "templates", "edit", "--file", str(file))
    assert "shop: version 2 is active" in edited.err
    file.write_text(shown.replace("debian:13", "debian:11"))
    stored = server.done("admin", "templates", "edit", "--no-activate", "--file", str(file))
    assert "shop: version 3 is stored; version 2 stays active" in stored.err
    lines = [line.split() for line in admin("versions", "shop").splitlines()]
    assert [(line[0], line[-1] == "active") for line in lines[1:]] == [
        ("3", False),
        ("2", True),
        ("1", False),
    ]
    assert "version 1 is active" in server.done("admin", "templates", "activate", "shop", "1").err
    assert admin("duplicate", "shop", "mine") == "mine\n"
    switched = server.done("admin", "templates", "edit", "mine", "--desktop", "--browser")
    assert "mine: version 2 is active" in switched.err
    server.done("admin", "templates", "edit", "mine", "--no-browser")
    spec = tomllib.loads(admin("show", "mine"))["templates"][0]["spec"]
    assert (spec["desktop"], spec.get("browser"), spec["image"]) == (
        True,
        None,
        "docker.io/library/debian:13",
    )
    assert "such as --desktop" in server.call("admin", "templates", "edit", "mine").err
    listed = {line.split()[0]: line.split() for line in admin("list").splitlines()}
    assert listed["shop"][1:4] == ["container", "1", "0"]
    assert listed["mine"][4:6] == ["desktop", "here"]
    for name in ("shop", "mine"):
        assert "deleted" in server.done("admin", "templates", "delete", name, "--yes").err


def test_a_refusal_names_the_fields(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[[templates]]\nname = "bad"\nbackend = "container"\nspec = { pool = "X" }\n')
    refused = server.call("admin", "templates", "create", "--file", str(file))
    assert refused.code == 2
    assert "spec.image is required" in refused.err
    assert "spec.pool must have up to 32 small letters" in refused.err
    unknown = server.call("admin", "templates", "show", "nope")
    assert unknown.code == 2
    assert "there is no template nope" in unknown.err


TABLES: dict[str, Table] = {
    "the smallest": {"name": "a", "backend": "sandbox"},
    "quotes and lines": {
        "name": "a",
        "readme": '# "A"\n\n```\n"""\n\\ end\n```\n',
        "description": 'one "line" \\ \x7f \t é \u2028',
        "spec": {"startup_script": "\nset -e\necho 'x'\n", "env": {"A.B": "c\r\nd", "": "x"}},
    },
    "nested": {
        "name": "a",
        "users": ["ada", "bob@example.com"],
        "spec": {
            "seed": {"kind": "git", "url": "https://a", "allow_private": True},
            "mounts": [{"source": "/a", "target": "/b"}, {"source": "/c", "target": "/d"}],
            "limits": {"memory_bytes": 2**40},
            "startup_timeout_s": 1.5,
        },
        "parameters": [
            {"name": "p", "options": [{"name": "A", "value": "a"}]},
            {"name": "q", "regex": "^\\d+$"},
        ],
    },
}


@pytest.mark.parametrize("name", TABLES)
def test_a_template_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    file = tmp_path / "templates.toml"
    file.write_text(template_toml(TABLES[name]) + template_toml({"name": "next"}), newline="")
    assert read_templates(file) == [TABLES[name], {"name": "next"}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"\xff", "is not TOML"),
        (b"a = ", "is not TOML"),
        (b"a = 1", "has no [[templates]] table"),
        (b"templates = 1", "has no [[templates]] table"),
        (b"#" * (1024 * 1024 + 1), "has more than"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "templates.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageProblem) as refused:
        read_templates(file)
    assert said in refused.value.message
