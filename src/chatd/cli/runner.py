"""`chatd runner`: offer workspaces of this machine to a server."""

import getpass
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, get_args

import typer
from msgspec.structs import replace

from chatd.settings.config_file import default_data_dir
from chatd.settings.schema import SettingsError

if TYPE_CHECKING:
    from chatd.app.runner_process import ClusterOptions, RunnerOptions

runner = typer.Typer(
    help="Offer workspaces of this machine to a server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
UNIT_FILE: Final = Path("/etc/systemd/system/chatd-runner.service")

Server = Annotated[
    str, typer.Option("--server", metavar="URL", help="Address of the server [CHATD_URL]")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the runner's token; else CHATD_RUNNER_TOKEN in the environment",
    ),
]
RunnerDataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Workspaces and state [~/.local/share/chatd-runner; as root /var/lib/chatd-runner]",
    ),
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Its name on the server [host name]")
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="LABEL", help="What templates may ask for; repeat for more"),
]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        metavar="KIND",
        help="sandbox, container, kubernetes, machine (no isolation: commands run as you); repeat"
        " for more [sandbox]",
    ),
]
Capacity = Annotated[
    int,
    typer.Option("--capacity", min=0, help="Workspaces that may run at once; 0 for no limit"),
]
EngineSocket = Annotated[
    Path | None,
    typer.Option(
        "--engine-socket", metavar="FILE", help="Socket of Docker or Podman [the usual ones]"
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="Access to a cluster [the runner's own pod's]"
    ),
]
Namespace = Annotated[
    str, typer.Option("--namespace", metavar="NAME", help="Where pods are made [of the access]")
]
PodImage = Annotated[
    str,
    typer.Option(
        "--pod-image",
        metavar="IMAGE",
        help="Image of chatd that pods use in addition to the template's [CHATD_POD_IMAGE]",
    ),
]
StorageClass = Annotated[
    str, typer.Option("--storage-class", metavar="NAME", help="Of claims [the cluster's default]")
]
AgentSandbox = Annotated[
    bool,
    typer.Option(
        "--agent-sandbox",
        help="Make workspaces as Sandboxes of kubernetes-sigs/agent-sandbox, which the cluster has",
    ),
]
Roots = Annotated[
    list[Path] | None,
    typer.Option("--allow", metavar="DIR", help="Directory that templates may copy or mount"),
]


@runner.command()
def start(
    server: Server = "",
    token_file: TokenFile = None,
    data_dir: RunnerDataDir = None,
    name: Name = None,
    label: Labels = None,
    backend: Backends = None,
    capacity: Capacity = 0,
    allow: Roots = None,
    engine_socket: EngineSocket = None,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "",
    pod_image: PodImage = "",
    storage_class: StorageClass = "",
    *,
    agent_sandbox: AgentSandbox = False,
) -> None:
    """Connect to the server and run its workspaces here until stopped. Workspaces go on when it
    stops, and when the connection is lost."""
    from chatd.app.runner_process import run_runner
    from chatd.cli import process
    from chatd.cli.admin import print_line
    from chatd.clock import SystemClock
    from chatd.settings.schema import LogSettings

    with process.report_errors():
        options = _options(server, token_file, data_dir, name, label, backend, capacity, allow)
        cluster = _cluster(kubeconfig, namespace, pod_image, storage_class)
        cluster = replace(cluster, agent_sandbox=agent_sandbox)
        options = replace(options, engine_socket=engine_socket, cluster=cluster)
        process.configure_logging(LogSettings())

        async def serve(stop: process.StopSignal) -> None:
            stop.started()
            print_line(f"chatd runner, process {os.getpid()}, data in {options.data_dir}")
            await run_runner(
                options,
                SystemClock(),
                stop.requested,
                lambda known: print_line(f"connected to {options.server_url} as {known}"),
            )
            print_line("stopped; workspaces go on")

        process.run_until_signal(serve)


