"""Credentials of hosts reach the runners whose workspaces use them, and nothing else does."""

from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import GitSeed, TemplateSpec
from chatd.store.workspace import templates, workspaces
from chatd.workspaces.network import workspace_networks
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from chatd.workspaces.runner.backend_calls import BackendCalls
from tests.runners.runner_rig import POOL, WAIT_S, built, make_token, replica, runner
from tests.support.api.server import ADMINISTRATOR, KEY_RING, ME, OTHER_USER
from tests.support.eventually import eventually
from tests.support.factories import HARNESS, OWNER
from tests.support.workspaces import TEMPLATE, new_workspace, template, version

SPEC = TemplateSpec(pool=POOL, network="allow", allow=("git.example", "*.corp.example"))
HOST = {"host": "git.example", "secret": "own-secret-1"}
CONFIGS = "/host-credential-configs"
CHANGED = ConfigChange(kind="host_credential")


@pytest.mark.promise("P13")
async def test_a_runner_gets_the_credentials_of_its_workspaces_and_loses_what_is_revoked(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = WorkspaceNetworks(tmp_path, SystemClock())

    def given(workspace: WorkspaceId) -> list[str]:
        return [each.value for each in networks.credentials_of(workspace)]

    async with replica(dsn, ring=KEY_RING) as here:
        pool, ask = here.services.pool, here.server.ask
        own = await ask("POST", "/host-credentials", HOST)
        for body, token in (
            ({"host": "elsewhere.example", "secret": "unused-secret"}, ME),
            ({**HOST, "secret": "strangers-secret"}, OTHER_USER),
        ):
            assert (await ask("POST", "/host-credentials", body, token=token)).status == 201
        shared = {"host": "a.corp.example", "secret": "shared-secret"}
        assert (await ask("POST", CONFIGS, shared, token=ADMINISTRATOR)).status == 201
        put = templates.TemplateUpsert(
            template=template(backend="sandbox"), version=replace(version(), spec=SPEC)
        )
        await templates.upsert_template(pool, put)
        token = await make_token(pool)
        async with runner(here.url, token, tmp_path, networks=networks) as running:
            await running.connected()
            created = await workspaces.create(
                pool, HARNESS, new_workspace(1, host_id=None, template_id=TEMPLATE)
            )
            here.services.build_worker.wake()
            assert (await built(pool, created.build.id)).status == "succeeded"
            workspace = created.workspace.id
            # Those of the build itself; the runner's backend of this test opens no proxy.
            assert [each.value for each in running.backend.credentials] == [
                *("Bearer own-secret-1", "Bearer shared-secret")
            ]

            async def becomes(*values: str) -> None:
                async def is_given() -> bool:
                    return given(workspace) == [f"Bearer {value}" for value in values]

                here.services.on_config_change(CHANGED)
                await eventually(is_given, within_s=WAIT_S)

            await becomes("own-secret-1", "shared-secret")
            other = {**HOST, "secret": "own-secret-2"}
            own = await ask("POST", "/host-credentials", other)
            await becomes("own-secret-2", "shared-secret")
            assert (await ask("DELETE", f"/host-credentials/{own.json['id']}")).status == 204
            await becomes("shared-secret")
            await pool.execute("UPDATE users SET status = 'suspended' WHERE id = $1", OWNER)
            await becomes()
            await pool.execute("UPDATE users SET status = 'active' WHERE id = $1", OWNER)
            await becomes("shared-secret")
            # A runner that hears nothing more forgets them.
            monkeypatch.setattr(workspace_networks, "CREDENTIALS_KEPT_S", -1.0)
            await becomes()
            monkeypatch.undo()
            # One that connects again gets them again, without a change.
            await becomes("shared-secret")
            networks.grant(workspace, [])
        async with runner(
            here.url, token, tmp_path, networks=networks, backend=running.backend
        ) as again:
            await again.connected()

            async def is_given_again() -> bool:
                return given(workspace) == ["Bearer shared-secret"]

            await eventually(is_given_again, within_s=WAIT_S)
            running.backend.close()


NO_WORKSPACE = WorkspaceId(UUID(int=1))


async def test_a_runner_of_a_user_gets_no_credential_of_others(dsn: str) -> None:
    """The user could read it from the runner's memory."""
    async with replica(dsn, ring=KEY_RING) as here:
        await here.server.ask("POST", "/host-credentials", HOST)
        await here.server.ask("POST", CONFIGS, {**HOST, "path": "/x"}, token=ADMINISTRATOR)
        give = here.services.credentials.for_build
        for is_own_runner, count in ((False, 2), (True, 1)):
            assert len(await give(NO_WORKSPACE, OWNER, SPEC, is_own_runner=is_own_runner)) == count
        none = replace(SPEC, network="none", allow=())
        assert await give(NO_WORKSPACE, OWNER, none, is_own_runner=False) == ()
        full = replace(SPEC, network="full", allow=())
        assert await give(NO_WORKSPACE, OWNER, full, is_own_runner=False) == ()
        seed = replace(none, seed=GitSeed(url="https://git.example/a.git"))
        assert len(await give(NO_WORKSPACE, OWNER, seed, is_own_runner=False)) == 2


async def test_a_runner_without_the_method_is_asked_once(dsn: str, tmp_path: Path) -> None:
    async with replica(dsn, ring=KEY_RING) as here:
        token = await make_token(here.services.pool)
        async with runner(here.url, token, tmp_path) as running:
            await running.connected()
            (link,) = here.services.links.all()
            assert isinstance(running.client.calls, BackendCalls)
            await here.server.ask("POST", "/host-credentials", HOST)
            put = templates.TemplateUpsert(
                template=template(backend="sandbox"), version=replace(version(), spec=SPEC)
            )
            await templates.upsert_template(here.services.pool, put)
            created = await workspaces.create(
                here.services.pool, HARNESS, new_workspace(1, host_id=None, template_id=TEMPLATE)
            )
            here.services.build_worker.wake()
            await built(here.services.pool, created.build.id)
            here.services.on_config_change(CHANGED)

            async def is_noted() -> bool:
                return not link.takes_grants

            await eventually(is_noted, within_s=WAIT_S)
