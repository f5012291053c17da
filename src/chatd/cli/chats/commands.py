"""`chatd chats`: the options and help texts of its commands. The work is imported when it runs."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from chatd.cli.options import AsJson
from chatd.cli.run.commands import EFFORT, FILE, MODE, MODEL
from chatd.cli.target_options import ServerFinder, with_target

ChatName = Annotated[
    str, typer.Argument(metavar="ID", help="The chat's id; last: the one that changed last")
]
Count = Annotated[
    int,
    typer.Option("-n", "--count", metavar="NUMBER", min=0, max=10_000, help="How many messages"),
]
chats: Final = typer.Typer(
    help="List, read, continue, answer and share chats.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.add_typer(chats, name="chats")


@chats.command("list")
@with_target
def list_chats(
    search: Annotated[
        str | None,
        typer.Argument(metavar="WORDS", help='Words to find, or title:word, "a phrase" ...'),
    ] = None,
    *,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="Only waiting, running, error, requires_action ..."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only chats with this label")
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Those of the archive")] = False,
    shared: Annotated[bool, typer.Option("--shared", help="Those that others share")] = False,
    count: Annotated[
        int, typer.Option("-n", "--count", metavar="NUMBER", min=1, max=10_000, help="How many")
    ] = 20,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """List your chats, pinned ones first, then the newest."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import work

    wanted = work.ListFilter(
        search=search,
        status=status,
        labels=tuple(label or ()),
        archived=archived,
        shared=shared,
        limit=count,
    )
    run_command(server, lambda api: work.list_chats(api, wanted, as_json=as_json))


@chats.command()
@with_target
def show(
    chat: ChatName, *, count: Count = 50, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Show a chat with its newest messages."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import work

    run_command(server, lambda api: work.show_chat(api, chat, count=count, as_json=as_json))


@chats.command()
@with_target
def send(
    chat: ChatName,
    text: Annotated[str, typer.Argument(metavar="TEXT")] = "",
    *,
    file: Annotated[list[Path] | None, FILE] = None,
    busy: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="If the chat is busy: queue, steer, interrupt, rollback or reject",
        ),
    ] = "queue",
    model: Annotated[str | None, MODEL] = None,
    effort: Annotated[str | None, EFFORT] = None,
    mode: Annotated[Literal["plan", "off"] | None, MODE] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Send a message and do not wait for the answer. Standard input is added to the text."""
    from chatd.cli.api_session import report_errors, run_command
    from chatd.cli.chats import send as work
    from chatd.cli.run.prompt import read_prompt
    from chatd.cli.run.work import read_effort

    with report_errors():
        message = work.NewMessage(
            prompt=read_prompt(text, has_files=bool(file)),
            files=tuple(file or ()),
            busy=work.read_busy(busy),
            model=model,
            effort=read_effort(effort),
            mode=mode,
        )
    run_command(server, lambda api: work.send(api, chat, message, as_json=as_json))


@chats.command()
@with_target
def tail(
    chat: ChatName,
    *,
    count: Count = 10,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when the chat waits, as chatd run does")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events as JSON lines (stream-json)")
    ] = False,
    server: ServerFinder,
) -> None:
    """Print the newest messages of a chat, and those that follow."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import tail as work

    code = run_command(
        server,
        lambda api: work.tail(api, chat, count=count, as_json=as_json, until_idle=until_idle),
    )
    raise typer.Exit(code)


@chats.command()
@with_target
def interrupt(
    chat: ChatName,
    *,
    hold: Annotated[
        bool, typer.Option("--hold", help="Hold the queue, too, until a message is sent")
    ] = False,
    subagents: Annotated[
        Literal["stop", "continue"] | None, typer.Option(help="What its subagents do")
    ] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Stop the running answer; what was said is kept."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import work

    run_command(
        server,
        lambda api: work.interrupt(api, chat, hold=hold, subagents=subagents, as_json=as_json),
    )


@chats.command()
@with_target
def archive(
    chat: ChatName,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Take it out of the archive")] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Archive a chat with its subagents."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import work

    run_command(server, lambda api: work.archive(api, chat, undo=undo, as_json=as_json))


@chats.command()
@with_target
def fork(
    chat: ChatName,
    *,
    at: Annotated[
        int | None, typer.Option("--at", metavar="MESSAGE", help="Copy up to this message [all]")
    ] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Copy a chat into a new one, and print its id."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import work

    run_command(server, lambda api: work.fork(api, chat, message_id=at, as_json=as_json))


@chats.command()
@with_target
def export(
    chat: ChatName,
    *,
    form: Annotated[
        Literal["markdown", "jsonl"],
        typer.Option("--format", help="For reading, or for an import"),
    ] = "markdown",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write it to this file [else standard output]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl")] = False,
    server: ServerFinder,
) -> None:
    """Export a chat with its subagents."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import work

    form = "jsonl" if as_json else form
    run_command(server, lambda api: work.export(api, chat, form=form, target=output))


@chats.command()
@with_target
def share(
    chat: ChatName,
    *,
    user: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A user; may be repeated")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A group; may be repeated")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Stop sharing with them")] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Let users and groups read a chat, and list who does."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import work

    run_command(
        server,
        lambda api: work.share(
            api, chat, users=user or (), groups=group or (), remove=remove, as_json=as_json
        ),
    )


@chats.command()
@with_target
def rm(
    chat: Annotated[list[str], typer.Argument(metavar="ID...", help="The chats' ids")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Delete chats with their subagents. This cannot be undone."""
    from chatd.cli.api_session import confirm, report_errors, run_command
    from chatd.cli.chats import work

    with report_errors():
        confirm(f"Delete {len(chat)} chat{'s' if len(chat) > 1 else ''} for ever?", yes=yes)
    run_command(server, lambda api: work.remove(api, chat, as_json=as_json))