@runner.command(hidden=True)
def here(
    server: Annotated[str, typer.Option("--server")],
    directory: Annotated[Path, typer.Option("--directory")],
    data_dir: Annotated[Path, typer.Option("--data-dir")],
    hide: Annotated[list[Path] | None, typer.Option("--hide")] = None,
    *,
    network: Annotated[bool, typer.Option("--network")] = False,
    sandbox: Annotated[bool, typer.Option("--sandbox/--no-sandbox")] = True,
) -> None:
    """The runner of `chatd chat --here` and `chatd run --here`, which start it: it reads its token
    from the first line of its input, and ends with its input."""
    import asyncio

    from chatd.app.runner_process import RunnerOptions, run_runner
    from chatd.cli import process
    from chatd.clock import SystemClock
    from chatd.settings.schema import LogSettings
    from chatd.workspaces.local.here import here_view

    with process.report_errors():
        process.configure_logging(LogSettings())
        options = RunnerOptions(
            server_url=server,
            token=sys.stdin.readline().strip(),
            data_dir=data_dir,
            name=f"{socket.gethostname()}: {directory.name}"[:64],
            backends=("sandbox",) if sandbox else ("machine",),
            here=here_view(directory, os.environ, hidden=hide or (), network=network),
            waits=True,
        )

        async def serve(stop: process.StopSignal) -> None:
            stop.started()
            loop, given = asyncio.get_running_loop(), sys.stdin.fileno()

            def end() -> None:
                loop.remove_reader(given)
                stop.requested.set()

            loop.add_reader(given, end)
            await run_runner(options, SystemClock(), stop.requested, lambda _: None)

        process.run_until_signal(serve)


@runner.command()
def install(
    server: Server = "",
    token_file: TokenFile = None,
    data_dir: RunnerDataDir = None,
    name: Name = None,
    label: Labels = None,
    backend: Backends = None,
    capacity: Capacity = 0,
    allow: Roots = None,
    engine_socket: EngineSocket = None,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "",
    pod_image: PodImage = "",
    storage_class: StorageClass = "",
    *,
    agent_sandbox: AgentSandbox = False,
    user: Annotated[
        str | None, typer.Option(metavar="USER", help="Account that runs it [this one]")
    ] = None,
    to_stdout: Annotated[
        bool, typer.Option("--print", help="Print the unit instead of writing it")
    ] = False,
) -> None:
    """Write a systemd unit that starts the runner with the machine."""
    from chatd.app.runner_process import unit_text
    from chatd.cli import process
    from chatd.cli.admin import print_line

    with process.report_errors():
        options = _options(server, token_file, data_dir, name, label, backend, capacity, allow)
        cluster = _cluster(kubeconfig, namespace, pod_image, storage_class)
        cluster = replace(cluster, agent_sandbox=agent_sandbox)
        options = replace(options, engine_socket=engine_socket, cluster=cluster)
        if token_file is None:
            raise SettingsError("--token-file is needed: the unit names the file, not the token")
        program = shutil.which("chatd") or str(Path(sys.argv[0]).resolve())
        text = unit_text(program, options, token_file.resolve(), user or getpass.getuser())
        if to_stdout:
            print(text, end="")
            return
        try:
            UNIT_FILE.write_text(text)
        except OSError as error:
            raise SettingsError(
                f"cannot write {UNIT_FILE}: {error.strerror}. Run it as root, or with --print."
            ) from None
        print_line(f"wrote {UNIT_FILE}; start it with: systemctl enable --now chatd-runner")


@runner.command()
def status(data_dir: RunnerDataDir = None) -> None:
    """Say what the runner of this machine does. Exits with 1 if none runs."""
    from chatd.app.runner_process import read_status
    from chatd.cli import process
    from chatd.cli.admin import print_line

    with process.report_errors():
        where = _data_dir(data_dir)
        found = read_status(where)
        if found is None:
            print_line(f"no runner runs with the data directory {where}")
            raise typer.Exit(1)
        state = "connected" if found.connected else f"not connected: {found.error or 'trying'}"
        print_line(f"{found.name}, process {found.process}")
        print_line(f"  server      {found.server}, {state}")
        print_line(f"  workspaces  {found.running} running")
        if found.draining:
            print_line("  draining    takes no new workspaces; chatd runner drain --undo ends that")


