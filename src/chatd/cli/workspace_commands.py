"""`chatd workspaces`: options and help texts. The work is imported when it runs."""

from typing import Annotated, Final

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

WorkspaceName = Annotated[
    str, typer.Argument(metavar="WORKSPACE", help="The workspace, by name or id")
]
workspaces: Final = typer.Typer(
    help="List workspaces, and copy their files.", no_args_is_help=True, rich_markup_mode=None
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
