"""The Engine API of Docker, which Podman speaks too, over its Unix socket.

Every call can be repeated: a container or volume that exists already is not an error, nor is one
that is gone when it is removed. So a call whose connection broke, because the engine restarts, is
sent again for some seconds. A connection per call: the engine may be replaced between two calls.
"""

import asyncio
import errno
import io
import os
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast
from urllib.parse import quote

import aiohttp
import msgspec

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.workspaces.build_backend import BuildFailed

API_VERSION: Final = "v1.41"
"""Docker 20.10 and newer, Podman 3 and newer."""
ENGINE_TIMEOUT_S: Final = 60.0
PULL_SILENCE_TIMEOUT_S: Final = 120.0
UPLOAD_TIMEOUT_S: Final = 600.0
MAX_ENGINE_REPLY_BYTES: Final = 16 << 20
MAX_CONTAINER_LOG_BYTES: Final = 256 * 1024
ENGINE_RETRY_DELAYS_S: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 4.0)
UPLOAD_CHUNK_BYTES: Final = 256 * 1024
NO_SPACE: Final = ("no space left on device", "disk quota exceeded")

Body = Callable[[], AsyncGenerator[bytes] | bytes]


class EngineError(ChatdError):
    """The engine refused a call."""

    code = "engine_refused"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_disk_full(self) -> bool:
        return any(text in self.message.lower() for text in NO_SPACE)


