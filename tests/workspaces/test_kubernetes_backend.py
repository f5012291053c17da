"""What only pods do: manifests, a cluster that refuses, delays and forgets, pods that never start
or are taken away. The conformance suite has the rest.
"""

import asyncio
import base64
import contextlib
import json
import stat
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.errors import Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import (
    DemoSeed,
    DirectorySeed,
    GitSeed,
    ResourceLimits,
    TemplateSpec,
)
from chatd.domain.workspace.runners import pod_holder
from chatd.settings.schema import SettingsError
from chatd.workspaces.build_backend import BuildCancelled, BuildFailed
from chatd.workspaces.container.container_plan import BUILD_LABEL
from chatd.workspaces.kubernetes import cluster_api
from chatd.workspaces.kubernetes.cluster_access import (
    ClusterAccess,
    find_access,
    in_cluster_access,
    read_kubeconfig,
)
from chatd.workspaces.kubernetes.cluster_api import (
    CLUSTER_RETRY_DELAYS_S,
    MAX_RETRY_AFTER_S,
    ClusterClient,
    ClusterError,
    ClusterUnreachable,
)
from chatd.workspaces.kubernetes.kubernetes_backend import KubernetesBackend, KubernetesConfig
from chatd.workspaces.kubernetes.pod_link import KIT_START, copy_kit
from chatd.workspaces.kubernetes.pod_plan import PodNames, PodPlan
from chatd.workspaces.kubernetes.pod_setup import SandboxPods
from chatd.workspaces.kubernetes.pod_state import read_pod
from tests.support.backend_kinds import BackendPlace, link_kits
from tests.support.backend_rig import HOST, SECRET, TEST_TIMEOUT_S, BackendRig
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.fake_cluster import NAMESPACE, FakeCluster, Fault, Refusal, check_object
from tests.support.local_rig import NO_BUBBLEWRAP, data_directory, shared_kits
from tests.support.pod_hub import HubReach, PodHub
from tests.support.pod_processes import CHATD_IMAGE, IMAGE
from tests.support.tables import table

WORKSPACE = WorkspaceId(UUID(int=7))
LABELS = {"chatd.host": HOST}


# Manifests


def plan(**spec: Any) -> PodPlan:
    return PodPlan(
        names=PodNames(workspace=WORKSPACE),
        host_id=HOST,
        build=3,
        spec=replace(TemplateSpec(image=IMAGE), **spec),
        image=CHATD_IMAGE,
        server_url="https://chat.example.com",
    )


NO_LIMITS = ResourceLimits(
    memory_bytes=0, processes=0, file_bytes=0, disk_bytes=0, open_files=0, cpu_weight=0
)
PLANS = {
    "a plain workspace": (plan(),),
    "a start-up script": (plan(startup_script="make deps"),),
    "a runtime": (plan(runtime="runsc", network="full"),),
    "no limits": (plan(limits=NO_LIMITS),),
    "little memory": (plan(limits=ResourceLimits(memory_bytes=64 << 20)),),
    "a storage class": (replace(plan(), storage_class="fast"),),
}


@table("case", PLANS)
def test_manifests_fit_the_schemas_of_the_cluster(case: PodPlan) -> None:
    check_object("pods", case.main_pod())
    check_object("pods", case.setup_pod(network="clone"))
    check_object("persistentvolumeclaims", case.claim())
    check_object("secrets", case.secret("workspace", {"token": b"x"}))


BROKEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "an unknown field": (lambda pod: pod["spec"].update(nodes=1), 'unknown field ".spec.nodes"'),
    "a wrong type": (lambda pod: pod["spec"].update(hostname=1), "expected string"),
    "a missing field": (lambda pod: pod["spec"]["containers"][0].pop("name"), "is required"),
    "a long label": (lambda pod: pod["metadata"]["labels"].update(a="x" * 64), "invalid a="),
    "a volume that is none": (lambda pod: pod["spec"]["volumes"].pop(0), "Not found"),
    "root": (lambda pod: pod["spec"]["securityContext"].pop("runAsNonRoot"), "restricted"),
}


@table("break_it reason", BROKEN)
def test_the_cluster_of_the_tests_refuses_what_a_real_one_would(
    break_it: Callable[[Any], object], reason: str
) -> None:
    pod = json.loads(json.dumps(plan().main_pod()))
    break_it(pod)
    with pytest.raises(Refusal, match=reason):
        check_object("pods", pod)