@runner.command()
def drain(
    data_dir: RunnerDataDir = None,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Take new workspaces again")] = False,
) -> None:
    """Let the runner of this machine take no new workspaces. Those that it has go on."""
    from chatd.app.runner_process import DRAIN_SIGNAL, RESUME_SIGNAL, read_status
    from chatd.cli import process
    from chatd.cli.admin import print_line

    with process.report_errors():
        where = _data_dir(data_dir)
        found = read_status(where)
        if found is None:
            raise SettingsError(f"no runner runs with the data directory {where}")
        os.kill(found.process, RESUME_SIGNAL if undo else DRAIN_SIGNAL)
        print_line("takes new workspaces again" if undo else "takes no new workspaces from now on")


@runner.command(name="pod-kit", hidden=True)
def pod_kit(
    target: Path, kits: Annotated[Path | None, typer.Option("--kits", metavar="DIR")] = None
) -> None:
    """In the pod of a workspace: put the kit into a directory."""
    from chatd.cli import process
    from chatd.workspaces.kubernetes.pod_link import copy_kit

    with process.report_errors():
        copy_kit(target, kits)


@runner.command(name="pod-link", hidden=True)
def pod_link(
    server: Annotated[str, typer.Option("--server")],
    token_file: Annotated[Path, typer.Option("--token-file")],
    socket_path: Annotated[Path, typer.Option("--socket")],
    ready_file: Annotated[Path, typer.Option("--ready-file")],
) -> None:
    """In the pod of a workspace: dial in to the server for its agent."""
    from chatd.cli import process
    from chatd.clock import SystemClock
    from chatd.settings.schema import LogSettings
    from chatd.workspaces.kubernetes.pod_link import PodLinkOptions, run_pod_link

    with process.report_errors():
        process.configure_logging(LogSettings())
        options = PodLinkOptions(
            server_url=server, token=_token(token_file), socket=socket_path, ready_file=ready_file
        )

        async def serve(stop: process.StopSignal) -> None:
            stop.started()
            await run_pod_link(options, SystemClock(), stop.requested)

        process.run_until_signal(serve)


def _cluster(
    kubeconfig: Path | None, namespace: str, pod_image: str, storage_class: str
) -> "ClusterOptions":
    from chatd.app.runner_process import ClusterOptions

    return ClusterOptions(
        kubeconfig=kubeconfig,
        namespace=namespace,
        pod_image=pod_image or os.environ.get("CHATD_POD_IMAGE", ""),
        storage_class=storage_class,
    )


def _data_dir(given: Path | None) -> Path:
    if given is not None:
        return Path.cwd() / given
    usual = default_data_dir(os.environ, uid=os.geteuid())
    if usual is None:
        raise SettingsError("--data-dir is needed: this account has no home directory")
    return usual.with_name("chatd-runner")


def _options(
    server: str,
    token_file: Path | None,
    data_dir: Path | None,
    name: str | None,
    labels: list[str] | None,
    backends: list[str] | None,
    capacity: int,
    roots: list[Path] | None,
) -> "RunnerOptions":
    """Raises SettingsError."""
    from chatd.app.runner_process import RunnerOptions
    from chatd.client.exchange import clean_url
    from chatd.domain.errors import InvalidInput
    from chatd.domain.workspace.runners import BackendKind

    address = server or os.environ.get("CHATD_URL", "")
    if not address:
        raise SettingsError("--server is needed: the address of the server")
    try:
        url = clean_url(address)
    except InvalidInput as error:
        raise SettingsError(f"--server: {error.message}") from None
    kinds = tuple(backends or ["sandbox"])
    for kind in kinds:
        if kind not in get_args(BackendKind):
            known = ", ".join(get_args(BackendKind))
            raise SettingsError(f"--backend: there is no {kind!r}; there are {known}")
    return RunnerOptions(
        server_url=url,
        token=_token(token_file),
        data_dir=_data_dir(data_dir),
        name=name,
        labels=tuple(labels or ()),
        backends=kinds,  # pyright: ignore[reportArgumentType]
        capacity=capacity,
        roots=tuple(roots or ()),
    )


def _token(file: Path | None) -> str:
    try:
        text = os.environ.get("CHATD_RUNNER_TOKEN", "") if file is None else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--token-file: cannot read {file}: {error}") from None
    if not text.strip():
        raise SettingsError(
            "--token-file is needed: an administrator makes a token with"
            " chatd admin runners tokens create, or on the page under Settings, Runners"
        )
    return text.strip()
