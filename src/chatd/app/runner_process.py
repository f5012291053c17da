"""The runner process: builds its backends from the options of `chatd runner start` and serves them.

Its data directory holds its id, its workspaces, a lock that keeps a second process out, and a
status file that `chatd runner status` reads.
"""

import asyncio
import fcntl
import getpass
import os
import secrets
import signal
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd import sealed_secrets
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.domain.workspace.runners import BackendKind, BackendOffer
from chatd.settings.schema import SettingsError
from chatd.workspaces.container.container_backend import (
    ContainerBackend,
    ContainerConfig,
    find_engine_socket,
)
from chatd.workspaces.kubernetes.cluster_access import find_access
from chatd.workspaces.kubernetes.kubernetes_backend import KubernetesBackend, KubernetesConfig
from chatd.workspaces.local.here import HereView
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.local_backend import (
    LocalBackend,
    LocalConfig,
    here_config,
    machine_config,
)
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from chatd.workspaces.runner.backend_calls import BackendCalls, RunnerBackend
from chatd.workspaces.runner.runner_client import RunnerClient, RunnerConfig

ID_FILE: Final = "runner-id"
LOCK_FILE: Final = "runner.lock"
STATUS_FILE: Final = "runner-status.json"
STATUS_INTERVAL_S: Final = 2.0
LOCK_POLL_S: Final = 0.3
DRAIN_SIGNAL: Final = signal.SIGUSR1
RESUME_SIGNAL: Final = signal.SIGUSR2


class ClusterOptions(Struct, frozen=True, kw_only=True):
    """For the backend `kubernetes`."""

    kubeconfig: Path | None = None
    """None: the service account of the runner's own pod."""
    namespace: str = ""
    pod_image: str = ""
    storage_class: str = ""
    agent_sandbox: bool = False


class RunnerOptions(Struct, frozen=True, kw_only=True):
    """What `chatd runner start` was given."""

    server_url: str
    token: str
    data_dir: Path
    name: str | None = None
    labels: tuple[str, ...] = ()
    backends: tuple[BackendKind, ...] = ("sandbox",)
    capacity: int = 0
    roots: tuple[Path, ...] = ()
    engine_socket: Path | None = None
    """Of Docker or Podman; None: where they usually have it."""
    cluster: ClusterOptions = ClusterOptions()
    here: HereView | None = None
    """The only directory in which its workspaces work."""
    waits: bool = False
    """Wait for the end of another process with this data directory."""

    def __repr__(self) -> str:
        """Without the token."""
        return f"RunnerOptions(server_url={self.server_url!r}, data_dir={str(self.data_dir)!r})"


class RunnerStatus(Struct, frozen=True, kw_only=True):
    """The status file."""

    process: int
    name: str
    server: str
    connected: bool
    draining: bool = False
    running: int = 0
    error: str = ""


class RunnerBusy(ChatdError):
    code = "runner_busy"


async def run_runner(
    options: RunnerOptions,
    clock: Clock,
    stop: asyncio.Event,
    on_connected: Callable[[str], None],
) -> None:
    """Serve until `stop` is set. Workspaces go on. Raises RunnerBusy, RunnerRefused."""
    data_dir = options.data_dir
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        runner_id = sealed_secrets.load_or_create(data_dir / ID_FILE, lambda: secrets.token_hex(16))
    except OSError as error:
        raise SettingsError(f"--data-dir: {data_dir}: {error.strerror}") from None
    with ExitStack() as held:
        await _take_lock(held, options, stop, clock)
        networks = WorkspaceNetworks(data_dir, clock)
        backends, offers = await _open_backends(options, runner_id, clock, networks)
        name = options.name or socket.gethostname() or "runner"
        calls = BackendCalls(backends, networks)
        config = RunnerConfig(
            server_url=options.server_url,
            token=options.token,
            runner_id=runner_id,
            name=name,
            labels=options.labels,
            backends=tuple(offers),
            capacity=options.capacity,
        )
        client = RunnerClient(config, calls, clock)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(DRAIN_SIGNAL, lambda: setattr(client, "draining", True))
        loop.add_signal_handler(RESUME_SIGNAL, lambda: setattr(client, "draining", False))
        beside = {
            loop.create_task(_report_status(client, config, options, calls, on_connected)),
            loop.create_task(networks.run()),
        }
        try:
            await client.run(stop)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            with suppress(OSError):
                (data_dir / STATUS_FILE).unlink(missing_ok=True)