def test_a_pod_has_no_privileges_and_shows_no_secret() -> None:
    pod = plan(startup_script="true", runtime="kata", env={"A": "hidden"}).main_pod()
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["runtimeClassName"] == "kata"
    containers = [*spec["initContainers"], *spec["containers"]]
    assert [each["name"] for each in containers] == ["kit", "startup", "workspace", "link"]
    for each in containers:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
        }
    assert "hidden" not in json.dumps(pod)
    # The token is seen by the container that dials in, and not by the one with the commands.
    seen = {each["name"]: {mount["name"] for mount in each["volumeMounts"]} for each in containers}
    assert [name for name, mounts in seen.items() if "token" in mounts] == ["link"]
    assert "order" not in seen["link"]


def test_the_containers_of_chatds_own_image_use_nothing_of_its_own_places() -> None:
    """`deploy/Containerfile` has chatd in /opt/chatd, and a home that is closed to others."""
    spec = plan().main_pod()["spec"]
    own = [*spec["initContainers"], *spec["containers"]]
    for each in (each for each in own if each["image"] == CHATD_IMAGE):
        assert (each["workingDir"], each["env"]) == ("/", [{"name": "HOME", "value": "/tmp"}])
        paths = [mount["mountPath"] for mount in each["volumeMounts"]]
        assert not any(path.startswith(("/opt", "/data", "/usr")) for path in paths)


def test_labels_say_what_a_pod_may_reach() -> None:
    for network in ("none", "full"):
        pod = plan(network=network).main_pod()
        assert pod["metadata"]["labels"]["chatd.network"] == network
        assert pod["metadata"]["labels"]["chatd.role"] == "workspace"
    setup = plan().setup_pod(network="clone")["metadata"]["labels"]
    assert (setup["chatd.network"], setup["chatd.role"]) == ("clone", "setup")


def test_limits_become_requests_and_limits() -> None:
    wanted = ResourceLimits(memory_bytes=1 << 30, cpu_weight=250, disk_bytes=5 << 30)
    made = plan(limits=wanted)
    container = made.main_pod()["spec"]["containers"][0]
    assert container["resources"] == {
        "requests": {"memory": str(256 << 20), "cpu": "250m"},
        "limits": {"memory": str(1 << 30)},
    }
    assert made.claim()["spec"]["resources"] == {"requests": {"storage": str(5 << 30)}}
    assert made.rlimits() == {"core": 0, "fsize": 1 << 30, "nofile": 4096}
    effective = made.effective_limits()
    assert (effective.processes, effective.memory_bytes) == (0, 1 << 30)


# What the API says of a pod


def pod(phase: str = "Running", node: str = "n1", **status: Any) -> dict[str, Any]:
    metadata = {"name": "p", "labels": {"chatd.build": "4"}}
    return {
        "metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase, **status}
    }  # fmt: skip


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"name": "workspace", "state": {"waiting": {"reason": reason, "message": message}}}


STATES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "one that runs": (pod(), True, ""),
    "one that waits for a node": (pod("Pending", node=""), True, ""),
    "one that was evicted": (
        pod("Failed", reason="Evicted", message="low on memory. "),
        False,
        "The pod ended on the node n1: Evicted: low on memory",
    ),
    "one that is being deleted": (
        {**pod(), "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        False,
        "The pod is being removed on the node n1",
    ),
    "one whose node is lost": (pod("Unknown"), False, "The pod is in the state Unknown"),
    "one without a status": ({"metadata": {}}, True, ""),
}


@table("raw is_up text", STATES)
def test_a_pod_is_up_or_says_why_not(raw: dict[str, Any], is_up: bool, text: str) -> None:  # noqa: FBT001
    state = read_pod(raw)
    assert state.is_up is is_up
    assert is_up or text in state.down_text()


def test_a_container_that_will_not_start_says_why() -> None:
    state = read_pod(pod(containerStatuses=[waiting("ImagePullBackOff", "not found")]))
    assert state.image_problem == "ImagePullBackOff: not found"
    state = read_pod(pod(containerStatuses=[waiting("ContainerCreating")]))
    assert state.container("workspace").problem == ""
    ended = {"name": "workspace", "state": {"terminated": {"exitCode": 3}}}
    state = read_pod(pod(containerStatuses=[ended]))
    assert state.container("workspace").problem == "it ended with exit code 3"
    again: dict[str, Any] = {
        "name": "workspace", "started": True, "state": {"running": {}},
        "lastState": {"terminated": {"exitCode": 3}},
    }  # fmt: skip
    state = read_pod(pod(containerStatuses=[again]))
    assert (state.container("workspace").is_started, state.container("workspace").problem) == (
        True,
        "",
    )
    with pytest.raises(msgspec.ValidationError):
        read_pod({"metadata": []})


