"""What is wrong with a template that an operator wrote: every field, by its path."""

import msgspec
import pytest

from chatd.domain.workspace.entities import FieldProblem, Template, TemplateId, VersionId
from chatd.domain.workspace.template_definition import (
    MAX_TEMPLATE_PROBLEMS,
    MAX_TTL_S,
    InvalidTemplate,
    TemplateDefinition,
    can_change,
    can_delete,
    changed_fields,
    definition_of,
    find_template_problems,
    is_same_content,
    require_valid,
)
from chatd.workspaces.templates import BUILT_IN_TEMPLATES, make_rows
from tests.support.workspaces import template

Json = dict[str, object]
CONTAINER: Json = {"backend": "container", "spec": {"image": "docker.io/library/debian:13"}}


def defined(**fields: object) -> TemplateDefinition:
    return msgspec.convert({"name": "shop", **fields}, TemplateDefinition)


def spec(**fields: object) -> Json:
    return {"spec": fields}


def image(backend: str, **fields: object) -> Json:
    return {"backend": backend, "spec": {"image": "debian", **fields}}


def parameter(**fields: object) -> Json:
    return {"parameters": [{"name": "p", **fields}]}


VALID: dict[str, Json] = {
    "the smallest": {},
    "a container": CONTAINER,
    "an image with a digest": image("container", runtime="runsc") | {"name": "a-1"},
    "a pod": image("kubernetes", pool="gpu", labels=["arm64", "big-1"], runtime="kata"),
    "a machine": {"backend": "machine", **spec(pool="laptops")},
    "mounts of a host": spec(mounts=[{"source": "/srv/a", "target": "/a"}]),
    "mounts of a container": image("container", mounts=[{"source": "/srv/a", "target": "/a"}]),
    "a directory": spec(seed={"kind": "directory", "path": "/srv/projects"}, directory="a/b"),
    "a repository": spec(seed={"kind": "git", "url": "https://git.test/a.git", "ref": "main"}),
    "a repository on the host": spec(seed={"kind": "git", "url": "/srv/a.git"}),
    "a repository of a parameter": spec(seed={"kind": "git", "url": "${p}"}) | parameter(),
    "a variable for a shell": spec(env={"PATH": "${HOME}/bin", "_A1": ""}),
    "no limits": spec(limits={"memory_bytes": 0, "processes": 0, "cpu_weight": 0}),
    "times": {"default_ttl_s": 1, "max_ttl_s": MAX_TTL_S, "activity_bump_s": 0},
    "a number": parameter(type="number", min=1, max=3, default="2"),
    "a list": parameter(type="list(string)", default='["a"]'),
    "a truth": parameter(type="bool", default="true"),
    "a pattern": parameter(regex="^3[.][0-9]+$", default="3.12"),
    "options": parameter(options=[{"name": "A", "value": "a"}], default="a"),
}


@pytest.mark.parametrize("name", VALID)
def test_a_valid_template_has_no_problems(name: str) -> None:
    assert find_template_problems(defined(**VALID[name])) == ()


@pytest.mark.parametrize("built_in", BUILT_IN_TEMPLATES, ids=lambda one: one.name)
def test_built_in_templates_are_valid(built_in: TemplateDefinition) -> None:
    assert find_template_problems(built_in) == ()


HOST_PATHS = "reach no directory of a host"
LABEL = "must have up to 32 small letters and digits, with single - between them"

