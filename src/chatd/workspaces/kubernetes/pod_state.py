"""What the API says of an object, and what follows from it for a pod. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from chatd.workspaces.container.container_plan import BUILD_LABEL

HOPELESS: Final = frozenset(
    {
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    }
)
"""Reasons for which a container waits and that do not end by themselves within a build."""
IMAGE_REASONS: Final = frozenset({"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"})


class _Lenient(Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class _Owner(_Lenient, frozen=True, kw_only=True):
    kind: str = ""


class ObjectMeta(_Lenient, frozen=True, kw_only=True):
    name: str = ""
    uid: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    deletion_timestamp: str | None = None
    resource_version: str = ""
    owner_references: Sequence[_Owner] = ()

    @property
    def build(self) -> int:
        text = self.labels.get(BUILD_LABEL, "")
        return int(text) if text.isdecimal() else 0


class _Object(_Lenient, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()


def metadata_of(raw: Mapping[str, Any]) -> ObjectMeta:
    """Raises msgspec.ValidationError."""
    return msgspec.convert(raw, _Object).metadata


class _SandboxSpec(_Lenient, frozen=True, kw_only=True):
    operating_mode: str = "Running"


class _Sandbox(_Object, frozen=True, kw_only=True):
    spec: _SandboxSpec = _SandboxSpec()


def sandbox_mode(raw: Mapping[str, Any]) -> str:
    """Raises msgspec.ValidationError."""
    return msgspec.convert(raw, _Sandbox).spec.operating_mode


class _Waiting(_Lenient, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class _Terminated(_Lenient, frozen=True, kw_only=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _State(_Lenient, frozen=True, kw_only=True):
    waiting: _Waiting | None = None
    running: Mapping[str, Any] | None = None
    terminated: _Terminated | None = None


class _Container(_Lenient, frozen=True, kw_only=True):
    name: str = ""
    started: bool | None = None
    restart_count: int = 0
    state: _State | None = None
    last_state: _State | None = None


class _Condition(_Lenient, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Status(_Lenient, frozen=True, kw_only=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: Sequence[_Condition] | None = None
    init_container_statuses: Sequence[_Container] | None = None
    container_statuses: Sequence[_Container] | None = None


class _Spec(_Lenient, frozen=True, kw_only=True):
    node_name: str = ""


class _Pod(_Lenient, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class ContainerState(Struct, frozen=True, kw_only=True):
    """`exit_code`: of its end, or of the end before its restart. `problem`: why it does not start,
    and will not."""

    is_started: bool = False
    is_running: bool = False
    exit_code: int | None = None
    problem: str = ""
    is_image_problem: bool = False


class PodState(Struct, frozen=True, kw_only=True):
    name: str
    build: int
    phase: str
    is_ending: bool
    node: str
    reason: str
    message: str
    unscheduled: str
    """Why no node takes it; empty if one has."""
    containers: Mapping[str, ContainerState]
    uid: str = ""
    is_of_sandbox: bool = False
    """The controller of agent-sandbox made it, and makes it again."""

    @property
    def is_up(self) -> bool:
        return not self.is_ending and self.phase in ("Pending", "Running")

    def container(self, name: str) -> ContainerState:
        return self.containers.get(name, ContainerState())

    @property
    def image_problem(self) -> str:
        found = (each.problem for each in self.containers.values() if each.is_image_problem)
        return next(found, "")

    def down_text(self) -> str:
        """What became of a pod that is not up."""
        where = f" on the node {self.node}" if self.node else ""
        if self.phase == "Failed":
            why = ": ".join(text for text in (self.reason, self.message) if text)
            return f"The pod ended{where}: {why.rstrip(' .') or 'no reason is known'}"[:500]
        if self.is_ending:
            return f"The pod is being removed{where}, by another program or with its node"
        if self.phase == "Pending":
            why = self.unscheduled or self.image_problem or "its containers do not start"
            return f"The pod does not start{where}: {why.rstrip(' .')}"[:500]
        return f"The pod is in the state {self.phase}{where}"


def read_pod(raw: Mapping[str, Any]) -> PodState:
    """Raises msgspec.ValidationError if it is not a pod."""
    pod = msgspec.convert(raw, _Pod)
    status = pod.status
    unscheduled = [
        each.message or each.reason
        for each in status.conditions or ()
        if each.type == "PodScheduled" and each.status == "False"
    ]
    listed = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    return PodState(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        build=pod.metadata.build,
        is_of_sandbox=any(each.kind == "Sandbox" for each in pod.metadata.owner_references),
        phase=status.phase,
        is_ending=pod.metadata.deletion_timestamp is not None,
        node=pod.spec.node_name,
        reason=status.reason,
        message=status.message,
        unscheduled="".join(unscheduled[:1]),
        containers={each.name: _read_container(each) for each in listed},
    )


def _read_container(found: _Container) -> ContainerState:
    state, last = found.state or _State(), found.last_state or _State()
    ended = state.terminated or last.terminated
    problem = ""
    if state.waiting is not None and state.waiting.reason in HOPELESS:
        problem = ": ".join(filter(None, (state.waiting.reason, state.waiting.message)))
    elif ended is not None and ended.exit_code and state.running is None:
        problem = f"it ended with exit code {ended.exit_code}"
    return ContainerState(
        is_started=bool(found.started) and state.running is not None,
        is_running=state.running is not None,
        exit_code=None if ended is None else ended.exit_code,
        problem=problem[:500],
        is_image_problem=state.waiting is not None and state.waiting.reason in IMAGE_REASONS,
    )