class EngineUnreachable(ChatdError):
    """The engine did not answer, so the outcome of the call is unknown."""

    code = "engine_unreachable"


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine says of itself. `own_users`: it runs containers in a user namespace."""

    name: Literal["Docker", "Podman"]
    version: str
    own_users: bool
    limits: frozenset[str]
    """The limits that it can enforce, of `memory`, `processes`, `cpu`."""
    runtimes: frozenset[str]
    default_runtime: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}, {self.default_runtime}"


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    labels: Mapping[str, str]
    status: str
    exit_code: int = 0

    @property
    def is_up(self) -> bool:
        """Works even while the engine restarts it."""
        return self.status in ("running", "restarting", "paused")


class EngineVolume(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    labels: Mapping[str, str]


class _InspectedState(msgspec.Struct, rename="pascal"):
    status: str = ""
    exit_code: int = 0


class _InspectedConfig(msgspec.Struct, rename="pascal"):
    labels: dict[str, str] | None = None


class _Inspected(msgspec.Struct, rename="pascal"):
    state: _InspectedState
    config: _InspectedConfig
    id: str = ""
    name: str = ""


class EngineClient:
    """`patient`: repeat calls while the engine does not answer, as in a restart."""

    def __init__(self, socket_path: Path, clock: Clock, *, patient: bool = True) -> None:
        self._socket = socket_path
        self._clock = clock
        self._delays = ENGINE_RETRY_DELAYS_S if patient else ()

    async def info(self) -> EngineInfo:
        version = await self._json("GET", "/version")
        info = await self._json("GET", "/info")
        names = {str(part.get("Name", "")) for part in version.get("Components") or ()}
        security = " ".join(info.get("SecurityOptions") or ())
        keys = {"memory": "MemoryLimit", "processes": "PidsLimit", "cpu": "CPUShares"}
        limits = {name for name, key in keys.items() if info.get(key) or info.get(key.capitalize())}
        is_rootless = bool(info.get("Rootless")) or "name=rootless" in security
        if is_rootless and str(info.get("CgroupVersion")) == "1":
            limits = set[str]()  # Podman says that it can, and ignores them.
        return EngineInfo(
            name="Podman" if any("Podman" in name for name in names) else "Docker",
            version=str(version.get("Version", "")),
            own_users=is_rootless or "name=userns" in security,
            limits=frozenset(limits),
            runtimes=frozenset(info.get("Runtimes") or ()),
            default_runtime=str(info.get("DefaultRuntime", "")),
        )

    async def has_image(self, image: str) -> bool:
        return bool(image) and await self._find(f"/images/{_path(image)}/json") is not None

    async def pull(self, image: str, report: Callable[[str], None]) -> None:
        """`report` gets a text for each step, else an empty one: it may raise to end the pull.
        Raises EngineError with the registry's reason."""
        name, tag = split_image(image)
        query = {"fromImage": name, **({"tag": tag} if tag else {})}
        # The reply is 200 before anything is pulled; an error is one of its lines.
        async for line in self._stream("POST", "/images/create", query):
            if line.get("error"):
                raise EngineError(str(line["error"]), 500)
            report("" if line.get("progressDetail") else str(line.get("status", "")))

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> EngineVolume:
        body = {"Name": name, "Labels": dict(labels)}
        return _volume(await self._json("POST", "/volumes/create", body=body))

    async def find_volume(self, name: str) -> EngineVolume | None:
        found = await self._find(f"/volumes/{_path(name)}")
        return None if found is None else _volume(found)

    async def list_volumes(self, label: str) -> list[EngineVolume]:
        found = await self._json("GET", "/volumes", {"filters": _filter("label", label)})
        return [_volume(each) for each in found.get("Volumes") or ()]

    async def remove_volume(self, name: str) -> None:
        await self._call("DELETE", f"/volumes/{_path(name)}", accepted=(404,))

    async def create_container(self, name: str, body: Mapping[str, Any]) -> None:
        """Does nothing if a container of that name exists."""
        await self._call(
            "POST", "/containers/create", {"name": name}, body=_encode(body), accepted=(409,)
        )

    async def start_container(self, name: str) -> None:
        await self._call("POST", f"/containers/{_path(name)}/start")

    async def stop_container(self, name: str, grace_s: int) -> None:
        await self._call(
            "POST", f"/containers/{_path(name)}/stop", {"t": str(grace_s)}, accepted=(404,)
        )

    async def remove_container(self, name: str) -> None:
        """Kill it, if it runs, and remove it with its anonymous volumes. Without the kill Podman
        waits for its end first, which a process that is just starting does not hear of."""
        kill = f"/containers/{_path(name)}/kill"
        try:
            await self._call("POST", kill, {"signal": "KILL"}, accepted=(409, 500))
        except EngineError as error:
            if error.status == 404:
                return
            raise
        query = {"force": "true", "v": "true"}
        await self._call("DELETE", f"/containers/{_path(name)}", query, accepted=(404,))

    async def find_container(self, name: str) -> ContainerState | None:
        found = await self._find(f"/containers/{_path(name)}/json")
        if found is None:
            return None
        inspected = msgspec.convert(found, _Inspected)
        return ContainerState(
            id=inspected.id,
            name=inspected.name.lstrip("/"),
            labels=inspected.config.labels or {},
            status=inspected.state.status,
            exit_code=inspected.state.exit_code,
        )

    async def list_containers(self, label: str) -> list[ContainerState]:
        query = {"all": "true", "filters": _filter("label", label)}
        found: Any = await self._json("GET", "/containers/json", query)
        return [
            ContainerState(
                id=str(each.get("Id", "")),
                name=str((each.get("Names") or [""])[0]).lstrip("/"),
                labels=each.get("Labels") or {},
                status=str(each.get("State", "")),
            )
            for each in found or ()
        ]

    async def upload(self, container: str, directory: str, body: Body) -> None:
        """Extract a tar archive into a directory of a container, which need not run. `body` is
        called again for a repeated call."""
        await self._call(
            "PUT",
            f"/containers/{_path(container)}/archive",
            {"path": directory},
            body=body,
            content_type="application/x-tar",
            timeout_s=UPLOAD_TIMEOUT_S,
        )

    async def log_tail(self, container: str, lines: int) -> str:
        query = {"stdout": "true", "stderr": "true", "tail": str(lines)}
        raw = await self._call("GET", f"/containers/{_path(container)}/logs", query)
        return split_log(raw)[-MAX_CONTAINER_LOG_BYTES:].decode(errors="replace")

    async def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        raw = await self._call(method, path, query, body=None if body is None else _encode(body))
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise EngineError(f"the engine answered {path} with no JSON", 200) from None

    async def _find(self, path: str) -> Any:
        """None if there is no such object."""
        try:
            return await self._json("GET", path)
        except EngineError as error:
            if error.status == 404:
                return None
            raise

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Body | None = None,
        content_type: str = "application/json",
        timeout_s: float = ENGINE_TIMEOUT_S,
        accepted: Sequence[int] = (),
    ) -> bytes:
        headers = {"Content-Type": content_type}
        delays = iter(self._delays)
        while True:
            try:
                async with asyncio.timeout(timeout_s), self._open() as session:
                    data = None if body is None else body()
                    url = f"http://engine/{API_VERSION}{path}"
                    async with session.request(
                        method, url, params=query, data=data, headers=headers
                    ) as response:
                        raw = await _read(response)
                        _check(response.status, raw, accepted)
                        return raw
            except (aiohttp.ClientError, OSError) as error:
                unreachable = EngineUnreachable(_explain(self._socket, error))
                if not isinstance(error, TimeoutError) and (delay_s := next(delays, None)):
                    await self._clock.sleep(delay_s, "engine_retry")
                    continue
            raise unreachable

    async def _stream(
        self, method: str, path: str, query: Mapping[str, str]
    ) -> AsyncIterator[dict[str, Any]]:
        """The objects of a reply that ends when the work does. Not repeated."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=PULL_SILENCE_TIMEOUT_S)
        try:
            async with self._open() as session:
                url = f"http://engine/{API_VERSION}{path}"
                async with session.request(method, url, params=query, timeout=timeout) as response:
                    if response.status >= 300:
                        _check(response.status, await _read(response), ())
                    async for line in response.content:
                        if line.strip():
                            yield msgspec.json.decode(line, type=dict[str, Any])
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnreachable(_explain(self._socket, error)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
            raise EngineError("the engine's progress report is not JSON", 200) from None

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._socket), force_close=True),
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
        )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > MAX_ENGINE_REPLY_BYTES:
            raise EngineError(f"a reply is larger than {MAX_ENGINE_REPLY_BYTES} bytes", 200)
    return bytes(raw)


def _check(status: int, raw: bytes, accepted: Sequence[int]) -> None:
    if status < 300 or status == 304 or status in accepted:
        return
    try:
        message = str(msgspec.json.decode(raw, type=dict[str, Any]).get("message", ""))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        message = raw[:500].decode(errors="replace")
    raise EngineError(message.strip() or f"HTTP status {status}", status)


def _explain(socket_path: Path, error: Exception) -> str:
    number = error.os_error.errno if isinstance(error, aiohttp.ClientConnectorError) else None
    if number == errno.EACCES:
        reason = "this account may not open its socket"
    elif number in (errno.ENOENT, errno.ECONNREFUSED):
        reason = "it does not run"
    elif isinstance(error, TimeoutError):
        reason = "it did not answer in time"
    else:
        reason = f"the connection broke ({type(error).__name__})"
    return f"The container engine at {socket_path} cannot be reached: {reason}."


def _path(name: str) -> str:
    return quote(name, safe="/:@")


def _filter(key: str, value: str) -> str:
    return msgspec.json.encode({key: [value]}).decode()


def _encode(body: Mapping[str, Any]) -> Body:
    return lambda: msgspec.json.encode(body)


def _volume(found: Mapping[str, Any]) -> EngineVolume:
    return EngineVolume(
        name=str(found.get("Name", "")),
        labels=found.get("Labels") or {},
    )


def split_image(image: str) -> tuple[str, str]:
    """Name and tag. A digest stays in the name; an image without both is `latest`."""
    if "@" in image:
        return image, ""
    head, slash, last = image.rpartition("/")
    name, colon, tag = last.partition(":")
    return head + slash + name, tag if colon else "latest"


def split_log(raw: bytes) -> bytes:
    """The text of a log, whose pieces have a head of 8 bytes: stream, 0, 0, 0, length."""
    text = bytearray()
    at = 0
    while at + 8 <= len(raw) and raw[at] in (0, 1, 2) and raw[at + 1 : at + 4] == b"\0\0\0":
        length = int.from_bytes(raw[at + 4 : at + 8], "big")
        text += raw[at + 8 : at + 8 + length]
        at += 8 + length
    return bytes(text) if at else raw


# Archives for `upload`


class ArchiveWriter:
    """A tar archive that ends right after its last entry. Podman stops reading there, and fails if
    it is sent the usual padding."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._written = 0
        self.archive = tarfile.TarFile(fileobj=cast("io.BytesIO", self), mode="w")

    def write(self, data: bytes) -> int:
        self._write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def end(self) -> None:
        self._write(bytes(2 * tarfile.BLOCKSIZE))