@contextmanager
def _locked(data_dir: Path) -> Generator[None]:
    """Hold the lock of the data directory. Raises RunnerBusy."""
    with (data_dir / LOCK_FILE).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunnerBusy(
                f"A runner with the data directory {data_dir} runs already. --data-dir chooses"
                " another one."
            ) from None
        yield


async def _take_lock(
    held: ExitStack, options: RunnerOptions, stop: asyncio.Event, clock: Clock
) -> None:
    """Raises RunnerBusy."""
    while True:
        try:
            held.enter_context(_locked(options.data_dir))
            return
        except RunnerBusy:
            if not options.waits or stop.is_set():
                raise
        await clock.sleep(LOCK_POLL_S, "runner lock")


async def _open_backends(
    options: RunnerOptions, runner_id: str, clock: Clock, networks: WorkspaceNetworks
) -> tuple[Mapping[str, RunnerBackend], Sequence[BackendOffer]]:
    """Raises ChatdError if a backend cannot be used on this machine."""
    backends: dict[str, RunnerBackend] = {}
    offers: list[BackendOffer] = []
    for kind in options.backends:
        match kind:
            case "sandbox" | "machine":
                backend, offer = await _open_local(kind, options, runner_id, clock, networks)
            case "container":
                backend, offer = await _open_container(options, runner_id, clock, networks)
            case "kubernetes":
                backend, offer = await _open_kubernetes(options, runner_id, clock)
        backends[kind] = backend
        offers.append(offer)
    return backends, offers


async def _open_local(
    kind: Literal["sandbox", "machine"],
    options: RunnerOptions,
    runner_id: str,
    clock: Clock,
    networks: WorkspaceNetworks,
) -> tuple[LocalBackend, BackendOffer]:
    data_dir, here = options.data_dir, options.here
    if kind == "machine":
        config = machine_config(data_dir, runner_id, here)
    elif here is not None:
        config = here_config(data_dir, runner_id, here)
    else:
        config = LocalConfig(data_dir=data_dir, host_id=runner_id, roots=options.roots)
    backend = LocalBackend(config, agent=agent_zip(), clock=clock, networks=networks)
    report = await backend.prepare()
    if report.level is None:
        raise SettingsError(f"--backend {kind}: {report.text}")
    detail = report.advice
    if kind == "machine":
        detail = f"No isolation: commands can do what {getpass.getuser()} can on this machine."
    return backend, BackendOffer(kind=kind, isolation=report.level, detail=detail)


async def _open_container(
    options: RunnerOptions, runner_id: str, clock: Clock, networks: WorkspaceNetworks
) -> tuple[ContainerBackend, BackendOffer]:
    path = options.engine_socket or find_engine_socket()
    if path is None:
        raise SettingsError(
            "--backend container: no socket of Docker or Podman was found. Start the engine"
            " (systemctl start podman.socket), or name its socket with --engine-socket."
        )
    config = ContainerConfig(
        socket_path=path, data_dir=options.data_dir, host_id=runner_id, roots=options.roots
    )
    backend = ContainerBackend(config, agent=agent_zip(), clock=clock, networks=networks)
    offer = await backend.detect()
    if offer is None:
        raise SettingsError(f"--backend container: the engine at {path} does not answer")
    return backend, offer


