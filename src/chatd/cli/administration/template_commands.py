"""`chatd admin templates`: options and help texts. The work is imported when it runs."""

from pathlib import Path
from typing import Annotated, Final

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

TemplateName = Annotated[str, typer.Argument(metavar="NAME")]
DefinitionFile = Annotated[
    Path,
    typer.Option(
        "--file", "-f", metavar="FILE", help="TOML with [[templates]] tables; - is standard input"
    ),
]

templates: Final = typer.Typer(
    help="Create, change, version and delete templates, over the API of a server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@templates.command("list")
@with_target
def list_templates(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List all templates, also the presets of chatd.toml and the built-in ones."""
    from chatd.cli.administration import template_files as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_templates(api, as_json=as_json))


@templates.command("show")
@with_target
def show_template(name: TemplateName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Print a template as a file that create and edit take."""
    from chatd.cli.administration import template_files as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.show_template(api, name, as_json=as_json))


@templates.command("create")
@with_target
def create_templates(*, file: DefinitionFile, server: ServerFinder) -> None:
    """Create the templates of a file."""
    from chatd.cli.administration import template_files as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.create_templates(api, file))


@templates.command("edit")
@with_target
def edit_templates(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which one, if the file renames it")
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="TOML with [[templates]] tables; - is stdin"
        ),
    ] = None,
    desktop: Annotated[
        bool | None,
        typer.Option("--desktop/--no-desktop", help="With a desktop", show_default=False),
    ] = None,
    browser: Annotated[
        bool | None,
        typer.Option("--browser/--no-browser", help="With a browser", show_default=False),
    ] = None,
    no_activate: Annotated[
        bool, typer.Option("--no-activate", help="Store a new version without making it active")
    ] = False,
    server: ServerFinder,
) -> None:
    """Change templates to what a file says. What the file leaves out gets its default.
    Without a file only the desktop and the browser of a template change.

    Another spec, readme or other parameters are a new version, which new workspaces get.
    """
    from chatd.cli.administration import template_files as work
    from chatd.cli.api_session import run_command

    given = {"desktop": desktop, "browser": browser}
    parts = {part: wanted for part, wanted in given.items() if wanted is not None}
    run_command(
        server,
        lambda api: work.edit_templates(api, name, file, parts, activate=not no_activate),
    )


@templates.command("duplicate")
@with_target
def duplicate_template(
    name: TemplateName,
    new_name: Annotated[str, typer.Argument(metavar="NEW-NAME")],
    *,
    server: ServerFinder,
) -> None:
    """Make a template from another one, such as a preset, which cannot be changed itself."""
    from chatd.cli.administration import template_files as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.duplicate_template(api, name, new_name))


@templates.command("versions")
@with_target
def list_versions(name: TemplateName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the versions of a template, newest first."""
    from chatd.cli.administration import template_files as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_versions(api, name, as_json=as_json))


@templates.command("activate")
@with_target
def activate_version(
    name: TemplateName,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1)],
    *,
    server: ServerFinder,
) -> None:
    """Make a version the active one, which new workspaces get."""
    from chatd.cli.administration import template_files as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.activate_version(api, name, version))


@templates.command("delete")
@with_target
def delete_template(
    name: TemplateName,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    server: ServerFinder,
) -> None:
    """Delete a template. Its workspaces go on."""
    from chatd.cli.administration import template_files as work
    from chatd.cli.api_session import confirm, report_errors, run_command

    with report_errors():
        confirm(f"Delete the template {name}?", yes=yes)
    run_command(server, lambda api: work.delete_template(api, name))
