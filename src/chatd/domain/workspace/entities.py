"""Templates, workspaces, builds and workspace agents as values.

The rules over them are in `rules` and `templates`.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Literal, NewType
from uuid import UUID

from msgspec import Meta, Struct

from chatd.domain.description import describe
from chatd.domain.ids import UserId, WorkerId, WorkspaceId

TemplateId = NewType("TemplateId", UUID)
VersionId = NewType("VersionId", UUID)
BuildId = NewType("BuildId", UUID)
AgentId = NewType("AgentId", UUID)

BuildTransition = Literal["start", "stop", "delete"]
BuildStatus = Literal["pending", "running", "canceling", "succeeded", "failed", "canceled"]
BuildReason = Literal["initiator", "tool", "autostop", "autostart"]
AgentLifecycle = Literal[
    "created", "starting", "ready", "start_error", "start_timeout", "shutting_down", "off"
]
AgentStatus = Literal["connecting", "connected", "disconnected", "timeout"]
ParameterType = Literal["string", "number", "bool", "list(string)"]
LogLevel = Literal["debug", "info", "warning", "error"]


class EmptySeed(Struct, frozen=True, kw_only=True, tag_field="kind", tag="empty"):
    """An empty home directory."""


class GitSeed(Struct, frozen=True, kw_only=True, tag_field="kind", tag="git"):
    """A clone. An empty `url`, possibly from a parameter, means an empty directory. Without a
    network, the template's repository must be on the public internet, unless `allow_private`."""

    url: Annotated[
        str, describe("The repository; `${name}`: a parameter.", "https://git.example.org/shop.git")
    ]
    ref: Annotated[str, describe("The branch, tag or commit; empty: the default.", "main")] = ""
    allow_private: Annotated[
        bool, describe("Whether the repository may be on a private network.")
    ] = False


class DirectorySeed(Struct, frozen=True, kw_only=True, tag_field="kind", tag="directory"):
    """A copy of a host directory; symbolic links stay links."""

    path: Annotated[str, describe("The directory on the runner's host.", "/srv/projects/shop")]


class DemoSeed(Struct, frozen=True, kw_only=True, tag_field="kind", tag="demo"):
    """A small repository with a failing test."""


Seed = EmptySeed | GitSeed | DirectorySeed | DemoSeed


class ResourceLimits(Struct, frozen=True, kw_only=True):
    """Limits over all processes of a workspace. Zero: chatd sets no limit. `cpu_weight` is the
    workspace's share of a busy processor; any other process of the host has 100."""

    memory_bytes: Annotated[int, describe("Memory.", 2147483648)] = 2 * 1024**3
    processes: Annotated[int, describe("Processes and threads.", 512)] = 512
    file_bytes: Annotated[int, describe("The size of one file.", 1073741824)] = 1024**3
    disk_bytes: Annotated[int, describe("All files together.", 10737418240)] = 10 * 1024**3
    open_files: Annotated[int, describe("Open files of one process.", 4096)] = 4096
    cpu_weight: Annotated[
        int,
        Meta(ge=0, le=10_000),
        describe("The share of a busy processor; any other process of the host has 100.", 100),
    ] = 100


class EffectiveLimits(ResourceLimits, frozen=True, kw_only=True):
    """What the host enforces. `per_process` names the limits that hold for each process alone."""

    per_process: Annotated[
        tuple[str, ...], describe("The limits that hold for each process alone.", ["memory_bytes"])
    ] = ()


Network = Literal["none", "allow", "full"]


class Mount(Struct, frozen=True, kw_only=True):
    """A host path mounted read-only."""

    source: Annotated[str, describe("The directory on the runner's host.", "/srv/fixtures")]
    target: Annotated[str, describe("Where the workspace sees it.", "/fixtures")]


