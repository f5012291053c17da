"""Pods that dial in with the token of their build, for the one agent that they have."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.access.secret_text import pod_token_build, pod_token_text
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.agent_api import RunnerDisconnected
from chatd.domain.workspace.entities import AgentSpec, BuildId, Endpoint
from chatd.domain.workspace.runners import RunnerId, pod_holder
from chatd.store.workspace import builds, workspaces
from chatd.workspaces.build_backend import BuildContext
from chatd.workspaces.kubernetes.pod_link import PodLinkOptions, run_pod_link
from chatd.workspaces.runner.runner_client import RunnerRefused
from chatd.workspaces.tunnels.wire import CONTROL_PATH
from tests.runners.runner_rig import (
    WAIT_S,
    ProcessBackend,
    ReplicaRig,
    hand_made_runner,
    hello_of,
    make_token,
    replica,
    runner,
    running_workspace,
)
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.outcomes import present
from tests.workspaces.agent_process import new_chat_id


class PodBackend(ProcessBackend):
    """Its agents are reached by their pods: it starts none, and says what a pod would have."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.tokens: dict[WorkspaceId, str] = {}
        self.builds: dict[WorkspaceId, BuildId] = {}

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        (agent,) = await super().start(context)
        build_id = context.build.id
        self.builds[context.workspace.id] = build_id
        self.tokens[context.workspace.id] = pod_token_text(build_id, context.agent_key(agent.id))
        endpoint = Endpoint(kind="unix", path="/in/the/pod", host_id=pod_holder(build_id))
        return [replace(agent, endpoints=(endpoint,))]

    def is_agent_socket(self, path: str) -> bool:
        del path
        return False


class Pod:
    def __init__(self, url: str, token: str, socket: Path, ready: Path) -> None:
        options = PodLinkOptions(server_url=url, token=token, socket=socket, ready_file=ready)
        self._ready = ready
        self.stop = asyncio.Event()
        self.ended = asyncio.get_running_loop().create_task(
            run_pod_link(options, SystemClock(), self.stop)
        )

    async def ready(self) -> None:
        async def is_there() -> bool:
            return await asyncio.to_thread(self._ready.exists)

        await eventually(is_there, within_s=WAIT_S)

    async def refused(self) -> str:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(RunnerRefused) as refused:
                await asyncio.shield(self.ended)
        return str(refused.value)


@asynccontextmanager
async def pod_of(
    backend: PodBackend, workspace: WorkspaceId, url: str, ready: Path
) -> AsyncGenerator[Pod]:
    socket = backend.agents[workspace][1].socket
    pod = Pod(url, backend.tokens[workspace], socket, ready)
    try:
        yield pod
    finally:
        pod.stop.set()
        await asyncio.wait({pod.ended})


async def build_again(rig: ReplicaRig, workspace: WorkspaceId) -> None:
    """Another build of the workspace, which nobody builds yet."""
    pool = rig.services.pool
    snapshot = present(await workspaces.load_snapshot(pool, HARNESS, workspace))
    latest = present(snapshot.build)
    new = builds.NewBuild(
        id=BuildId(new_chat_id()),
        workspace_id=workspace,
        after=latest.build_number,
        transition="stop",
        version_id=latest.template_version_id,
        initiator_id=latest.initiator_id,
    )
    present(await builds.insert(pool, HARNESS, new))


@pytest.mark.promise("P14")
async def test_every_replica_reaches_the_agent_of_a_pod_also_without_its_runner(
    dsn: str, tmp_path: Path
) -> None:
    """Two replicas, a runner, a pod and its agent."""
    backend = PodBackend(tmp_path)
    try:
        async with replica(dsn, 1) as first, replica(dsn, 2) as second:
            token = await make_token(first.services.pool)
            async with runner(first.url, token, tmp_path, backend=backend) as machine:
                await machine.connected()
                workspace = await running_workspace(first)
            holder = pod_holder(backend.builds[workspace])
            endpoint = Endpoint(kind="unix", path="/in/the/pod", host_id=holder)
            agent_id = (
                present(await workspaces.load_snapshot(first.services.pool, HARNESS, workspace))
                .agents[0]
                .id
            )
            with pytest.raises(RunnerDisconnected, match=r"in a pod, which is not connected since"):
                await first.services.open_stream(agent_id, endpoint)
            async with pod_of(backend, workspace, second.url, tmp_path / "ready") as pod:
                await pod.ready()
                assert await second.output_of(workspace, "echo in the pod") == "in the pod"
                assert await first.output_of(workspace, "echo from afar") == "from afar"
                assert first.services.links.all() == second.services.links.all() == []
    finally:
        backend.close()


