"""`chatd projects`: options and help texts. The work is imported when it runs."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", help="Its name or id")]
UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name")]
Instructions = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What models of its chats are told; -: standard input"),
]
Model = Annotated[
    str | None, typer.Option(metavar="NAME", help="The model of new chats; none: the default")
]
Template = Annotated[
    str | None, typer.Option(metavar="NAME", help="The template of workspaces; none: any")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]

projects: Final = typer.Typer(
    help="Chats in common, with instructions, files and members.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@projects.command("list")
@with_target
def list_projects(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the projects to which you belong."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_projects(api, as_json=as_json))


@projects.command("show")
@with_target
def show_project(project: ProjectName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Show a project with its members, files and instructions."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.show_project(api, project, as_json=as_json))


@projects.command("create")
@with_target
def create_project(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    instructions: Instructions = None,
    model: Model = None,
    template: Template = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Create a project. You are its owner."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import run_command

    text = _read(instructions)
    run_command(
        server,
        lambda api: work.create_project(
            api, name, instructions=text, model=model, template=template, as_json=as_json
        ),
    )


@projects.command("set")
@with_target
def change_project(
    project: ProjectName,
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Its new name")] = None,
    instructions: Instructions = None,
    model: Model = None,
    template: Template = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Change the name, the instructions or the defaults of a project."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import run_command

    text = _read(instructions)
    run_command(
        server,
        lambda api: work.change_project(
            api,
            project,
            new_name=name,
            instructions=text,
            model=model,
            template=template,
            as_json=as_json,
        ),
    )


@projects.command("rm")
@with_target
def delete_project(
    project: ProjectName, *, yes: Yes = False, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Delete a project. Its chats stay with their owners."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import confirm, report_errors, run_command

    with report_errors():
        confirm(f"Delete the project {project}? Its chats stay, without a project.", yes=yes)
    run_command(server, lambda api: work.delete_project(api, project, as_json=as_json))


@projects.command("member")
@with_target
def set_member(
    project: ProjectName,
    user: UserName,
    *,
    role: Annotated[
        Literal["reader", "writer"],
        typer.Option(help="A reader reads all chats; a writer also adds own ones"),
    ] = "reader",
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Let a user belong to a project: the user reads all of its chats."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.set_member(api, project, user, role, as_json=as_json))


@projects.command("remove-member")
@with_target
def remove_member(
    project: ProjectName, user: UserName, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Remove a member, or leave a project. The member's chats and files leave it too."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.remove_member(api, project, user, as_json=as_json))


@projects.command("add")
@with_target
def add_files(
    project: ProjectName,
    file: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    *,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Upload files and add them to a project."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.add_files(api, project, file, as_json=as_json))


@projects.command("remove-file")
@with_target
def remove_file(
    project: ProjectName,
    file: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Remove a file from a project; the file stays in your files."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.remove_file(api, project, file, as_json=as_json))


@projects.command("move")
@with_target
def move_chat(
    chat: Annotated[str, typer.Argument(metavar="CHAT", help="The chat's id")],
    project: Annotated[
        str, typer.Argument(metavar="PROJECT", help="Its name or id; none: out of its project")
    ],
    *,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Move a chat into a project. The project's members read it then."""
    from chatd.cli.account import projects as work
    from chatd.cli.api_session import report_errors, run_command
    from chatd.cli.chats.run_report import read_chat_id

    with report_errors():
        chat_id = read_chat_id(chat)
    run_command(server, lambda api: work.move_chat(api, chat_id, project, as_json=as_json))


def _read(path: Path | None) -> str | None:
    from chatd.cli.account.own_resources import read_text_file
    from chatd.cli.api_session import report_errors

    if path is None:
        return None
    with report_errors():
        return read_text_file(path)