class TemplateSpec(Struct, frozen=True, kw_only=True):
    """How a workspace is built. `${name}` in the seed and in environment values is replaced by the
    parameter of that name."""

    seed: Annotated[Seed, describe("What the home directory starts with.")] = EmptySeed()
    env: Annotated[
        Mapping[str, str],
        describe("Its environment, which every command can read.", {"SHOP_ENV": "test"}),
    ] = {}
    startup_script: Annotated[
        str, describe("A shell script that is part of every start; empty: none.", "make deps")
    ] = ""
    startup_timeout_s: Annotated[
        float, describe("How long that script may run, in seconds.", 300)
    ] = 300
    limits: Annotated[ResourceLimits, describe("Limits over all its processes.")] = ResourceLimits()
    network: Annotated[
        Network, describe("What it reaches: nothing, the hosts of `allow`, or every host.", "allow")
    ] = "none"
    allow: Annotated[
        tuple[str, ...],
        describe(
            "With the network `allow`: the hosts that it may reach.", ["github.com", "*.pypi.org"]
        ),
    ] = ()
    mounts: Annotated[
        tuple[Mount, ...], describe("Directories of the runner's host that it sees, read-only.")
    ] = ()
    directory: Annotated[
        str,
        describe(
            "Where commands run, relative to the home directory; empty: the home directory.", "shop"
        ),
    ] = ""
    pool: Annotated[
        str, describe("The pool of runners that build it; empty: the servers themselves.", "gpu")
    ] = ""
    labels: Annotated[
        tuple[str, ...], describe("Labels that a runner must have, all of them.", ["arm64"])
    ] = ()
    image: Annotated[
        str, describe("The image of containers and pods.", "docker.io/library/debian:13")
    ] = ""
    runtime: Annotated[
        str,
        describe(
            "The runtime of containers or the RuntimeClass of pods; empty: the default.", "runsc"
        ),
    ] = ""
    desktop: Annotated[
        bool, describe("Whether it has a desktop, which agents can use and people can watch.")
    ] = False
    desktop_size: Annotated[
        str, describe("The pixels of the desktop's screen; empty: 1280x720.", "1920x1080")
    ] = ""
    browser: Annotated[
        bool, describe("Whether agents can open pages in a browser without a screen.")
    ] = False


DEFAULT_SCREEN: Final = (1280, 720)
"""Within the limits of every vendor, so that screenshots need not be scaled."""
_SCREEN_SIZE: Final = re.compile(r"([1-9][0-9]{2,3})x([1-9][0-9]{2,3})")


def screen_size(spec: TemplateSpec) -> tuple[int, int] | None:
    """Width and height of the desktop's screen. None: there is no desktop."""
    found = _SCREEN_SIZE.fullmatch(spec.desktop_size)
    if not spec.desktop:
        return None
    return DEFAULT_SCREEN if found is None else (int(found[1]), int(found[2]))