INVALID: list[tuple[Json, str, str]] = [
    ({"name": ""}, "name", "must have 1 to 32 letters and digits"),
    ({"name": "two words"}, "name", "must have 1 to 32 letters and digits"),
    ({"name": "a" * 33}, "name", "must have 1 to 32 letters and digits"),
    ({"name": "a\n"}, "name", "must have 1 to 32 letters and digits"),
    ({"display_name": "x" * 101}, "display_name", "must have at most 100 characters"),
    ({"description": "x" * 1001}, "description", "must have at most 1000 characters"),
    ({"icon": "x" * 501}, "icon", "must have at most 500 characters"),
    ({"readme": "é" * 33_000}, "readme", "must have at most 65536 bytes"),
    ({"description": "a\0b"}, "description", "must not have NUL or surrogate characters"),
    (spec(env={"A": "\0"}), "spec.env.A", "must not have NUL or surrogate characters"),
    ({"backend": "container"}, "spec.image", "is required: container workspaces"),
    ({"backend": "kubernetes"}, "spec.image", "is required: kubernetes workspaces"),
    (image("container", image="a b"), "spec.image", "must be the name of an image"),
    (image("container", image="-v"), "spec.image", "must be the name of an image"),
    (image("container", runtime="a b"), "spec.runtime", "must be the name of a runtime"),
    (spec(image="debian"), "spec.image", "must be empty: sandbox workspaces have none"),
    (image("machine"), "spec.image", "must be empty: machine workspaces have none"),
    (spec(runtime="runsc"), "spec.runtime", "must be empty: sandbox workspaces have none"),
    (spec(pool="GPU"), "spec.pool", LABEL),
    (spec(pool="a--b"), "spec.pool", LABEL),
    (spec(pool="a" * 33), "spec.pool", LABEL),
    (spec(labels=["ok", "no_"]), "spec.labels[1]", LABEL),
    (spec(labels=["a", "a"]), "spec.labels", "has a twice"),
    (spec(labels=[f"l{n}" for n in range(21)]), "spec.labels", "must have at most 20 labels"),
    (image("kubernetes", seed={"kind": "directory", "path": "/a"}), "spec.seed", HOST_PATHS),
    (image("kubernetes", mounts=[{"source": "/a", "target": "/b"}]), "spec.mounts", HOST_PATHS),
    (spec(seed={"kind": "directory", "path": "a"}), "spec.seed.path", "must be an absolute path"),
    (spec(seed={"kind": "git", "url": ""}), "spec.seed.url", "must not be empty"),
    (spec(seed={"kind": "git", "url": "ftp://a"}), "spec.seed.url", "must be an http(s) or git"),
    (
        spec(seed={"kind": "git", "url": "https://a", "ref": "--upload-pack=x"}),
        "spec.seed.ref",
        "must not begin with -",
    ),
    (
        spec(seed={"kind": "git", "url": "https://a/${repo}"}),
        "spec.seed.url",
        "names the parameter repo, which the template does not have",
    ),
    (spec(directory="/abs"), "spec.directory", "must be a path inside the home directory"),
    (spec(directory="a/../.."), "spec.directory", "must be a path inside the home directory"),
    (
        spec(mounts=[{"source": "/a", "target": "/t"}, {"source": "b", "target": "/u"}]),
        "spec.mounts[1].source",
        "must be an absolute path",
    ),
    (
        spec(mounts=[{"source": "/a", "target": "/t/../etc"}]),
        "spec.mounts[0].target",
        "must be an absolute path",
    ),
    (
        spec(mounts=[{"source": f"/{at}", "target": "/t"} for at in "ab"]),
        "spec.mounts",
        "has the target /t twice",
    ),
    (spec(startup_script="x" * 65_537), "spec.startup_script", "must have at most 65536 bytes"),
    (spec(startup_timeout_s=0), "spec.startup_timeout_s", "must be from 1 to 3600 seconds"),
    (
        spec(startup_timeout_s=float("nan")),
        "spec.startup_timeout_s",
        "must be from 1 to 3600 seconds",
    ),
    (spec(env={"1A": "x"}), "spec.env.1A", "must be named with letters, digits and _"),
    (spec(env={"": "x"}), "spec.env.", "must be named with letters, digits and _"),
    (spec(env={"A": "x" * 32_768}), "spec.env", "must have at most 32768 bytes"),
    (
        spec(env={f"A{n}": "" for n in range(101)}),
        "spec.env",
        "must have at most 100 variables",
    ),
    (
        spec(limits={"memory_bytes": -1}),
        "spec.limits.memory_bytes",
        "must be from 0, which is no limit, to",
    ),
    (
        spec(limits={"processes": 2**40}),
        "spec.limits.processes",
        "must be from 0, which is no limit, to",
    ),
    ({"default_ttl_s": -1}, "default_ttl_s", "must be from 0 to"),
    ({"max_ttl_s": MAX_TTL_S + 1}, "max_ttl_s", "must be from 0 to"),
    (parameter(name="1p"), "parameters[0].name", "must begin with a letter"),
    (parameter(name=""), "parameters[0].name", "must begin with a letter"),
    ({"parameters": [{"name": "p"}, {"name": "p"}]}, "parameters", "has p twice"),
    (parameter(regex="("), "parameters[0].regex", "is not a valid regular expression: missing )"),
    (
        parameter(type="number", regex="1"),
        "parameters[0].regex",
        "is for parameters of the type string",
    ),
    (parameter(regex="^a$", default="b"), "parameters[0].default", "It must match ^a$."),
    (parameter(type="number", default="x"), "parameters[0].default", "It must be a number."),
    (
        parameter(type="number", min=3, default="1"),
        "parameters[0].default",
        "It must be at least 3.",
    ),
    (parameter(type="bool", default="yes"), "parameters[0].default", "It must be true or false."),
    (parameter(type="list(string)", default="a"), "parameters[0].default", "a JSON list"),
    (
        parameter(options=[{"name": "A", "value": "a"}], default="b"),
        "parameters[0].default",
        "It must be one of: a.",
    ),
    (parameter(min=1), "parameters[0].min", "is for parameters of the type number"),
    (parameter(type="number", min=2, max=1), "parameters[0].max", "must not be less than min"),
    (
        parameter(type="bool", options=[{"name": "A", "value": "true"}]),
        "parameters[0].options",
        "must be empty for a parameter of the type bool",
    ),
    (
        parameter(options=[{"name": "A", "value": "a"}, {"name": "B", "value": "a"}]),
        "parameters[0].options",
        "has the value a twice",
    ),
    (
        parameter(type="number", options=[{"name": "A", "value": "a"}]),
        "parameters[0].options[0].value",
        "It must be a number.",
    ),
]


