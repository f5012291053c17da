"""Templates over HTTP: shown with their parameters and without secrets."""

from uuid import UUID

import msgspec
import pytest

from chatd.domain.workspace.entities import (
    GitSeed,
    Parameter,
    ParameterOption,
    ResourceLimits,
    TemplateSpec,
)
from chatd.store.workspace import templates
from tests.api.workspace_api import WorkspaceApi
from tests.support.workspaces import TEMPLATE, template, version

SPEC = TemplateSpec(
    seed=GitSeed(url="https://me:hidden-password@example.org/x.git"),
    env={"TOKEN": "hidden-value", "A": "b"},
    startup_script="curl -H hidden-header",
    limits=ResourceLimits(memory_bytes=1024),
    network="full",
    directory="src",
)
SIZE = Parameter(name="size", type="number", required=True, min=1, max=9, options=())
FLAVOUR = Parameter(
    name="flavour", default="plain", options=(ParameterOption(name="P", value="plain"),)
)


async def test_a_template_shows_its_parameters_and_hides_secrets(api: WorkspaceApi) -> None:
    with_spec = templates.TemplateUpsert(
        template=template(description="Made to be looked at."),
        version=version(id=UUID(int=0x7E2), spec=SPEC, readme="# Hi", parameters=(SIZE, FLAVOUR)),
    )
    put = msgspec.structs.replace(
        with_spec, template=template(active_version_id=with_spec.version.id)
    )
    assert await templates.upsert_template(api.pool, put) is not None
    (listed,) = (await api.ask("GET", "/templates")).items
    assert (listed["name"], listed["id"]) == ("scratch", str(TEMPLATE))
    shown = await api.ask("GET", f"/templates/{TEMPLATE}")
    assert shown.status == 200
    assert b"hidden" not in shown.content
    found = shown.json
    assert listed.items() <= found.items()
    assert found["env"] == ["A", "TOKEN"]
    assert (found["network"], found["seed"], found["directory"]) == ("full", "git", "src")
    assert found["has_startup_script"] is True
    assert msgspec.convert(found["limits"], dict[str, int])["memory_bytes"] == 1024
    names = [one["name"] for one in shown.at("parameters")]
    assert names == ["size", "flavour"]


@pytest.mark.parametrize(("path", "status"), [(UUID(int=5), 404), ("x", 400)])
async def test_a_missing_template_is_not_found(
    api: WorkspaceApi, path: object, status: int
) -> None:
    assert (await api.ask("GET", f"/templates/{path}")).status == status
