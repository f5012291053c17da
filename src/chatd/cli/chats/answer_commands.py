"""`chatd chats approve`, `deny` and `answer`: options and help texts."""

from typing import Annotated

import typer

from chatd.cli.chats.commands import ChatName, chats
from chatd.cli.options import AsJson
from chatd.cli.target_options import ServerFinder, with_target

Call = Annotated[
    str | None,
    typer.Option("--call", metavar="ID", help="Which call or plan [else shows it and asks]"),
]
Every = Annotated[bool, typer.Option("--all", help="All calls that wait, unseen")]


def register(app: typer.Typer) -> None:  # noqa: ARG001
    """Below `chatd chats`."""
    for command in (approve, deny, answer):
        chats.command()(command)


@with_target
def approve(
    chat: ChatName,
    *,
    call: Call = None,
    every: Every = False,
    always: Annotated[
        bool, typer.Option("--always", help="Do not ask for such calls again in this chat")
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Let a waiting call run, or a plan be implemented."""
    from chatd.cli.chats import answers
    from chatd.cli.chats.waiting import Choice

    choice = Choice(call=call, every=every)
    answers.approve(server, chat, choice, always=always, as_json=as_json)


@with_target
def deny(
    chat: ChatName,
    *,
    call: Call = None,
    every: Every = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="What the model is told")] = "",
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Refuse a waiting call or questions, or drop a plan."""
    from chatd.cli.chats import answers
    from chatd.cli.chats.waiting import Choice

    choice = Choice(call=call, every=every)
    answers.deny(server, chat, choice, reason=reason, as_json=as_json)


@with_target
def answer(
    chat: ChatName,
    text: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT...",
            help="One for each question: an option, its number, or your own words",
        ),
    ],
    *,
    call: Call = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Answer questions, or say what to change in a plan."""
    from chatd.cli.chats import answers
    from chatd.cli.chats.waiting import Choice

    answers.answer(server, chat, text, Choice(call=call), as_json=as_json)
