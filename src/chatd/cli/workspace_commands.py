"""`chatd workspaces`: options and help texts. The work is imported when it runs."""

from typing import Annotated, Final

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

WorkspaceName = Annotated[
    str, typer.Argument(metavar="WORKSPACE", help="The workspace, by name or id")
]
workspaces: Final = typer.Typer(
    help="List workspaces; their files, ports and network.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.add_typer(workspaces, name="workspaces")


@workspaces.command("list")
@with_target
def list_workspaces(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List your workspaces, the newest first."""
    from chatd.cli import workspace_copies
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: workspace_copies.list_workspaces(api, as_json=as_json))


@workspaces.command()
@with_target
def network(workspace: WorkspaceName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Show what a workspace may reach, which hosts have a credential, and what was refused."""
    from chatd.cli.administration import host_credentials
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: host_credentials.show_network(api, workspace, as_json=as_json))


@workspaces.command()
@with_target
def pull(
    workspace: WorkspaceName,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="The directory there [else its home directory]")
    ] = "",
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Where to unpack it [else a directory of its name]; -: a tar archive on standard"
            " output",
        ),
    ] = None,
    gzip: Annotated[
        bool, typer.Option("--gzip", "-z", help="Compress the archive on its way")
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Copy a directory of a running workspace to this machine.

    Files that are there are replaced, others stay. Links that lead out of the directory are left
    out.
    """
    from chatd.cli import workspace_copies
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: workspace_copies.pull(api, workspace, path, to=to, gzip=gzip, as_json=as_json),
    )


@workspaces.command()
@with_target
def push(
    workspace: WorkspaceName,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A directory, a tar archive, also with gzip, or - for one on standard input",
        ),
    ],
    *,
    to: Annotated[
        str,
        typer.Option("--to", metavar="PATH", help="The directory there [else the home directory]"),
    ] = "",
    gzip: Annotated[
        bool, typer.Option("--gzip", "-z", help="Compress a directory on its way")
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Copy the content of a directory into a running workspace.

    Files that are there are replaced, others stay.
    """
    from chatd.cli import workspace_copies
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: workspace_copies.push(
            api, workspace, source, to=to, gzip=gzip, as_json=as_json
        ),
    )


@workspaces.command()
@with_target
def ports(workspace: WorkspaceName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the ports on which programs of a running workspace listen."""
    from chatd.cli import workspace_copies
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: workspace_copies.list_ports(api, workspace, as_json=as_json))


@workspaces.command()
@with_target
def preview(
    workspace: WorkspaceName,
    port: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65_535, help="The port")],
    *,
    path: Annotated[
        str, typer.Option("--path", metavar="PATH", help="Where the preview begins")
    ] = "/",
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Print a link that shows a port of a workspace in your browser.

    The link works once, within two minutes. The browser that opened it sees the preview for at most
    12 hours.
    """
    from chatd.cli import workspace_copies
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: workspace_copies.preview(api, workspace, port, path=path, as_json=as_json),
    )
