"""The steps of opening a workspace: a home with files, the start-up script, an order for its agent.

Each may be done again by another server after a crash. The backend decides whether they are needed
and asks the supervisor.
"""

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import msgspec

from chatd.domain.workspace.entities import AgentId, TemplateSpec
from chatd.workspaces.backend import BuildCancelled, BuildContext, BuildFailed
from chatd.workspaces.local.layout import SOCKET, Spot
from chatd.workspaces.local.levels import Level, namespaced
from chatd.workspaces.local.once import run_once
from chatd.workspaces.local.plan import CONFIG_FD, Order, Plan
from chatd.workspaces.local.recipes import Room, environment, plan, view
from chatd.workspaces.local.removal import discard
from chatd.workspaces.local.seeds import Grounds, Seeding, fill
from chatd.workspaces.local.waiting import pause

LOOK_S: Final = 0.1


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """`directory` is where commands run, as seen from inside."""

    context: BuildContext
    spec: TemplateSpec
    level: Level
    room: Room
    spot: Spot
    directory: str
    disk_interval_s: float


class AgentStart(msgspec.Struct, frozen=True, kw_only=True):
    """`socket` is its path on the host, short enough for a socket."""

    id: AgentId
    key: bytes
    socket: str

    def __repr__(self) -> str:
        return f"AgentStart(id={self.id})"


@contextlib.asynccontextmanager
async def alone(opening: Opening) -> AsyncGenerator[None]:
    """A server that was taken for dead may still be at it; it loses its hold when it dies."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(opening.spot.lock, flags, 0o600)
    try:
        while not _take(lock):
            await pause(opening.context.cancelled, LOOK_S)
            check_cancelled(opening.context)
        yield
    finally:
        os.close(lock)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def fill_home(opening: Opening, *, trash: Path, grounds: Grounds) -> None:
    """The home gets its name when it is complete: one that has it is never filled again."""
    spot, context = opening.spot, opening.context
    if await asyncio.to_thread(spot.home.exists):
        return
    context.log("files", "Making the home directory")
    await asyncio.to_thread(discard, spot.fresh, trash)
    await fill(
        Seeding(
            level=opening.level,
            room=msgspec.structs.replace(opening.room, home=spot.fresh, mounts=()),
            seed=opening.spec.seed,
            directory=opening.spec.directory,
            grounds=grounds,
            log=spot.log / "seed.log",
            cancelled=context.cancelled,
            say=lambda text: context.log("files", text),
        )
    )
    check_cancelled(context)
    await asyncio.to_thread(spot.fresh.rename, spot.home)


async def run_startup(opening: Opening) -> None:
    context, spec = opening.context, opening.spec
    if not spec.startup_script:
        return
    context.log("startup", "Running the start-up script")
    words = ["/bin/sh", "-c", spec.startup_script]
    ran = await run_once(
        plan(opening.level, opening.room, words, directory=opening.directory),
        log=opening.spot.log / "startup.log",
        within_s=spec.startup_timeout_s,
        cancelled=context.cancelled,
    )
    for line in ran.said.splitlines()[-100:]:
        context.log("startup", line)
    if ran.code is None:
        raise BuildFailed(f"The start-up script took longer than {spec.startup_timeout_s:.0f} s.")
    if ran.code != 0:
        raise BuildFailed(f"The start-up script ended with exit code {ran.code}.")


def order_for(opening: Opening, agent: AgentStart) -> Order:
    spot, limits = opening.spot, opening.room.limits
    return Order(
        workspace=opening.room.name,
        build=opening.context.build.build_number,
        plan=_agent_plan(opening, agent),
        socket=str(spot.run / SOCKET),
        log=str(spot.log / "agent.log"),
        namespaced=namespaced(opening.level),
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        disk_bytes=limits.disk_bytes,
        disk_interval_s=opening.disk_interval_s,
        disk_paths=[str(spot.home), str(spot.run)],
    )


def check_cancelled(context: BuildContext) -> None:
    if context.cancelled.is_set():
        raise BuildCancelled("The build was cancelled.")


def _agent_plan(opening: Opening, agent: AgentStart) -> Plan:
    level, room = opening.level, opening.room
    seen = view(level, room)
    bare = msgspec.structs.replace(room, env={})
    config = {
        "agent_id": str(agent.id),
        "dial_key": agent.key.hex(),
        "socket": f"{seen.run}/{SOCKET}" if namespaced(level) else agent.socket,
        "directory": opening.directory,
        "run_dir": seen.run,
        "home": seen.home,
        "env": {**environment(level, bare), **room.env},
    }
    words = [room.kit.python.path, "-I", "-B", f"{seen.kit}/agent"]
    words += ["--config-fd", str(CONFIG_FD)]
    return plan(level, bare, words, directory=seen.home, config=json.dumps(config))
