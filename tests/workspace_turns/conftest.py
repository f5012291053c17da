"""Servers with workspaces, on a data directory that only this account can read."""

from collections.abc import AsyncGenerator

import pytest

from chatd.domain.workspace.entities import ResourceLimits, TemplateSpec
from chatd.domain.workspace.template_definition import TemplateDefinition
from tests.support.local_rig import data_directory, shared_kits
from tests.workspace_turns.servers import ScriptedModel, ServerSite

MIB = 1024 * 1024
SLOW = "echo begun >> builds; while [ ! -e go ]; do sleep 0.05; done"
TEMPLATES = (
    TemplateDefinition(name="plain"),
    TemplateDefinition(
        name="small",
        spec=TemplateSpec(
            limits=ResourceLimits(memory_bytes=128 * MIB, processes=48, file_bytes=8 * MIB)
        ),
    ),
    TemplateDefinition(name="desk", spec=TemplateSpec(desktop=True)),
    TemplateDefinition(name="web", spec=TemplateSpec(browser=True)),
    TemplateDefinition(name="slow", spec=TemplateSpec(startup_script=SLOW)),
)


@pytest.fixture
async def model() -> AsyncGenerator[ScriptedModel]:
    async with ScriptedModel.running() as model:
        yield model


@pytest.fixture
async def site(
    dsn: str, model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[ServerSite]:
    with data_directory(shared_kits(tmp_path_factory)) as data_dir:
        site = ServerSite(data_dir, dsn, *TEMPLATES)
        site.configure(model)
        try:
            yield site
        finally:
            await site.end()