def archive_files(files: Mapping[str, bytes], *, uid: int, mode: int) -> bytes:
    """Files, and the directories above them, which only the owner can enter if the files are
    private."""
    raw = io.BytesIO()
    writer = ArchiveWriter(raw.write)
    made: set[Path] = set()
    for name, content in files.items():
        for parent in reversed(Path(name).parents[:-1]):
            if parent not in made:
                made.add(parent)
                entry = archive_entry(str(parent), uid=uid, directory=True, mode=mode)
                writer.archive.addfile(entry)
        entry = archive_entry(name, uid=uid, mode=mode)
        entry.size = len(content)
        writer.archive.addfile(entry, io.BytesIO(content))
    writer.end()
    return raw.getvalue()


def archive_entry(name: str, *, uid: int, mode: int, directory: bool = False) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.uid = entry.gid = uid
    entry.mode = mode
    if directory:
        entry.type = tarfile.DIRTYPE
        entry.mode = mode | (mode & 0o444) >> 2
    return entry


async def stream_archive(write: Callable[[tarfile.TarFile], None]) -> AsyncGenerator[bytes]:
    """Yield what `write` adds to an archive, while a thread writes it."""
    reader, writer = os.pipe()
    failure: list[Exception] = []

    def run() -> None:
        try:
            with os.fdopen(writer, "wb") as pipe:
                archive = ArchiveWriter(pipe.write)
                write(archive.archive)
                archive.end()
        except BrokenPipeError:
            pass  # The engine has ended the call.
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's task
            failure.append(error)

    thread = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        while chunk := await asyncio.to_thread(os.read, reader, UPLOAD_CHUNK_BYTES):
            yield chunk
    finally:
        os.close(reader)
        await thread
    for error in failure:
        raise error


# Reports of the backend


def build_failure(error: ChatdError, doing: str) -> BuildFailed:
    """What a user or an operator can do about an error of the engine."""
    match error:
        case EngineUnreachable():
            return BuildFailed(
                f"{error.message} Start it (for example `systemctl start docker` or `systemctl "
                "start podman.socket`), then start the workspace again."
            )
        case EngineError() if error.is_disk_full:
            return BuildFailed(
                f"{doing}: the disk of the container engine is full ({error.message[:300]}). Free "
                "space, for example with `docker system prune` without its volumes, then start the "
                "workspace again."
            )
        case _:
            return BuildFailed(f"{doing}: {error.message[:500]}")