async def test_the_token_of_a_pod_ends_with_its_build(dsn: str, tmp_path: Path) -> None:
    """For a pod that is connected, and for one that comes later; not for another workspace."""
    backend = PodBackend(tmp_path)
    try:
        async with replica(dsn, 1) as first:
            token = await make_token(first.services.pool)
            async with runner(first.url, token, tmp_path, backend=backend) as machine:
                await machine.connected()
                one, other = [await running_workspace(first, number) for number in (1, 2)]
            async with (
                pod_of(backend, one, first.url, tmp_path / "one") as stopped,
                pod_of(backend, other, first.url, tmp_path / "other") as kept,
            ):
                await stopped.ready()
                await kept.ready()
                await build_again(first, one)
                first.services.on_config_change(None)
                assert "token was revoked" in await stopped.refused()
                assert await first.output_of(other, "echo on") == "on"
            async with pod_of(backend, one, first.url, tmp_path / "late") as late:
                assert "was stopped, deleted or built again" in await late.refused()
    finally:
        backend.close()


async def test_the_later_of_two_pods_of_one_build_counts(dsn: str, tmp_path: Path) -> None:
    backend = PodBackend(tmp_path)
    try:
        async with replica(dsn, 1) as first, replica(dsn, 2) as second:
            token = await make_token(first.services.pool)
            async with runner(first.url, token, tmp_path, backend=backend) as machine:
                await machine.connected()
                workspace = await running_workspace(first)
            async with pod_of(backend, workspace, first.url, tmp_path / "a") as old:
                await old.ready()
                async with pod_of(backend, workspace, second.url, tmp_path / "b") as new:
                    await new.ready()
                    first.services.on_config_change(None)
                    assert "Another process" in await old.refused()
                    assert await first.output_of(workspace, "echo new") == "new"
    finally:
        backend.close()


async def test_a_pods_token_is_for_its_pod_alone(dsn: str, tmp_path: Path) -> None:
    """A forged token, a runner that takes the id of a pod, and a pod that speaks as a runner."""
    build_id = BuildId(new_chat_id())
    forged = pod_token_text(build_id, b"not the key of the agent, 32 byt")
    async with replica(dsn, 1) as first:
        pod = Pod(first.url, forged, tmp_path / "no.sock", tmp_path / "ready")
        assert "does not accept the token" in await pod.refused()
        thief = hello_of(runner_id=pod_holder(build_id))
        async with hand_made_runner(first, thief) as made:
            answer = await made.control.receive_json(timeout=WAIT_S)
            assert answer["code"] == "invalid_hello"
        async with aiohttp.ClientSession() as http:
            for path in ("/api/v1/chats", "/api/v1/workspaces"):
                bearer = {"Authorization": f"Bearer {forged}"}
                async with http.get(first.url + path, headers=bearer) as reply:
                    assert reply.status == 401
            with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
                await http.ws_connect(
                    first.url + CONTROL_PATH, headers={"Authorization": f"Bearer {forged}x"}
                )
        assert first.services.links.get(RunnerId(pod_holder(build_id))) is None


def test_a_pods_token_names_its_build() -> None:
    build_id = BuildId(new_chat_id())
    text = pod_token_text(build_id, b"k" * 32)
    assert pod_token_build(text) == build_id
    assert pod_token_text(build_id, b"l" * 32) != text
    for other in ("", text[:-1], f"{text}=", text.replace("chatd_pod", "chatd_runner")):
        assert pod_token_build(other) is None