async def _open_kubernetes(
    options: RunnerOptions, runner_id: str, clock: Clock
) -> tuple[KubernetesBackend, BackendOffer]:
    cluster = options.cluster
    if not cluster.pod_image:
        raise SettingsError(
            "--backend kubernetes: --pod-image is needed, an image with this version of chatd that"
            " the cluster can pull."
        )
    access = find_access(cluster.kubeconfig, cluster.namespace, os.environ)
    config = KubernetesConfig(
        access=access,
        host_id=runner_id,
        image=cluster.pod_image,
        server_url=options.server_url,
        storage_class=cluster.storage_class,
        sandboxes=cluster.agent_sandbox,
    )
    backend = KubernetesBackend(config, clock=clock)
    offer = await backend.detect()
    if offer is None:
        raise SettingsError(
            f"--backend kubernetes: the cluster at {access.server} does not answer, or this account"
            f" may not list pods in the namespace {access.namespace}"
            + (", or has no Sandbox resource (--agent-sandbox)" if cluster.agent_sandbox else "")
        )
    return backend, offer


async def _report_status(
    client: RunnerClient,
    config: RunnerConfig,
    options: RunnerOptions,
    calls: BackendCalls,
    on_connected: Callable[[str], None],
) -> None:
    was_connected = False
    while True:
        is_connected = client.connected.is_set()
        if is_connected and not was_connected:
            on_connected(config.name)
        was_connected = is_connected
        status = RunnerStatus(
            process=os.getpid(),
            name=config.name,
            server=config.server_url,
            connected=is_connected,
            draining=client.draining,
            running=await calls.running(),
            error="" if is_connected else client.last_error,
        )
        with suppress(OSError):
            text = msgspec.json.encode(status).decode()
            sealed_secrets.replace(options.data_dir / STATUS_FILE, text)
        try:
            async with asyncio.timeout(STATUS_INTERVAL_S):
                await client.connected.wait()
                if was_connected:
                    await asyncio.Event().wait()
        except TimeoutError:
            continue


def read_status(data_dir: Path) -> RunnerStatus | None:
    """None if no runner uses the data directory. One that was killed leaves the file, and another
    process may have its number since; only the lock tells."""
    if not (data_dir / LOCK_FILE).exists():
        return None
    try:
        with _locked(data_dir):
            return None
    except RunnerBusy:
        pass
    try:
        return msgspec.json.decode((data_dir / STATUS_FILE).read_bytes(), type=RunnerStatus)
    except (OSError, msgspec.DecodeError):
        return None


def unit_text(program: str, options: RunnerOptions, token_file: Path, user: str) -> str:
    """A systemd unit that starts the runner at boot."""
    words = [program, "runner", "start", "--server", options.server_url]
    words += ["--token-file", str(token_file), "--data-dir", str(options.data_dir)]
    words += [word for kind in options.backends for word in ("--backend", kind)]
    words += [word for label in options.labels for word in ("--label", label)]
    words += ["--name", options.name] if options.name else []
    words += ["--capacity", str(options.capacity)] if options.capacity else []
    words += [word for root in options.roots for word in ("--allow", str(root.resolve()))]
    if options.engine_socket is not None:
        words += ["--engine-socket", str(options.engine_socket.resolve())]
    cluster = options.cluster
    if cluster.kubeconfig is not None:
        words += ["--kubeconfig", str(cluster.kubeconfig.resolve())]
    words += ["--namespace", cluster.namespace] if cluster.namespace else []
    words += ["--pod-image", cluster.pod_image] if cluster.pod_image else []
    words += ["--storage-class", cluster.storage_class] if cluster.storage_class else []
    words += ["--agent-sandbox"] if cluster.agent_sandbox else []
    command = " ".join(map(_unit_word, words))
    return f"""[Unit]
Description=chatd runner for {options.server_url.replace("%", "%%")}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
User={user}
Restart=always
RestartSec=5
# Workspaces and their commands outlive the runner, also over an upgrade.
KillMode=process

[Install]
WantedBy=multi-user.target
"""


def _unit_word(word: str) -> str:
    """As systemd reads it in ExecStart: specifiers, variables and quotes mean nothing in it."""
    for plain, escaped in (
        ("\\", "\\\\"),
        ('"', '\\"'),
        ("%", "%%"),
        ("$", "$$"),
        ("\n", "\\n"),
    ):
        word = word.replace(plain, escaped)
    return f'"{word}"'