@pytest.mark.parametrize(("fields", "field", "detail"), INVALID)
def test_an_invalid_field_is_named_by_its_path(fields: Json, field: str, detail: str) -> None:
    (found,) = find_template_problems(defined(**fields))
    assert found.field == field
    assert detail in found.detail


def test_all_invalid_fields_are_named_at_once() -> None:
    wrong = defined(name="", **spec(pool="-", labels=["-"], image="a"), max_ttl_s=-1)
    fields = [problem.field for problem in find_template_problems(wrong)]
    assert fields == ["name", "spec.image", "spec.pool", "spec.labels[0]", "max_ttl_s"]
    with pytest.raises(InvalidTemplate) as refused:
        require_valid(wrong)
    assert [problem.field for problem in refused.value.problems] == fields
    assert refused.value.message.endswith("; and 2 more.")


def test_the_list_of_problems_has_an_end() -> None:
    many = defined(parameters=[{"name": f"{n}"} for n in range(99)])
    assert len(find_template_problems(many)) == MAX_TEMPLATE_PROBLEMS


def test_a_row_of_an_unknown_backend_is_named() -> None:
    """Another version of chatd may have written it."""
    version = make_rows(defined(), "user", TemplateId(ID), VersionId(ID), VersionId(ID)).version
    row = template(id=TemplateId(ID), name="x", backend="local")
    assert find_template_problems(definition_of(row, version)) == (
        FieldProblem(
            field="backend", detail="must be one of sandbox, container, kubernetes, machine"
        ),
    )


ID = template().id


def test_rows_give_the_definition_they_were_made_from() -> None:
    whole = defined(
        **image("kubernetes", env={"A": "b"}, pool="gpu"),
        readme="# Hi",
        users=["ada"],
        groups=["data"],
        require_active_version=True,
        **parameter(default="1"),
    )
    rows = make_rows(whole, "user", TemplateId(ID), VersionId(ID), VersionId(ID))
    assert definition_of(rows.template, rows.version) == whole


@pytest.mark.parametrize(
    ("change", "fields", "is_same"),
    [
        ({}, (), True),
        ({"description": "x", "users": ["ada"]}, ("description", "users"), True),
        ({"readme": "x"}, ("readme",), False),
        (spec(network="full", env={"A": "b"}), ("env", "network"), False),
        (parameter(), ("parameters",), False),
    ],
)
def test_content_alone_makes_a_version(
    change: Json,
    fields: tuple[str, ...],
    is_same: bool,  # noqa: FBT001
) -> None:
    before, after = defined(), defined(**change)
    assert changed_fields(before, after) == fields
    assert is_same_content(before, after) == is_same


@pytest.mark.parametrize(
    ("row", "changes", "deletes"),
    [
        (template(origin="user"), True, True),
        (template(origin="builtin"), False, False),
        (template(origin="settings"), False, False),
        (template(origin="settings", deprecated=True), False, True),
    ],
)
def test_presets_are_read_only(
    row: Template,
    changes: bool,  # noqa: FBT001
    deletes: bool,  # noqa: FBT001
) -> None:
    assert (can_change(row), can_delete(row)) == (changes, deletes)
