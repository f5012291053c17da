"""What the cluster is asked to create for a workspace. Pure: names, labels, manifests, rights.

A workspace has a claim, which holds its home and the agent's journal, and while it runs a pod and a
Secret of its build. A clone runs in a pod of its own, which is removed when it ends: it may reach
other hosts than the workspace.

All processes of a pod run as one account without privileges. The container of the workspace has the
template's image; two others have chatd's own, which brings the kit and dials in.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import EffectiveLimits, TemplateSpec
from chatd.workspaces.container.container_init import AGENT_SOCKET, SOCKET_DIR, STATE_DIR
from chatd.workspaces.container.container_plan import BUILD_LABEL, HOST_LABEL, WORKSPACE_LABEL
from chatd.workspaces.kubernetes.pod_link import KIT_START
from chatd.workspaces.local.sandbox_command import INSIDE_KIT

ROLE_LABEL: Final = "chatd.role"
"""`workspace`, or `setup` for the commands that fill a home."""
NETWORK_LABEL: Final = "chatd.network"
"""What a NetworkPolicy selects: `none`, `full`, or `clone` while a repository is cloned for a
workspace without a network."""
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
FILLED_ANNOTATION: Final = "chatd.filled"
SANDBOX_API: Final = "agents.x-k8s.io/v1beta1"
"""The API of kubernetes-sigs/agent-sandbox."""
RUNNING_MODE, SUSPENDED_MODE = "Running", "Suspended"
"""Modes of a Sandbox."""

ACCOUNT: Final = 1000
VOLUME_DIR: Final = "/home"
"""The claim; the home is a directory in it, and so is the agent's journal, which commands must not
find in their home."""
JOURNAL_DIR: Final = "/home/.chatd"
KIT_VOLUME_DIR: Final = "/run/chatd-kit"
"""Where chatd's own image writes the kit; its program may be where the workspace sees the kit."""
ORDER_DIR: Final = "/run/chatd-order"
SOCKET_VOLUME_DIR: Final = "/run/chatd-socket"
LINK_ORDER_DIR: Final = "/run/chatd-link"
TOKEN_FILE: Final = "token"
READY_FILE: Final = f"{SOCKET_VOLUME_DIR}/connected"
POD_AGENT_SOCKET: Final = f"{SOCKET_DIR}/{AGENT_SOCKET}"

WORKSPACE, STARTUP, KIT, LINK, COMMAND = "workspace", "startup", "kit", "link", "command"
"""Names of containers."""

STOP_GRACE_S: Final = 8
PROBE_INTERVAL_S: Final = 1
PROBE_ATTEMPTS: Final = 600
NODE_LOST_AFTER_S: Final = 60
"""How long a pod stays on a node that does not answer; the usual default is five minutes."""
DEFAULT_CLAIM_BYTES: Final = 10 * 1024**3
MEMORY_REQUEST_BYTES: Final = 256 * 1024**2
MILLICORES_OF_WEIGHT: Final = 1
"""A workspace with the default weight of 100 reserves a tenth of a processor."""
SMALL: Final = {
    "requests": {"cpu": "10m", "memory": "64Mi"},
    "limits": {"memory": "512Mi"},
}
"""Limits for the containers with chatd's own image."""


class PodNames(Struct, frozen=True, kw_only=True):
    workspace: WorkspaceId

    @property
    def main(self) -> str:
        return f"chatd-{self.workspace}"

    @property
    def setup(self) -> str:
        return f"chatd-{self.workspace}-setup"

    @property
    def claim(self) -> str:
        return f"chatd-{self.workspace}-home"

    def secret(self, build: int, role: str = WORKSPACE) -> str:
        return f"chatd-{self.workspace}-{role}-{build}"