class ParameterOption(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value that a parameter may have."""

    name: Annotated[str, describe("What a form shows.", "Python 3.12")]
    value: Annotated[str, describe("The value.", "3.12")]
    description: Annotated[str, describe("More about it.", "The newest")] = ""


class Parameter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A parameter of a template. All values travel as text."""

    name: Annotated[str, describe("Its name.", "python")]
    type: Annotated[ParameterType, describe("The type of its values.", "string")] = "string"
    required: Annotated[bool, describe("Whether a workspace must give it.")] = False
    default: Annotated[str | None, describe("The value if none is given.", "3.12")] = None
    mutable: Annotated[bool, describe("Whether a later start may change it.")] = True
    ephemeral: Annotated[bool, describe("It applies to one build only.")] = False
    display_name: Annotated[str, describe("What a form shows.", "Python")] = ""
    description: Annotated[str, describe("What it does.", "The version of Python.")] = ""
    form_type: Annotated[str, describe("The kind of form field.", "dropdown")] = ""
    options: Annotated[
        tuple[ParameterOption, ...], describe("The values to choose from; empty if any is allowed.")
    ] = ()
    regex: Annotated[str, describe("A pattern that a value must match.", "^3[.][0-9]+$")] = ""
    regex_error: Annotated[
        str, describe("What to tell if it does not.", "Give a version such as 3.12.")
    ] = ""
    min: Annotated[float | None, describe("The lowest number.", 1)] = None
    max: Annotated[float | None, describe("The highest number.", 16)] = None


class Template(Struct, frozen=True, kw_only=True):
    id: TemplateId
    name: str
    display_name: str = ""
    description: str = ""
    icon: str = ""
    backend: str
    """The kind of the backend that builds it."""
    origin: Literal["builtin", "settings", "user"] = "user"
    active_version_id: VersionId
    agents_allowed: bool = True
    deprecated: bool = False
    deleted: bool = False
    default_ttl_s: int = 0
    """How long an unused workspace runs; 0: without limit."""
    activity_bump_s: int = 3600
    max_ttl_s: int = 0
    """How long a workspace runs at most, even if it is used; 0: without limit."""
    require_active_version: bool = False
    users: tuple[str, ...] = ()
    """Names or email addresses. Without users and groups every user may use it."""
    groups: tuple[str, ...] = ()
    created_at: datetime
    updated_at: datetime


class TemplateVersion(Struct, frozen=True, kw_only=True):
    id: VersionId
    template_id: TemplateId
    spec: TemplateSpec
    readme: str = ""
    parameters: tuple[Parameter, ...] = ()
    has_external_agent: bool = False
    created_at: datetime


class Workspace(Struct, frozen=True, kw_only=True):
    id: WorkspaceId
    owner_id: UserId
    template_id: TemplateId
    name: str
    number: int
    """Small and unique over all workspaces ever created."""
    host_id: str | None
    """The runner that has the workspace (for a server's own runner, the id of its host); None until
    a runner takes it."""
    ttl_s: int = 0
    last_used_at: datetime
    deleted: bool = False
    created_at: datetime


class Build(Struct, frozen=True, kw_only=True):
    """One attempt to start, stop or delete a workspace. Another attempt is another build with its
    own number."""

    id: BuildId
    workspace_id: WorkspaceId
    build_number: int
    transition: BuildTransition
    template_version_id: VersionId
    params: Mapping[str, str] = {}
    status: BuildStatus
    error: str = ""
    error_code: str = ""
    worker_id: WorkerId | None = None
    heartbeat_at: datetime | None = None
    attempt: int = 0
    """How many build workers have acquired it: one, unless a worker died."""
    deadline: datetime | None = None
    max_deadline: datetime | None = None
    initiator_id: UserId
    reason: BuildReason = "initiator"
    copied_from: WorkspaceId | None = None
    """The workspace whose files this start copies."""
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None

    @property
    def active(self) -> bool:
        return self.status in ("pending", "running", "canceling")


class BuildLog(Struct, frozen=True, kw_only=True):
    id: int
    build_id: BuildId
    at: datetime
    stage: str
    level: LogLevel
    output: str


class Endpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An address of an agent. A unix socket works on its own host only."""

    kind: Literal["unix", "tcp"]
    path: str = ""
    host: str = ""
    port: int = 0
    host_id: str = ""


class AgentSpec(Struct, frozen=True, kw_only=True):
    """An agent as a backend created it. `id` is `BuildContext.agent_id(name)`."""

    id: AgentId
    name: str
    parent_id: AgentId | None = None
    display_order: int = 0
    os: str = "linux"
    arch: str = ""
    directory: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    isolation: str = ""
    network: Network | None = None
    limits: EffectiveLimits | None = None
    connection_timeout_s: int = 120
    lifecycle: AgentLifecycle = "starting"


class AgentRow(Struct, frozen=True, kw_only=True):
    id: AgentId
    build_id: BuildId
    workspace_id: WorkspaceId
    parent_id: AgentId | None = None
    name: str
    display_order: int = 0
    os: str = "linux"
    arch: str = ""
    directory: str = ""
    expanded_directory: str = ""
    """`directory` as the agent resolved it; empty until the agent reports it."""
    lifecycle: AgentLifecycle = "created"
    connection_timeout_s: int = 120
    endpoints: tuple[Endpoint, ...] = ()
    isolation: str = ""
    network: Network | None = None
    limits: EffectiveLimits | None = None
    boot_id: str = ""
    created_at: datetime
    first_connected_at: datetime | None = None
    last_connected_at: datetime | None = None
    disconnected_at: datetime | None = None


class AgentHealth(Struct, frozen=True, kw_only=True):
    """An agent's answer to a health check."""

    boot_id: str
    lifecycle: AgentLifecycle = "ready"
    directory: str = ""


class BackendState(Struct, frozen=True, kw_only=True):
    """The state of a workspace that a backend observed. `unknown` allows no conclusion."""

    state: Literal["running", "stopped", "gone", "unknown"]
    detail: str = ""


class FieldProblem(Struct, frozen=True, kw_only=True):
    """An invalid value of a field."""

    field: str
    detail: str