# The API, without a node


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[FakeCluster]:
    made = FakeCluster(tmp_path / "node", tmp_path)
    made.unschedulable = "0/3 nodes are available: 3 Insufficient memory."
    async with made.serving():
        await asyncio.to_thread(made.kubeconfig, tmp_path / "config")
        yield made


def client(tmp_path: Path, clock: FakeClock | None = None) -> ClusterClient:
    return ClusterClient(read_kubeconfig(tmp_path / "config"), clock or FakeClock())


async def with_pauses(clock: FakeClock, call: Any, count: int) -> tuple[Any, list[float]]:
    """The result of a call that pauses so often, and the pauses."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(call)
        pauses = [await clock.advance_past("cluster_retry") for _ in range(count)]
    return task.result(), pauses


async def test_what_exists_or_is_gone_is_no_error(cluster: FakeCluster, tmp_path: Path) -> None:
    api = client(tmp_path)
    assert await api.create("persistentvolumeclaims", plan().claim()) is True
    assert await api.create("persistentvolumeclaims", plan().claim()) is False
    name = cluster.names("persistentvolumeclaims")[0]
    await api.delete("persistentvolumeclaims", name)
    await api.delete("persistentvolumeclaims", name)
    assert await api.find("persistentvolumeclaims", name) is None


async def test_a_call_that_is_put_off_is_repeated(cluster: FakeCluster, tmp_path: Path) -> None:
    """429 with its time, 500, no answer, and an answer that was lost."""
    clock = FakeClock()
    api = client(tmp_path, clock)
    cluster.faults = [
        Fault(method="POST", kind="secrets", status=429, headers={"Retry-After": "7"}),
        Fault(method="POST", kind="secrets", status=500),
        Fault(method="POST", kind="secrets"),
        Fault(method="POST", kind="secrets", is_done=True),
    ]
    is_new, pauses = await with_pauses(
        clock, api.create("secrets", plan().secret("workspace", {})), 4
    )
    assert pauses == [7.0, *CLUSTER_RETRY_DELAYS_S[1:4]]
    assert is_new is False  # The try whose answer was lost has made it.
    assert len(cluster.names("secrets")) == 1
    cluster.faults = [
        Fault(method="GET", kind="pods", status=429, headers={"Retry-After": "3600"}),
        Fault(method="GET", kind="pods", status=429, headers={"Retry-After": "soon"}),
    ]
    _, pauses = await with_pauses(clock, api.find("pods", "x"), 2)
    assert pauses == [MAX_RETRY_AFTER_S, CLUSTER_RETRY_DELAYS_S[1]]


async def test_a_call_is_given_up_after_a_while(cluster: FakeCluster, tmp_path: Path) -> None:
    clock = FakeClock()
    many = len(CLUSTER_RETRY_DELAYS_S) + 1
    cluster.faults = [Fault(method="GET", kind="pods", status=503, times=many)]
    with pytest.raises(BaseExceptionGroup) as failed:
        await with_pauses(clock, client(tmp_path, clock).find("pods", "x"), many - 1)
    assert failed.group_contains(ClusterError, match="the test wants it so")
    cluster.faults = [Fault(method="GET", kind="pods", times=2)]  # The library asks twice.
    impatient = ClusterClient(read_kubeconfig(tmp_path / "config"), clock, patient=False)
    with pytest.raises(ClusterUnreachable, match="cannot be reached"):
        await impatient.find("pods", "x")


async def test_an_api_that_accepts_calls_and_never_answers_is_given_up(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "CLUSTER_TIMEOUT_S", 0.05)
    cluster.faults = [Fault(method="GET", kind="pods", is_silent=True, times=100)]
    rig = backend_rig(tmp_path)
    state = await rig.backend.inspect(rig.context(rig.spec).workspace)
    assert (state.state, "did not answer in time" in state.detail) == ("unknown", True)
    clock = FakeClock()
    with pytest.raises(BaseExceptionGroup) as failed:
        await with_pauses(
            clock, client(tmp_path, clock).find("pods", "x"), len(CLUSTER_RETRY_DELAYS_S)
        )
    assert failed.group_contains(ClusterUnreachable, match="did not answer in time")


async def test_a_token_that_was_replaced_is_read_again(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    api = client(tmp_path)
    assert await api.version() == "v1.34.0-fake"
    cluster.tokens = {"second"}
    with pytest.raises(ClusterError, match="Unauthorized"):
        await api.version()
    (tmp_path / "token").write_text("second\n")
    assert await api.version() == "v1.34.0-fake"


async def test_a_list_comes_in_pages_and_begins_again_if_it_lost_its_place(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.workspaces.kubernetes.cluster_api.LIST_PAGE", 2)
    api = client(tmp_path)
    for number in range(5):
        await api.create("secrets", replace(plan(), build=number).secret("workspace", {}))
    assert len(await api.list_all("secrets", LABELS)) == 5
    assert await api.list_all("secrets", {"chatd.host": "another"}) == []
    cluster.faults = [Fault(method="GET", kind="secrets", status=410)]
    assert len(await api.list_all("secrets", LABELS)) == 5
    cluster.faults = [Fault(method="GET", kind="secrets", status=410, times=10)]
    with pytest.raises(ClusterUnreachable, match="does not finish a list"):
        await api.list_all("secrets", LABELS)


async def test_a_watch_is_only_a_hint(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.role.add(("pods", "patch"))  # The test changes the pod, which no runner does.
    """It wakes early, and if it ends, is refused or has lost its place (410) the pod is read again
    after the usual pause."""
    clock = FakeClock()
    api = client(tmp_path, clock)
    await api.create("pods", plan().main_pod())
    (name,) = cluster.names("pods")
    version = cluster.objects["pods", name]["metadata"]["resourceVersion"]
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(api.wait_change(name, version, 20))
        await eventually(lambda: _is_true(lambda: cluster.watches == 1))
        await api.patch("pods", name, {"metadata": {"annotations": {"changed": "yes"}}})
        await asyncio.wait_for(waiting, TEST_TIMEOUT_S)
    assert clock.sleeping("pod_poll") == []

    async def paused(begin: Callable[[], Any]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(api.wait_change(name, version, 20))
            await begin()
            assert await clock.advance_past("pod_poll") == 20

    version = cluster.objects["pods", name]["metadata"]["resourceVersion"]
    before = cluster.watches

    async def end_watch() -> None:
        await eventually(lambda: _is_true(lambda: cluster.watches > before))
        await cluster.end_watches()

    await paused(end_watch)
    cluster.compact()
    await paused(_nothing)
    cluster.faults = [Fault(method="WATCH", kind="pods", status=500)]
    await paused(_nothing)
    cluster.faults = [Fault(method="WATCH", kind="pods")]
    await paused(_nothing)


async def _is_true(condition: Callable[[], bool]) -> bool:
    return condition()


async def _nothing() -> None:
    pass


# Access


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    for name, text in (("namespace", "team\n"), ("token", "one\n"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    access = in_cluster_access("10.0.0.1", "443", tmp_path)
    assert (access.server, access.namespace) == ("https://10.0.0.1:443", "team")
    assert access.headers() == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two")
    assert access.headers() == {"Authorization": "Bearer two"}
    assert in_cluster_access("fd00::1", "6443", tmp_path).server == "https://[fd00::1]:6443"
    assert "one" not in repr(replace(access, token="one"))


def test_a_kubeconfig_is_read_as_json_and_as_yaml(tmp_path: Path) -> None:
    config = tmp_path / "config"
    ca = base64.b64encode(b"PEM").decode()
    config.write_text(
        f"""
