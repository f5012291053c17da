"""How a process of a workspace is started at each level: from what it may see and use to a plan.

Owns the choice between the levels, the limits and the paths as they look from inside. What
bubblewrap is told is in `bubblewrap`; carrying a plan out is `enter`.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chatd.domain.workspace.entities import Mount, ResourceLimits
from chatd.workspaces.local.bubblewrap import Shown, bubblewrap, unseen
from chatd.workspaces.local.kit import Kit
from chatd.workspaces.local.levels import Level, namespaced
from chatd.workspaces.local.plan import CONFIG_FD, Fence, Plan

HOME: Final = "/home/dev"
RUN: Final = "/run/chatd"
KIT: Final = "/opt/chatd"
STAGES: Final = ("/tmp", "/mnt", "/media")

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc")
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
ETC: Final = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/ca-trust",
    "/etc/pki/tls",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
)
ETC_NETWORK: Final = ("/etc/resolv.conf", "/etc/nsswitch.conf")


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What a process may see and use, in paths of the host."""

    name: str
    home: Path
    run: Path
    kit: Kit
    uid: int | None
    limits: ResourceLimits
    network: bool = False
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = {}


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The same paths as they look from inside."""

    home: str
    run: str
    kit: str


def view(level: Level, room: Room) -> View:
    if namespaced(level):
        return View(home=HOME, run=RUN, kit=KIT)
    return View(home=str(room.home), run=str(room.run), kit=str(room.kit.path))


def environment(level: Level, room: Room) -> dict[str, str]:
    """What every process starts with. Nothing of the server's."""
    seen = view(level, room)
    env = {
        "PATH": f"{seen.kit}/bin:{PATH}",
        "HOME": seen.home,
        "USER": "dev",
        "LOGNAME": "dev",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp" if namespaced(level) else f"{seen.run}/tmp",
        "CHATD_WORKSPACE_ID": room.name,
    }
    if not namespaced(level):
        env["GIT_CONFIG_SYSTEM"] = f"{seen.kit}/etc/gitconfig"
    if not namespaced(level) or room.kit.python.sitecustomize is None:
        env["PYTHONPATH"] = f"{seen.kit}/lib"
    return {**env, **room.env}


def plan(
    level: Level, room: Room, argv: Sequence[str], *, directory: str = "", config: str = ""
) -> Plan:
    """`directory` is where it starts, as seen from inside; else in its home."""
    uid = room.uid if level != "bwrap" else None
    if namespaced(level):
        return _in_namespaces(level, room, argv, directory or HOME, config)
    seen = view(level, room)
    return Plan(
        argv=list(argv),
        env=environment(level, room),
        cwd=directory or seen.home,
        uid=uid,
        limits=_limits(room.limits),
        config=config,
        fence=_fence(room, seen) if level == "landlock+rlimit" else None,
    )


def _in_namespaces(
    level: Level, room: Room, argv: Sequence[str], directory: str, config: str
) -> Plan:
    """With an account of its own everything is first put on a stage, because that account may not
    be able to walk the way to the data directory."""
    sources = [
        Shown(source=room.home, target=HOME, writable=True),
        Shown(source=room.run, target=RUN, writable=True),
        Shown(source=room.kit.path, target=KIT),
        *(Shown(source=Path(each.source).resolve(), target=each.target) for each in room.mounts),
    ]
    stage = _stage() if level == "bwrap+uid" else ""
    binds: list[list[str]] = []
    if stage:
        binds = [[str(number), str(each.source)] for number, each in enumerate(sources)]
        sources = [
            msgspec.structs.replace(each, source=Path(stage, str(number)))
            for number, each in enumerate(sources)
        ]
    kit = sources[2].source
    files = [*_made_up(kit, room), *_of_host(network=room.network), *sources]
    # The template's part may hold secrets; an agent finds it in its configuration.
    assert not (room.env and config)
    env = environment(level, msgspec.structs.replace(room, env={}))
    more = CONFIG_FD if room.env else None
    words = bubblewrap(files, env, directory, network=room.network, more=more)
    return Plan(
        argv=words + list(argv),
        env={"PATH": PATH},
        uid=room.uid if level == "bwrap+uid" else None,
        stage=stage,
        binds=binds,
        limits=_limits(room.limits),
        config=config or unseen(room.env),
    )


def _made_up(kit: Path, room: Room) -> list[Shown]:
    names = ["passwd", "group", "gitconfig"]
    if not room.network:
        names.append("hosts")
    shown = [Shown(source=kit / "etc" / name, target=f"/etc/{name}") for name in names]
    custom = room.kit.python.sitecustomize
    if custom is not None:
        shown.append(Shown(source=kit / "etc" / "sitecustomize.py", target=str(custom)))
    return shown


def _of_host(*, network: bool) -> list[Shown]:
    names = [*ETC, *(("/etc/hosts", *ETC_NETWORK) if network else ())]
    return [Shown(source=Path(name), target=name) for name in names if os.path.exists(name)]


def _fence(room: Room, seen: View) -> Fence:
    mounts = [each.source for each in room.mounts]
    hosts = ["/etc/hosts", "/etc/passwd", "/etc/group", *ETC_NETWORK]
    return Fence(
        readable=[*SYSTEM, *ETC, *hosts, seen.kit, *mounts],
        writable=[seen.home, seen.run, *DEVICES],
        network=room.network,
    )


def _limits(limits: ResourceLimits) -> dict[str, int]:
    """For each process, or for each account as `nproc` is. Memory is left to whoever starts it:
    only there it is known whether there are control groups."""
    wanted = {
        "nproc": limits.processes,
        "nofile": limits.open_files,
        "fsize": limits.file_bytes,
    }
    return {"core": 0, **{name: value for name, value in wanted.items() if value}}


def _stage() -> str:
    return next((path for path in STAGES if Path(path).is_dir()), STAGES[0])