class PodPlan(Struct, frozen=True, kw_only=True):
    """One build of a workspace. `image` is chatd's own; pods reach the server at `server_url`."""

    names: PodNames
    host_id: str
    build: int
    spec: TemplateSpec
    image: str
    server_url: str
    storage_class: str = ""

    def labels(self, role: str = WORKSPACE) -> dict[str, str]:
        return {
            MANAGED_LABEL: "chatd",
            HOST_LABEL: self.host_id,
            WORKSPACE_LABEL: str(self.names.workspace),
            BUILD_LABEL: str(self.build),
            ROLE_LABEL: role,
        }

    def claim(self) -> dict[str, Any]:
        size = self.spec.limits.disk_bytes or DEFAULT_CLAIM_BYTES
        spec: dict[str, Any] = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": str(size)}},
        }
        if self.storage_class:
            spec["storageClassName"] = self.storage_class
        return _object("PersistentVolumeClaim", self.names.claim, self.labels(), spec=spec)

    def secret(self, role: str, files: Mapping[str, bytes]) -> dict[str, Any]:
        data = {name: base64.b64encode(content).decode() for name, content in files.items()}
        body = _object("Secret", self.names.secret(self.build, role), self.labels(role))
        return {**body, "type": "Opaque", "immutable": True, "data": data}

    def main_pod(self) -> dict[str, Any]:
        """Its init containers copy the kit and run the start-up script."""
        init = [self._kit_container()]
        if self.spec.startup_script:
            init.append(self._own_container(STARTUP, "startup"))
        workspace = self._own_container(WORKSPACE, "agent")
        token = {"name": "token", "mountPath": LINK_ORDER_DIR, "readOnly": True}
        options = {
            "--server": self.server_url,
            "--token-file": f"{LINK_ORDER_DIR}/{TOKEN_FILE}",
            "--socket": POD_AGENT_SOCKET,
            "--ready-file": READY_FILE,
        }
        link = {
            **self._chatd_container(LINK),
            "args": ["runner", "pod-link", *(word for pair in options.items() for word in pair)],
            "volumeMounts": [{"name": "socket", "mountPath": SOCKET_VOLUME_DIR}, token],
            # A build ends when the server is connected and the agent answers.
            "startupProbe": {
                "exec": {"command": ["test", "-e", READY_FILE]},
                "periodSeconds": PROBE_INTERVAL_S,
                "failureThreshold": PROBE_ATTEMPTS,
            },
        }
        name = self.names.secret(self.build)
        files = ["agent.json", *(["startup.json"] if self.spec.startup_script else ())]
        volumes = [
            _secret_volume("order", name, files),
            _secret_volume("token", name, [TOKEN_FILE]),
        ]
        return self._pod(
            self.names.main,
            WORKSPACE,
            network=self.spec.network,
            spec={
                "restartPolicy": "Always",
                "initContainers": init,
                "containers": [workspace, link],
                "volumes": [*self._volumes(), *volumes],
            },
        )

    def sandbox(self) -> dict[str, Any]:
        """Of agent-sandbox, whose controller makes the pod, with the same name. The claim is not
        the Sandbox's: it outlives it."""
        pod = self.main_pod()
        metadata = pod["metadata"]
        template = {
            "metadata": {"labels": metadata["labels"], "annotations": metadata["annotations"]},
            "spec": pod["spec"],
        }
        spec = {"operatingMode": RUNNING_MODE, "service": False, "podTemplate": template}
        body = _object("Sandbox", self.names.main, self.labels(), spec=spec)
        return {**body, "apiVersion": SANDBOX_API}

    def sandbox_change(self, version: str) -> dict[str, Any]:
        """Makes the Sandbox of an earlier build that of this one, if it still has this version."""
        made = self.sandbox()
        spec = made["spec"]
        # A merge keeps what is not named.
        pod = {"runtimeClassName": None, **spec["podTemplate"]["spec"]}
        template = {**spec["podTemplate"], "spec": pod}
        metadata = {"labels": self.labels(), "resourceVersion": version}
        return {"metadata": metadata, "spec": {**spec, "podTemplate": template}}

    def setup_pod(self, *, network: str) -> dict[str, Any]:
        """The pod that runs one command to fill the home."""
        volume = _secret_volume("order", self.names.secret(self.build, "setup"), ["command.json"])
        return self._pod(
            self.names.setup,
            "setup",
            network=network,
            spec={
                "restartPolicy": "Never",
                "initContainers": [self._kit_container()],
                "containers": [self._own_container(COMMAND, "command")],
                "volumes": [*self._volumes(), volume],
            },
        )

    def _pod(
        self, name: str, role: str, *, network: str, spec: Mapping[str, Any]
    ) -> dict[str, Any]:
        # A pod has no other that could take its place.
        annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
        labels = {**self.labels(role), NETWORK_LABEL: network}
        lost = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        common: dict[str, Any] = {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": "workspace",
            "terminationGracePeriodSeconds": STOP_GRACE_S,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": ACCOUNT,
                "runAsGroup": ACCOUNT,
                "fsGroup": ACCOUNT,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": NODE_LOST_AFTER_S,
                }
                for key in lost
            ],
        }
        if self.spec.runtime:
            common["runtimeClassName"] = self.spec.runtime
        return _object("Pod", name, labels, annotations, spec={**common, **spec})

    def _volumes(self) -> list[dict[str, Any]]:
        claim = {"name": "home", "persistentVolumeClaim": {"claimName": self.names.claim}}
        return [
            claim,
            *({"name": name, "emptyDir": {}} for name in ("kit", "run", "socket", "tmp")),
        ]

    def _own_container(self, name: str, order: str) -> dict[str, Any]:
        """A container of the template's image, with the workspace's limits."""
        mounts = {
            "home": VOLUME_DIR, "run": STATE_DIR, "socket": SOCKET_VOLUME_DIR, "tmp": "/tmp",
        }  # fmt: skip
        return {
            "name": name,
            "image": self.spec.image,
            # The image's own entry point has no part in it, nor has its account.
            "command": ["/bin/sh", f"{INSIDE_KIT}/{KIT_START}", order, ORDER_DIR],
            "workingDir": "/",
            "volumeMounts": [
                *({"name": volume, "mountPath": path} for volume, path in mounts.items()),
                {"name": "kit", "mountPath": INSIDE_KIT, "readOnly": True},
                {"name": "order", "mountPath": ORDER_DIR, "readOnly": True},
            ],
            "resources": self._resources(),
            "securityContext": _no_privileges(),
        }

    def _kit_container(self) -> dict[str, Any]:
        return {
            **self._chatd_container(KIT),
            "args": ["runner", "pod-kit", KIT_VOLUME_DIR],
            "volumeMounts": [
                {"name": "kit", "mountPath": KIT_VOLUME_DIR},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
        }

    def _chatd_container(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "image": self.image,
            "command": ["chatd"],
            # Those of the image may be closed to this account.
            "workingDir": "/",
            "env": [{"name": "HOME", "value": "/tmp"}],
            "resources": SMALL,
            "securityContext": _no_privileges(),
        }

    def _resources(self) -> dict[str, Any]:
        wanted = self.spec.limits
        requests = {"memory": str(MEMORY_REQUEST_BYTES)}
        limits: dict[str, str] = {}
        if wanted.memory_bytes:
            limits["memory"] = str(wanted.memory_bytes)
            requests["memory"] = str(min(wanted.memory_bytes, MEMORY_REQUEST_BYTES))
        if wanted.cpu_weight:
            requests["cpu"] = f"{wanted.cpu_weight * MILLICORES_OF_WEIGHT}m"
        return {"requests": requests, **({"limits": limits} if limits else {})}

    def rlimits(self) -> dict[str, int]:
        """Limits of each process, which the first one sets."""
        wanted = {"fsize": self.spec.limits.file_bytes, "nofile": self.spec.limits.open_files}
        return {"core": 0, **{name: value for name, value in wanted.items() if value}}

    def isolation(self) -> str:
        """For example `pod`, `pod+runsc`."""
        return "+".join(("pod", *((self.spec.runtime,) if self.spec.runtime else ())))

    def effective_limits(self) -> EffectiveLimits:
        """Leaves out the number of processes, which the node limits."""
        wanted = {**msgspec.structs.asdict(self.spec.limits), "processes": 0}
        return EffectiveLimits(**wanted, per_process=("file_bytes", "open_files"))


def _object(
    kind: str,
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    **fields: object,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


def _secret_volume(name: str, secret: str, files: list[str]) -> dict[str, Any]:
    items = [{"key": file, "path": file} for file in files]
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440, "items": items}}


def _no_privileges() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
    }
