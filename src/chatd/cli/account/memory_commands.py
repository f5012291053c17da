"""`chatd memory`: options and help texts. The work is imported when it runs."""

from typing import Annotated, Final, Literal

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

NoteName = Annotated[str, typer.Argument(metavar="NOTE", help="Its number in the list, or its id")]
ProposalName = Annotated[
    str, typer.Argument(metavar="NOTE", help="Its number in list --proposed, or its id")
]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="The note: plain text")]
OfProject = Annotated[
    str | None,
    typer.Option("--project", metavar="PROJECT", help="Of this project, for all its members"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]

memory: Final = typer.Typer(
    help="Short notes that the models of your chats are told.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@memory.command("list")
@with_target
def list_notes(
    *,
    proposed: Annotated[
        bool, typer.Option("--proposed", help="What models have proposed and you have not decided")
    ] = False,
    project: OfProject = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """List your notes in their order."""
    from chatd.cli.account import memory as work
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: work.list_notes(api, proposed=proposed, project=project, as_json=as_json),
    )


@memory.command("add")
@with_target
def add_note(
    text: Text, *, project: OfProject = None, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Keep a note. Models are told it from their next call on."""
    from chatd.cli.account import memory as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.add_note(api, text, project=project, as_json=as_json))


@memory.command("edit")
@with_target
def edit_note(
    note: NoteName,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The new text")] = None,
    *,
    place: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="Move it to this place")
    ] = None,
    project: OfProject = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Change the text of a note, or its place."""
    from chatd.cli.account import memory as work
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: work.edit_note(
            api, note, text=text, place=place, project=project, as_json=as_json
        ),
    )


@memory.command("off")
@with_target
def switch_off(
    note: NoteName, *, project: OfProject = None, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Keep a note and do not tell it to models."""
    from chatd.cli.account import memory as work
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: work.switch(api, note, enabled=False, project=project, as_json=as_json),
    )


@memory.command("on")
@with_target
def switch_on(
    note: NoteName, *, project: OfProject = None, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Tell a note to models again."""
    from chatd.cli.account import memory as work
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: work.switch(api, note, enabled=True, project=project, as_json=as_json),
    )


@memory.command("remove")
@with_target
def remove_note(
    note: NoteName,
    *,
    project: OfProject = None,
    yes: Yes = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Delete a note."""
    from chatd.cli.account import memory as work
    from chatd.cli.api_session import confirm, report_errors, run_command

    with report_errors():
        confirm(f"Delete note {note}?", yes=yes)
    run_command(server, lambda api: work.remove_note(api, note, project=project, as_json=as_json))


@memory.command("accept")
@with_target
def accept_note(
    note: ProposalName,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="The text to keep [as proposed]")
    ] = None,
    *,
    project: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Keep it for this project [for all your chats]"),
    ] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Keep a note that a model has proposed."""
    from chatd.cli.account import memory as work
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: work.accept_note(api, note, text=text, project=project, as_json=as_json),
    )


@memory.command("dismiss")
@with_target
def dismiss_note(note: ProposalName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Do not keep a note that a model has proposed."""
    from chatd.cli.account import memory as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.dismiss_note(api, note, as_json=as_json))


@memory.command("use")
@with_target
def choose(
    choice: Annotated[
        Literal["off", "notes", "proposals"],
        typer.Argument(help="off: tell no notes; notes: tell them; proposals: models also propose"),
    ],
    *,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Choose whether models are told your notes, and whether they may propose some."""
    from chatd.cli.account import memory as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.choose(api, choice, as_json=as_json))
