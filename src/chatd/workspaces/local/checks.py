"""What is wrong with a template for the local backend, said before anything is made."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from chatd.domain.workspace.entities import (
    DirectorySeed,
    FieldProblem,
    GitSeed,
    Mount,
    TemplateSpec,
)
from chatd.workspaces.backend import BuildFailed
from chatd.workspaces.local.seeds import Grounds, allowed, local_path, wrong_url

MAX_ENV_BYTES: Final = 32 * 1024
MAX_MOUNTS: Final = 32
OURS: Final = ("/home/dev", "/run/chatd", "/opt/chatd", "/proc", "/dev", "/tmp", "/usr", "/etc")


def problems(spec: TemplateSpec, grounds: Grounds) -> Iterator[FieldProblem]:
    """Of a template whose parameters have been put in."""
    yield from _of_seed(spec, grounds)
    place = PurePosixPath(spec.directory)
    if place.is_absolute() or ".." in place.parts:
        yield FieldProblem(field="directory", detail="must be inside the home directory")
    if len(spec.mounts) > MAX_MOUNTS:
        yield FieldProblem(field="mounts", detail=f"at most {MAX_MOUNTS}")
    for mount in spec.mounts[:MAX_MOUNTS]:
        yield from _of_mount(mount, grounds)
    yield from _of_env(spec.env)


def _of_seed(spec: TemplateSpec, grounds: Grounds) -> Iterator[FieldProblem]:
    seed, path = spec.seed, None
    if isinstance(seed, DirectorySeed):
        path = seed.path
    elif isinstance(seed, GitSeed) and seed.url:
        if (wrong := wrong_url(seed.url)) is not None:
            yield FieldProblem(field="seed.url", detail=wrong)
        path = local_path(seed.url)
    if path is not None:
        yield from _of_path("seed", path, grounds)


def _of_mount(mount: Mount, grounds: Grounds) -> Iterator[FieldProblem]:
    target = PurePosixPath(mount.target)
    if not target.is_absolute() or ".." in target.parts or target == PurePosixPath("/"):
        yield FieldProblem(field="mounts", detail=f"{mount.target!r} is not an absolute path")
    elif any(target.is_relative_to(each) for each in OURS):
        yield FieldProblem(field="mounts", detail=f"{mount.target} is used by the workspace itself")
    yield from _of_path("mounts", mount.source, grounds)


def _of_path(field: str, path: str, grounds: Grounds) -> Iterator[FieldProblem]:
    try:
        allowed(path, grounds)
    except BuildFailed as error:
        yield FieldProblem(field=field, detail=error.message)


def _of_env(env: Mapping[str, str]) -> Iterator[FieldProblem]:
    if sum(len(name) + len(value) for name, value in env.items()) > MAX_ENV_BYTES:
        yield FieldProblem(field="env", detail=f"more than {MAX_ENV_BYTES} bytes")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            yield FieldProblem(field="env", detail=f"{name!r} cannot be set")
