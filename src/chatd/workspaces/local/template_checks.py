"""Expand the parameters of a template, and find what the local backend cannot run."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

import msgspec

from chatd.domain.workspace.entities import (
    DirectorySeed,
    FieldProblem,
    GitSeed,
    Mount,
    Seed,
    TemplateSpec,
)
from chatd.workspaces.builds.backend import BuildFailed
from chatd.workspaces.local.process_plan import INSIDE_HOME, INSIDE_KIT, INSIDE_RUN
from chatd.workspaces.local.seeds import AllowedPaths, allowed_directory, check_url, local_path

PLACEHOLDER: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
MAX_ENV_BYTES: Final = 32 * 1024
MAX_MOUNTS: Final = 32
SYSTEM_PATHS: Final = ("/proc", "/dev", "/tmp", "/usr", "/etc")
RESERVED_PATHS: Final = (INSIDE_HOME, INSIDE_RUN, INSIDE_KIT, *SYSTEM_PATHS)


def expand_parameters(spec: TemplateSpec, params: Mapping[str, str]) -> TemplateSpec:
    """Replace `${name}` in the seed and in environment values. Unknown names stay unchanged."""
    env = {name: _expand(value, params) for name, value in spec.env.items()}
    return msgspec.structs.replace(spec, env=env, seed=_expand_seed(spec.seed, params))


def _expand_seed(seed: Seed, params: Mapping[str, str]) -> Seed:
    match seed:
        case GitSeed():
            url, ref = _expand(seed.url, params), _expand(seed.ref, params)
            return msgspec.structs.replace(seed, url=url, ref=ref)
        case DirectorySeed():
            return DirectorySeed(path=_expand(seed.path, params))
        case _:
            return seed


def _expand(text: str, params: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: params.get(found[1], found[0]), text)


def find_problems(spec: TemplateSpec, allowed: AllowedPaths) -> Iterator[FieldProblem]:
    """Check a template with expanded parameters."""
    yield from _check_seed(spec.seed, allowed)
    directory = PurePosixPath(spec.directory)
    if directory.is_absolute() or ".." in directory.parts:
        yield FieldProblem(field="directory", detail="must be inside the home directory")
    if len(spec.mounts) > MAX_MOUNTS:
        yield FieldProblem(field="mounts", detail=f"at most {MAX_MOUNTS}")
    for mount in spec.mounts[:MAX_MOUNTS]:
        yield from _check_mount(mount, allowed)
    yield from _check_env(spec.env)


def _check_seed(seed: Seed, allowed: AllowedPaths) -> Iterator[FieldProblem]:
    path = None
    if isinstance(seed, DirectorySeed):
        path = seed.path
    elif isinstance(seed, GitSeed) and seed.url:
        if (problem := check_url(seed.url)) is not None:
            yield FieldProblem(field="seed.url", detail=problem)
        path = local_path(seed.url)
    if path is not None:
        yield from _check_path("seed", path, allowed)


def _check_mount(mount: Mount, allowed: AllowedPaths) -> Iterator[FieldProblem]:
    target = PurePosixPath(mount.target)
    if not target.is_absolute() or ".." in target.parts or target == PurePosixPath("/"):
        yield FieldProblem(field="mounts", detail=f"{mount.target!r} is not an absolute path")
    elif any(target.is_relative_to(path) for path in RESERVED_PATHS):
        yield FieldProblem(field="mounts", detail=f"{mount.target} is used by the workspace itself")
    yield from _check_path("mounts", mount.source, allowed)


def _check_path(field: str, path: str, allowed: AllowedPaths) -> Iterator[FieldProblem]:
    try:
        allowed_directory(path, allowed)
    except BuildFailed as error:
        yield FieldProblem(field=field, detail=error.message)


def _check_env(env: Mapping[str, str]) -> Iterator[FieldProblem]:
    if sum(len(name) + len(value) for name, value in env.items()) > MAX_ENV_BYTES:
        yield FieldProblem(field="env", detail=f"more than {MAX_ENV_BYTES} bytes")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            yield FieldProblem(field="env", detail=f"{name!r} cannot be set")
