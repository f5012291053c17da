"""Runs the containers of a pod as real processes on this host: what a node does, in a file.

A container of the workspace is a bubblewrap with namespaces for its mounts, its processes and its
account; its image is this host's /usr. A container of chatd's own image is a process of this
checkout, whose arguments name the directories of its volumes. Init containers run one after the
other, the others are started again when they end, a startup probe is asked for.
"""

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

CHATD_IMAGE = "registry.test/chatd:test"
IMAGE = "registry.test/shell:test"
RESTART_DELAY_S = 0.05
PROBE_POLL_S = 0.1

Object = dict[str, Any]
Report = Callable[[Object], Awaitable[None]]
"""Takes the pod's new status."""


class Node:
    """`secret` finds the data of a Secret, by its name. All files are below `root`."""

    def __init__(self, root: Path, kits: Path, secret: Callable[[str], Object | None]) -> None:
        self.root = root
        self.kits = kits
        self.secret = secret
        self.missing_images: set[str] = set()

    def claim_dir(self, name: str) -> Path:
        path = self.root / "claims" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def remove_claim(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            for directory, _, _ in os.walk(self.root / "claims" / name):
                os.chmod(directory, 0o700)
            shutil.rmtree(self.root / "claims" / name)


class PodProcesses:
    """One pod on the node. `run` ends when `end` was called, or when its containers have ended.
    `ending` is set by `end`."""

    def __init__(self, node: Node, pod: Object, report: Report) -> None:
        self.name: str = pod["metadata"]["name"]
        self._node = node
        self._pod = pod
        self._report = report
        self._dir = node.root / "pods" / pod["metadata"]["uid"]
        self._status: dict[str, Object] = {}
        self._phase = "Pending"
        self._running: dict[str, int] = {}
        self.ending = asyncio.Event()
        self._grace_s = 0.0

    def end(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self.ending.set()

    def uses_claim(self, name: str) -> bool:
        claims = [each.get("persistentVolumeClaim", {}) for each in self._pod["spec"]["volumes"]]
        return any(claim.get("claimName") == name for claim in claims)

    def kill_container(self, name: str) -> None:
        os.kill(self._running[name], signal.SIGKILL)

    def log(self, container: str) -> bytes | None:
        path = self._dir / f"{container}.log"
        return path.read_bytes() if path.exists() else None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                living = group.create_task(self._live())
                ending = group.create_task(self.ending.wait())
                await asyncio.wait({living, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not living.done():
                    await self._stop(living)
                ending.cancel()
        finally:
            self._kill()

    def close(self) -> None:
        """Remove its files, and with them what it has printed."""
        shutil.rmtree(self._dir, ignore_errors=True)

    async def _stop(self, living: asyncio.Task[None]) -> None:
        for pid in tuple(self._running.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if self._grace_s else signal.SIGKILL)
        await asyncio.wait({living}, timeout=self._grace_s or 5)
        living.cancel()

    def _kill(self) -> None:
        for pid in tuple(self._running.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _live(self) -> None:
        spec = self._pod["spec"]
        self._make_volumes()
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            self._set(container, {"waiting": {"reason": "PodInitializing"}})
        await self._tell()
        for container in spec.get("initContainers", ()):
            while await self._run_once(container) != 0 and not self.ending.is_set():
                if spec["restartPolicy"] == "Never":
                    self._phase = "Failed"
                    await self._tell()
                    return
                await asyncio.sleep(RESTART_DELAY_S)
        if self.ending.is_set():
            return
        self._phase = "Running"
        codes = await asyncio.gather(*(self._keep(each) for each in spec["containers"]))
        if spec["restartPolicy"] == "Never":
            self._phase = "Succeeded" if not any(codes) else "Failed"
            await self._tell()

    async def _keep(self, container: Object) -> int:
        while True:
            code = await self._run_once(container)
            if self.ending.is_set() or self._pod["spec"]["restartPolicy"] == "Never":
                return code
            await asyncio.sleep(RESTART_DELAY_S)

    async def _run_once(self, container: Object) -> int:
        name = container["name"]
        while container["image"] in self._node.missing_images:
            for reason in ("ErrImagePull", "ImagePullBackOff"):
                message = f"{container['image']}: not found"
                self._set(container, {"waiting": {"reason": reason, "message": message}})
                await self._tell()
            await self.ending.wait()
            return 1
        process = await self._spawn(container)
        probing = asyncio.get_running_loop().create_task(self._probe(container))
        try:
            if self.ending.is_set():
                self._kill()
            self._set(container, {"running": {}}, started="startupProbe" not in container)
            await self._tell()
            code = await process.wait()
        finally:
            probing.cancel()
            self._running.pop(name, None)
            if process.returncode is None:
                process.kill()
                await process.wait()
            await asyncio.wait({probing})
        ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
        self._set(container, {"terminated": ended}, restarted=True)
        await self._tell()
        return code

    async def _spawn(self, container: Object) -> asyncio.subprocess.Process:
        name = container["name"]
        with (self._dir / f"{name}.log").open("ab") as log:
            if container["image"] == CHATD_IMAGE:
                words = self._mapped([*container["command"], *container.get("args", ())])
                if "pod-kit" in words:
                    words += ["--kits", str(self._node.kits)]
                process = await asyncio.create_subprocess_exec(
                    str(Path(sys.executable).with_name(words[0])), *words[1:],
                    stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                    env={"PATH": os.defpath},
                )  # fmt: skip
                self._running[name] = process.pid
                return process
            reader, writer = os.pipe()
            process = await asyncio.create_subprocess_exec(
                *self._words(container, writer),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(writer,),
            )  # fmt: skip
            os.close(writer)
        try:
            if child := await asyncio.to_thread(_read_child, reader):
                self._running[name] = child
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        return process

    async def _probe(self, container: Object) -> None:
        if "startupProbe" not in container:
            return
        words = self._mapped(container["startupProbe"]["exec"]["command"])
        while True:
            process = await asyncio.create_subprocess_exec(*words)
            try:
                if await process.wait() == 0:
                    break
            finally:
                await process.wait()
            await asyncio.sleep(PROBE_POLL_S)
        self._set(container, {"running": {}}, started=True)
        await self._tell()

    # The status

    def _set(
        self, container: Object, state: Object, *, started: bool = False, restarted: bool = False
    ) -> None:
        before = self._status.get(container["name"], {})
        restarts = before.get("restartCount", 0)
        is_started = started or (before.get("started", False) and "running" in state)
        self._status[container["name"]] = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": is_started,
            "started": is_started,
            "restartCount": restarts + restarted,
            "state": state,
            **({"lastState": before["state"]} if "terminated" in before.get("state", {}) else {}),
        }

    async def _tell(self) -> None:
        spec = self._pod["spec"]
        listed = {
            "initContainerStatuses": spec.get("initContainers", ()),
            "containerStatuses": spec["containers"],
        }
        statuses = {
            field: [
                self._status[each["name"]] for each in containers if each["name"] in self._status
            ]
            for field, containers in listed.items()
        }
        scheduled = {"type": "PodScheduled", "status": "True"}
        await self._report({"phase": self._phase, "conditions": [scheduled], **statuses})

    # Volumes and processes

    def _make_volumes(self) -> None:
        for volume in self._pod["spec"]["volumes"]:
            path = self._dir / volume["name"]
            if "persistentVolumeClaim" in volume:
                self._node.claim_dir(volume["persistentVolumeClaim"]["claimName"])
                continue
            path.mkdir(parents=True)
            if "secret" in volume:
                data = self._node.secret(volume["secret"]["secretName"]) or {}
                for item in volume["secret"]["items"]:
                    (path / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))

    def _source(self, name: str) -> Path:
        volume = next(each for each in self._pod["spec"]["volumes"] if each["name"] == name)
        if claim := volume.get("persistentVolumeClaim"):
            return self._node.claim_dir(claim["claimName"])
        return self._dir / name

    def _mapped(self, words: list[str]) -> list[str]:
        """With the directories of volumes instead of the paths at which the container has them."""
        mounts = {
            mount["mountPath"]: self._source(mount["name"])
            for container in (
                *self._pod["spec"]["initContainers"],
                *self._pod["spec"]["containers"],
            )
            for mount in container.get("volumeMounts", ())
        }
        pattern = re.compile("^(" + "|".join(map(re.escape, mounts)) + ")(?=/|$)")
        return [pattern.sub(lambda found: str(mounts[found[1]]), word) for word in words]

    def _words(self, container: Object, info_fd: int) -> list[str]:
        security = self._pod["spec"]["securityContext"]
        words = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--as-pid-1"]
        words += ["--uid", str(security["runAsUser"]), "--gid", str(security["runAsGroup"])]
        words += ["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]
        words += ["--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin"]
        words += ["--info-fd", str(info_fd), *_root_words()]
        mounts: list[Mapping[str, Any]] = container.get("volumeMounts", [])
        for mount in sorted(mounts, key=lambda each: each["mountPath"]):
            bind = "--ro-bind" if mount.get("readOnly") else "--bind"
            words += [bind, str(self._source(mount["name"])), mount["mountPath"]]
        words += ["--chdir", container.get("workingDir", "/"), "--"]
        return [*words, *container["command"], *container.get("args", ())]


def _root_words() -> list[str]:
    words = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run", "--tmpfs", "/tmp"]
    own = ("passwd", "group", "ld.so.cache", "alternatives", "ssl", "nsswitch.conf", "hosts")
    for path in map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64", *(f"/etc/{n}" for n in own))):
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    return words


def _read_child(reader: int) -> int:
    """The first process of the container, as this host numbers it; 0 if there was none."""
    with os.fdopen(reader, "rb") as info:
        text = info.read()
    return int(json.loads(text)["child-pid"]) if text else 0