current-context: b
contexts:
- {{name: a, context: {{cluster: x, user: x}}}}
- {{name: b, context: {{cluster: c, user: u, namespace: team}}}}
clusters:
- {{name: c, cluster: {{server: https://k.test:6443/, certificate-authority-data: {ca}}}}}
users:
- {{name: u, user: {{token: hidden, client-certificate: cert.pem, client-key: key.pem}}}}
"""
    )
    (tmp_path / "cert.pem").write_text("CERT")
    (tmp_path / "key.pem").write_text("KEY")
    access = read_kubeconfig(config)
    assert access == ClusterAccess(
        server="https://k.test:6443", namespace="team", ca="PEM", token="hidden",
        certificate="CERT", key="KEY",
    )  # fmt: skip
    assert "hidden" not in repr(access)
    assert find_access(config, "other", {}).namespace == "other"
    assert find_access(None, "", {"KUBECONFIG": str(config)}).namespace == "team"
    with pytest.raises(SettingsError, match="--kubeconfig"):
        find_access(None, "", {})


BAD_CONFIGS = {
    "no file": (None, "cannot read"),
    "no kubeconfig": ("[]", "is not a kubeconfig"),
    "no context": ('{"current-context": "a", "contexts": []}', "there is no 'a'"),
    "a program": (
        json.dumps(
            {
                "current-context": "a",
                "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "x"}}],
                "users": [{"name": "u", "user": {"exec": {}}}],
            }
        ),
        "gets its token from a program",
    ),
}


@table("text reason", BAD_CONFIGS)
def test_a_kubeconfig_that_cannot_be_used_is_explained(
    text: str | None, reason: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config").write_text(text)
    with pytest.raises(SettingsError, match=reason):
        read_kubeconfig(tmp_path / "config")


# Pods that do not start


def backend_rig(tmp_path: Path, **config: Any) -> BackendRig:
    made = KubernetesConfig(
        access=read_kubeconfig(tmp_path / "config"),
        host_id=HOST,
        image=CHATD_IMAGE,
        server_url="http://127.0.0.1:1",
        poll_s=0.05,
        start_timeout_s=0.3,
        end_timeout_s=0.3,
    )
    backend = KubernetesBackend(replace(made, **config), clock=SystemClock())
    return BackendRig(backend, TemplateSpec(image=IMAGE))


@pytest.mark.promise("P14")
async def test_a_pod_that_no_node_takes_is_given_up_and_removed(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Its claim stays: what is in it may be of earlier builds."""
    rig = backend_rig(tmp_path)
    context = rig.context(rig.spec)
    with pytest.raises(BuildFailed, match=r"No node .* 3 Insufficient memory"):
        await rig.backend.start(context)
    assert cluster.names("pods") == cluster.names("secrets") == []
    assert len(cluster.names("persistentvolumeclaims")) == 1
    assert (await rig.backend.inspect(context.workspace)).state == "stopped"
    # With a seed the pod that would fill the home is the one that does not start.
    with pytest.raises(BuildFailed, match="No node"):
        await rig.start(rig.template(seed=DemoSeed()))
    assert cluster.names("pods") == []


async def test_a_build_of_a_pod_that_waits_can_be_cancelled(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    rig = backend_rig(tmp_path, start_timeout_s=60)
    context = rig.context(rig.spec)
    rig.on_log = lambda line: context.cancelled.set() if line.startswith("agent") else None
    with pytest.raises(BuildCancelled):
        await rig.backend.start(context)
    assert cluster.names("pods") == []


async def test_templates_that_pods_cannot_have_are_refused(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    rig = backend_rig(tmp_path)
    for spec, field in (
        (rig.template(image=""), "image"),
        (rig.template(seed=DirectorySeed(path="/etc")), "seed"),
        (rig.template(seed=GitSeed(url="/srv/x.git")), "seed"),
    ):
        assert [problem.field for problem in await rig.backend.validate(spec, {})] == [field]
        with pytest.raises(BuildFailed, match=f"cannot be used here: {field}"):
            await rig.start(spec)
    assert cluster.objects == {}


async def test_a_cluster_that_does_not_answer_hides_no_workspace(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    rig = backend_rig(tmp_path)
    context = rig.context(rig.spec)
    with pytest.raises(BuildFailed):
        await rig.backend.start(context)
    cluster.faults = [
        Fault(method="GET", kind="pods", times=2),
        Fault(method="GET", kind="persistentvolumeclaims", status=500, times=2),
    ]
    assert (await rig.backend.inspect(context.workspace)).state == "unknown"
    assert (await backend_rig(tmp_path).backend.inspect(context.workspace)).state == "unknown"
    with pytest.raises(Unavailable):
        await rig.backend.workspaces()
    assert await rig.backend.workspaces() == [context.workspace.id]


async def test_an_account_without_the_role_is_told_so(cluster: FakeCluster, tmp_path: Path) -> None:
    rig = backend_rig(tmp_path)
    cluster.faults = [Fault(method="POST", kind="persistentvolumeclaims", status=403)]
    with pytest.raises(BuildFailed, match=r"needs the role in docs/runners\.md"):
        await rig.start()
    assert isinstance(rig.backend, KubernetesBackend)
    offer = await rig.backend.detect()
    assert offer is not None
    assert offer.detail == f"Kubernetes v1.34.0-fake, namespace {NAMESPACE}"
    cluster.faults = [Fault(method="GET", kind="pods", status=403)]
    assert await rig.backend.detect() is None


async def test_two_runners_see_their_own_workspaces_only(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    one = backend_rig(tmp_path)
    other = KubernetesBackend(
        KubernetesConfig(
            access=read_kubeconfig(tmp_path / "config"), host_id="other", image="i", server_url="s"
        ),
        clock=SystemClock(),
    )
    context = one.context(one.spec)
    with pytest.raises(BuildFailed):
        await one.backend.start(context)
    assert await one.backend.workspaces() == [context.workspace.id]
    assert await other.workspaces() == []
    assert (await other.inspect(context.workspace)).state == "unknown"


# Pods that are taken away


@pytest.fixture
async def live(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[tuple[FakeCluster, BackendRig]]:
    """A cluster with a node, and a server to which its pods dial in."""
    if NO_BUBBLEWRAP:
        pytest.skip("bubblewrap is not installed")
    with data_directory() as data_dir:
        link_kits(data_dir, shared_kits(tmp_path_factory))
        made = FakeCluster(data_dir / "node", data_dir / "containers" / "ws-toolbox")
        async with made.serving(), PodHub(SECRET).serving() as hub:
            config = await asyncio.to_thread(made.kubeconfig, data_dir / "config")
            place = BackendPlace(
                kind="kubernetes", data_dir=str(data_dir), engine=str(config), server=hub.url,
                peer=hub.peer_address,
            )  # fmt: skip
            yield made, place.open()


@pytest.mark.promise("P14")
async def test_an_evicted_pod_is_shown_with_the_reason_and_starts_again_with_its_files(
    live: tuple[FakeCluster, BackendRig],
) -> None:
    """Takes a second or two: two pods are started. The watch of the second has lost its place."""
    cluster, rig = live
    running = await rig.start(rig.template(startup_script="echo begun"))
    assert running.agent.endpoints[0].host_id == pod_holder(
        rig.context(rig.spec, workspace=running.workspace.id).build.id
    )
    assert "startup info begun" in rig.log
    await rig.run(running, "echo kept > file")
    (name,) = cluster.names("pods")
    await cluster.evict(name, "The node was low on resource: memory.")
    state = await rig.backend.inspect(running.workspace)
    assert state.state == "stopped"
    assert "Evicted: The node was low on resource: memory" in state.detail
    await rig.stop(running, build=2)
    assert any("warning The pod ended on the node node-1: Evicted" in line for line in rig.log)
    cluster.compact()
    again = await rig.start(again=running.workspace.id, build=3)
    assert await rig.output_of(again, "cat file") == "kept"
    # The container of the link is started again, and dials in again.
    cluster.pods[name].kill_container("link")

    async def is_back() -> bool:
        with contextlib.suppress(AgentUnreachable):
            return await rig.output_of(again, "echo back") == "back"
        return False

    await eventually(is_back, within_s=TEST_TIMEOUT_S)


async def test_a_pod_on_a_lost_node_is_not_replaced_blindly(
    live: tuple[FakeCluster, BackendRig],
) -> None:
    """Its node may still run it. A new one would write to the same files."""
    cluster, rig = live
    running = await rig.start()
    cluster.is_node_lost = True
    assert isinstance(rig.backend, KubernetesBackend)
    impatient = KubernetesBackend(
        replace(rig.backend.config, end_timeout_s=-8.0, poll_s=0.05), clock=SystemClock()
    )
    context = rig.context(rig.spec, workspace=running.workspace.id, build=2, transition="stop")
    with pytest.raises(BuildFailed, match="its node node-1 does not answer"):
        await impatient.stop(context)
    state = await rig.backend.inspect(running.workspace)
    assert (state.state, "is being removed on the node node-1" in state.detail) == ("stopped", True)
    with pytest.raises(BuildFailed, match="does not answer"):
        await impatient.start(rig.context(rig.spec, workspace=running.workspace.id, build=3))


async def test_images_that_cannot_be_pulled_are_named(
    live: tuple[FakeCluster, BackendRig],
) -> None:
    cluster, rig = live
    cluster.node.missing_images = {"registry.test/absent:2"}
    with pytest.raises(BuildFailed, match=r"registry.test/absent:2.*cannot be pulled.*not found"):
        await rig.start(rig.template(image="registry.test/absent:2"))


async def test_a_pod_that_the_server_refuses_says_so(live: tuple[FakeCluster, BackendRig]) -> None:
    _, rig = live
    assert isinstance(rig.backend, KubernetesBackend)
    async with PodHub(b"the secret of another server, 32").serving() as other:
        lost = KubernetesBackend(
            replace(rig.backend.config, server_url=other.url), clock=SystemClock()
        )
        context = rig.context(rig.spec)
        with pytest.raises(BuildFailed, match=f"not connect to {other.url}: .*the token"):
            await lost.start(context)
    assert (await rig.backend.inspect(context.workspace)).state == "stopped"


def test_an_image_may_have_the_kit_ready(tmp_path: Path) -> None:
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / KIT_START).write_text("exec it")
    (tmp_path / "ready" / "agent").mkdir()
    (tmp_path / "ready" / "agent" / "main.py").write_text("")
    kit = tmp_path / "kit"
    kit.mkdir()
    kit.chmod(0o1777)  # A volume, which belongs to root: its rights cannot be changed.
    copy_kit(kit, ready=tmp_path / "ready")
    assert (kit / KIT_START).read_text() == "exec it"
    assert (kit / "agent" / "main.py").exists()
    assert stat.S_IMODE(kit.stat().st_mode) == 0o1777
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot put the kit into"):
        copy_kit(tmp_path / "file" / "kit", ready=tmp_path / "ready")


def test_streams_to_pods_are_closed() -> None:
    assert HubReach.opened == {}


# Workspaces as Sandboxes of agent-sandbox


def as_sandboxes(cluster: FakeCluster, rig: BackendRig, **config: Any) -> BackendRig:
    cluster.has_sandboxes = True
    assert isinstance(rig.backend, KubernetesBackend)
    changed = replace(rig.backend.config, sandboxes=True, **config)
    return BackendRig(KubernetesBackend(changed, clock=SystemClock()), rig.spec, rig.open_stream)


def backend_of(rig: BackendRig) -> KubernetesBackend:
    assert isinstance(rig.backend, KubernetesBackend)
    return rig.backend


def mode_of(cluster: FakeCluster, name: str) -> str:
    return str(cluster.objects["sandboxes", name]["spec"]["operatingMode"])


async def test_a_sandbox_is_suspended_resumed_and_deleted_with_its_workspace(
    live: tuple[FakeCluster, BackendRig],
) -> None:
    """Takes a second or two: three pods are started."""
    cluster, plain = live
    rig = as_sandboxes(cluster, plain)
    offer = await backend_of(rig).detect()
    assert offer is not None
    assert offer.detail.endswith("as Sandboxes")
    running = await rig.start()
    (name,) = cluster.names("sandboxes")
    assert cluster.names("pods") == [name]
    await rig.run(running, "echo kept > file")
    assert await backend_of(rig).running() == 1

    with pytest.raises(BuildFailed, match="Start the runner with --agent-sandbox"):
        await plain.stop(running, build=2)
    await rig.stop(running, build=2)
    assert (mode_of(cluster, name), cluster.names("pods")) == ("Suspended", [])
    assert cluster.names("secrets") == []
    assert (await rig.backend.inspect(running.workspace)).state == "stopped"

    again = await rig.start(again=running.workspace.id, build=3)
    assert await rig.output_of(again, "cat file") == "kept"
    assert mode_of(cluster, name) == "Running"
    # A build that was overtaken changes nothing, whether or not there is a pod.
    with pytest.raises(BuildFailed, match="newer build"):
        await rig.stop(running, build=2)
    assert mode_of(cluster, name) == "Running"

    # A pod that another program deletes is made again by the controller, with the same identity.
    await ClusterClient(backend_of(rig).config.access, SystemClock()).delete("pods", name)

    async def is_back() -> bool:
        with contextlib.suppress(AgentUnreachable):
            return await rig.output_of(again, "cat file") == "kept"
        return False

    await eventually(is_back, within_s=TEST_TIMEOUT_S)
    await rig.backend.remove(running.workspace.id)
    assert [cluster.names(kind) for kind in ("sandboxes", "pods", "persistentvolumeclaims")] == [
        [],
        [],
        [],
    ]


async def test_an_evicted_pod_of_a_sandbox_starts_again_with_the_next_build(
    live: tuple[FakeCluster, BackendRig],
) -> None:
    cluster, plain = live
    rig = as_sandboxes(cluster, plain)
    running = await rig.start()
    (name,) = cluster.names("pods")
    await cluster.evict(name, "The node was low on resource: memory.")
    assert "Evicted" in (await rig.backend.inspect(running.workspace)).detail
    again = await rig.start(again=running.workspace.id, build=2)
    assert await rig.output_of(again, "echo up") == "up"


async def test_a_cluster_without_the_resource_or_its_controller_is_explained(
    cluster: FakeCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = backend_rig(tmp_path, sandboxes=True)
    assert await backend_of(rig).detect() is None
    assert "install agent-sandbox" in caplog.text
    cluster.has_sandboxes, cluster.has_controller = True, False
    with pytest.raises(BuildFailed, match="controller of agent-sandbox did not make the pod"):
        await rig.start()
    (name,) = cluster.names("sandboxes")
    assert mode_of(cluster, name) == "Suspended", "nothing starts once the controller is back"


@pytest.mark.promise("P14")
async def test_a_pod_that_was_made_again_and_finds_no_node_is_stopped_after_a_while(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Its node was drained. What the Sandbox's own status says of it is not believed."""
    cluster.has_sandboxes = True
    clock = FakeClock()
    config = backend_of(backend_rig(tmp_path, sandboxes=True, start_timeout_s=300)).config
    rig = BackendRig(KubernetesBackend(config, clock=clock), TemplateSpec(image=IMAGE))
    context = rig.context(rig.spec, build=1)
    names = PodNames(workspace=context.workspace.id)
    api = client(tmp_path)
    made = replace(plan(), names=names, build=1)
    await api.create("persistentvolumeclaims", made.claim())
    await SandboxPods(api).create(made)

    async def states_after(*steps_s: float) -> list[str]:
        found: list[str] = []
        for step_s in steps_s:
            clock.advance(step_s)
            found.append((await rig.backend.inspect(context.workspace)).state)
        return found

    assert await states_after(0, 299) == ["running", "running"]
    # Made once more, it has the whole time again.
    await api.delete("pods", names.main)
    sandbox = cluster.objects["sandboxes", names.main]
    ready = {"type": "Ready", "status": "True"}
    cluster.objects["sandboxes", names.main] = {**sandbox, "status": {"conditions": [ready]}}
    assert await states_after(2, 299, 2) == ["running", "running", "stopped"]
    detail = (await rig.backend.inspect(context.workspace)).detail
    assert detail == "The pod does not start: 0/3 nodes are available: 3 Insufficient memory"
    cluster.objects["sandboxes", names.main] = sandbox
    await rig.backend.stop(
        rig.context(rig.spec, workspace=context.workspace.id, build=2, transition="stop")
    )
    assert (mode_of(cluster, names.main), cluster.names("pods")) == ("Suspended", [])
    assert any("3 Insufficient memory" in line for line in rig.log)
    assert cluster.names("persistentvolumeclaims") == [names.claim]


async def test_a_workspace_whose_pod_a_drain_removed_is_shown_as_stopped(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Its claim is there and bound, which says nothing of the pod."""
    rig = backend_rig(tmp_path)
    context = rig.context(rig.spec, build=1)
    made = replace(plan(), names=PodNames(workspace=context.workspace.id), build=1)
    api = client(tmp_path)
    await api.create("persistentvolumeclaims", made.claim())
    await api.create("pods", made.main_pod())
    assert (await rig.backend.inspect(context.workspace)).state == "running"
    await api.delete("pods", made.names.main)
    assert (await rig.backend.inspect(context.workspace)).state == "stopped"


async def test_two_processes_that_change_a_sandbox_do_not_overwrite_each_other(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.has_sandboxes, cluster.has_controller = True, False
    api = client(tmp_path)
    pods, first = SandboxPods(api), replace(plan(runtime="gvisor"), build=1)
    name = first.names.main
    await pods.create(first)
    await pods.create(first)
    await pods.end(first.names, 1)
    cluster.faults = [Fault(method="PATCH", kind="sandboxes", status=409, times=3)]
    await pods.create(plan())
    body = cluster.objects["sandboxes", name]
    assert body["metadata"]["labels"][BUILD_LABEL] == "3"
    template = body["spec"]["podTemplate"]
    assert template["metadata"]["labels"][BUILD_LABEL] == "3"
    assert "runtimeClassName" not in template["spec"], "nothing of the earlier template stays"
    for step in (pods.create(replace(plan(), build=2)), pods.end(first.names, 2)):
        with pytest.raises(BuildFailed, match="newer build"):
            await step
    assert mode_of(cluster, name) == "Running"
    cluster.faults = [Fault(method="PATCH", kind="sandboxes", status=409, times=100)]
    with pytest.raises(BuildFailed, match="keeps changing"):
        await pods.end(first.names)
    cluster.faults = []
    await pods.end_older(first.names, 4)
    assert mode_of(cluster, name) == "Suspended"
    await pods.remove(first.names)
    await pods.remove(first.names)
    assert cluster.names("sandboxes") == []
