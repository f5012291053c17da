"""`chatd mcp`: an MCP server on standard input and output, and the user's own MCP servers.

Clients have the bare command in their configuration, so it stays the server.
"""

from typing import Annotated, Final

import typer

from chatd.cli.options import AsJson, DataDir, Profile, TokenFile, Url
from chatd.cli.target_options import ServerFinder, with_target

Slug = Annotated[str, typer.Argument(metavar="SLUG", help="As chatd mcp list shows it")]

mcp: Final = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    app.add_typer(mcp, name="mcp", short_help="Connect your MCP servers; be one yourself.")


@mcp.callback()
def serve_mcp(
    context: typer.Context,
    url: Url = None,
    token_file: TokenFile = None,
    profile: Profile = None,
    data_dir: DataDir = None,
) -> None:
    """Offer the chats of a running server as MCP tools, on standard input and output.

    For clients that start their MCP servers themselves, such as editors and other agents. It
    reconnects while the server restarts. Clients that speak HTTP can use URL/mcp instead. The
    commands below are about the MCP servers that your own chats use.
    """
    from chatd.cli import mcp_stdio, process, target

    if context.invoked_subcommand is not None:
        if any((url, token_file, profile, data_dir)):
            text = f"write the options after {context.invoked_subcommand}"
            raise typer.BadParameter(text)
        return
    with process.report_errors():
        server = target.find_server(url, token_file, profile, data_dir).server
        process.run_to_completion(mcp_stdio.run_bridge(server))


@mcp.command("list")
@with_target
def list_servers(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the MCP servers that your chats can use."""
    from chatd.cli.account import mcp_servers as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_servers(api, as_json=as_json))


@mcp.command()
@with_target
def connect(
    slug: Slug,
    *,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=3600, help="How long to wait")
    ] = 600,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the page")] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Connect your account to an MCP server, in a browser.

    Prints and opens the page of the chatd server where you connect, and waits until it is done.
    """
    from chatd.cli.account import mcp_servers as work
    from chatd.cli.api_session import run_command

    code = run_command(
        server,
        lambda api: work.connect(
            api, slug, timeout_s=timeout, may_open=not no_browser, as_json=as_json
        ),
    )
    raise typer.Exit(code)


@mcp.command()
@with_target
def disconnect(slug: Slug, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """End your connection to an MCP server.

    Its tokens are deleted here, and revoked there if that is possible.
    """
    from chatd.cli.account import mcp_servers as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.disconnect(api, slug, as_json=as_json))
