"""Runners: processes that offer workspaces of a machine or a cluster, and which of them fits.

Every server contains a runner for its own host; others dial in from elsewhere. A template names the
backend, the pool and the labels that its workspaces need. The first runner that fits takes a new
workspace, and the workspace stays there.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, NewType
from uuid import UUID

from msgspec import Struct

from chatd.domain.description import describe
from chatd.domain.ids import UserId

RunnerId = NewType("RunnerId", str)
RunnerTokenId = NewType("RunnerTokenId", UUID)
BackendKind = Literal["sandbox", "container", "kubernetes", "machine"]

HERE_TEMPLATES: Final[Mapping[BackendKind, str]] = {"sandbox": "here", "machine": "here-machine"}
"""Built-in templates of workspaces in a directory for which a user has started a runner, by its
backend. The parameter names the directory; the runner accepts no other one."""
DIRECTORY_PARAMETER: Final = "directory"

SERVER_POOL: Final = ""
"""The pool of the runners that servers contain."""
RUNNER_WAIT_S: Final = 600.0
"""How long a tool call waits for a runner that is not connected before the model is told."""
RUNNER_SILENT_AFTER_S: Final = 30.0
"""A runner that no replica has heard from for this long counts as disconnected."""
POD_PREFIX: Final = "pod-"
POOL_PATTERN: Final = "^[a-z0-9]+(-[a-z0-9]+)*$"
"""Valid names of pools."""
MAX_POOL_CHARS: Final = 32


def pod_holder(build_id: UUID) -> RunnerId:
    """The id under which the pod of a build holds its own connections, as a runner does for the
    workspaces of its machine."""
    return RunnerId(f"{POD_PREFIX}{build_id}")


class BackendOffer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A backend that a runner has."""

    kind: Annotated[BackendKind, describe("How it makes workspaces.", "sandbox")]
    isolation: Annotated[str, describe("How workspaces are isolated.", "bwrap+uid")] = ""
    detail: Annotated[str, describe("What an operator should know of it.", "Podman 5.4")] = ""


class Runner(Struct, frozen=True, kw_only=True):
    id: RunnerId
    name: str
    pool: str = SERVER_POOL
    owner_id: UserId | None = None
    """The user who started it for themselves."""
    token_id: RunnerTokenId | None = None
    builtin: bool = False
    version: str = ""
    labels: tuple[str, ...] = ()
    backends: tuple[BackendOffer, ...] = ()
    capacity: int = 0
    """How many workspaces may run there; 0: without limit."""
    running: int = 0
    os: str = ""
    arch: str = ""
    draining: bool = False
    epoch: int = 0
    orphans: tuple[str, ...] = ()
    created_at: datetime
    connected_at: datetime | None = None
    disconnected_at: datetime | None = None
    seen_at: datetime


class RunnerToken(Struct, frozen=True, kw_only=True):
    """The token with which runners of a pool connect. chatd does not store its text."""

    id: RunnerTokenId
    name: str
    pool: str
    created_by: UserId
    created_at: datetime
    expires_at: datetime | None = None
    """None: it does not expire."""
    last_used_at: datetime | None = None


class Requirements(Struct, frozen=True, kw_only=True):
    """What a template needs of a runner."""

    backend: str
    pool: str = SERVER_POOL
    labels: tuple[str, ...] = ()


class BuildPlace(Struct, frozen=True, kw_only=True):
    """One backend of a runner that a replica reaches by itself. `takes_new`: it also takes
    workspaces that no runner has yet, at most `room` of them."""

    runner_id: RunnerId
    backend: str
    pool: str = SERVER_POOL
    labels: tuple[str, ...] = ()
    owner_id: UserId | None = None
    """The only owner whose workspaces it may have."""
    takes_new: bool = True
    room: int | None = None
    """None: without limit."""


def is_connected(runner: Runner, now: datetime) -> bool:
    if runner.connected_at is None or now - runner.seen_at > timedelta(
        seconds=RUNNER_SILENT_AFTER_S
    ):
        return False
    return runner.disconnected_at is None or runner.disconnected_at < runner.connected_at


def takes_new(runner: Runner) -> bool:
    """Whether it takes workspaces that name no runner: it is not drained and has capacity left."""
    if runner.draining or runner.owner_id is not None:
        return False
    return runner.capacity == 0 or runner.running < runner.capacity


def fits(runner: Runner, needs: Requirements) -> bool:
    """Whether the runner could have a workspace of this template, leaving capacity aside."""
    offers = any(offer.kind == needs.backend for offer in runner.backends)
    return offers and runner.pool == needs.pool and set(needs.labels) <= set(runner.labels)


def here_template(runner: Runner) -> str | None:
    """The template for the directory of a user's own runner. None if it offers no backend that
    could work there."""
    offered = (HERE_TEMPLATES.get(offer.kind) for offer in runner.backends)
    return next((name for name in offered if name is not None), None)


def explain_wait(
    needs: Requirements, runner_id: str | None, runners: Sequence[Runner], now: datetime
) -> str:
    """Why a queued build is not being built. Empty if a runner can take it at once."""
    if runner_id is not None:
        mine = next((runner for runner in runners if runner.id == runner_id), None)
        if mine is None:
            return "The runner of this workspace has been removed."
        if not is_connected(mine, now):
            return f"The runner {mine.name} is not connected{_since(mine)}."
        if all(offer.kind != needs.backend for offer in mine.backends):
            return f"The runner {mine.name} no longer offers {needs.backend} workspaces."
        return ""
    pool = f"the pool {needs.pool}" if needs.pool else "the servers' own pool"
    suitable = [runner for runner in runners if fits(runner, needs) and runner.owner_id is None]
    if not suitable:
        labels = f" with the labels {', '.join(needs.labels)}" if needs.labels else ""
        return f"No runner of {pool} offers {needs.backend} workspaces{labels}."
    living = [runner for runner in suitable if is_connected(runner, now)]
    if not living:
        names = ", ".join(sorted(runner.name for runner in suitable)[:5])
        return f"No runner of {pool} that fits is connected: {names}."
    if any(takes_new(runner) for runner in living):
        return ""
    if all(runner.draining for runner in living):
        return f"Every connected runner of {pool} that fits is being drained."
    return f"Every connected runner of {pool} that fits is full."


def _since(runner: Runner) -> str:
    gone = runner.disconnected_at or runner.seen_at
    return f" since {gone:%Y-%m-%d %H:%M} UTC"


def explain_version_gap(runner: str, server: str) -> str | None:
    """Why a runner and a server do not work together: they are more than one minor version apart.
    None if they do, as versions that are not numbers (a checkout) always do."""
    theirs, ours = _release(runner), _release(server)
    if theirs is None or ours is None:
        return None
    if theirs[0] == ours[0] and abs(theirs[1] - ours[1]) <= 1:
        return None
    older = "runner" if theirs < ours else "server"
    return (
        f"This runner is version {runner} and the server {server}: they differ by more than one"
        f" minor version. Upgrade the {older}."
    )


def _release(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])
