"""`chatd chat`, `run` and `chats`: options and help texts. The work is imported when it runs."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn, TextIO
from uuid import UUID

import typer

from chatd.cli.options import (
    AsJson,
    DataDir,
    Here,
    HereNetwork,
    NoSandbox,
    Profile,
    ServerFinder,
    TokenFile,
    Url,
    Yes,
    return_flags,
    target_flags,
    with_target,
)


def register(app: typer.Typer) -> None:
    app.command()(chat)
    app.command()(run)
    app.command()(acp)
    app.add_typer(chats, name="chats")


# `chatd chat`, and `chatd` alone on a terminal


def chat(
    chat_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Open this chat [else a new one]", show_default=False),
    ] = None,
    url: Url = None,
    token_file: TokenFile = None,
    profile: Profile = None,
    data_dir: DataDir = None,
    *,
    theme: Annotated[
        Literal["auto", "dark", "light", "contrast", "contrast-light", "warm", "paper"],
        typer.Option(
            "--theme",
            envvar="CHATD_THEME",
            help="Colours; auto: as chosen by /theme, else by the terminal's background",
        ),
    ] = "auto",
    bell: Annotated[
        bool,
        typer.Option(
            "--bell/--no-bell",
            envvar="CHATD_BELL",
            help="Ring when a chat that you do not look at needs you or ends",
        ),
    ] = True,
    continue_last: Annotated[
        bool, typer.Option("--continue", "-c", help="With --here: the last chat of this directory")
    ] = False,
    inline: Annotated[
        bool,
        typer.Option("--inline", help="One chat, line by line: the screen and scrollback stay"),
    ] = False,
    here: Here = False,
    network: HereNetwork = None,
    no_sandbox: NoSandbox = False,
    yes: Yes = False,
) -> None:
    """Open the terminal UI: chats, live answers, approvals.

    Chats run on the server. Ctrl-D leaves, and they go on; F1 shows all keys. With --here new
    chats work in the current directory.
    """
    if inline:
        _chat_inline(chat_id, url, token_file, profile, data_dir, here=here)
    from chatd.cli import api_session, process, target, terminal_ui
    from chatd.cli.chats import here_commands

    terminal_ui.require_installed()
    if not has_screen(sys.stdin, sys.stdout, os.environ):
        terminal_ui.refuse_no_screen()
    with api_session.report_errors():
        flags = {"url": url, "token_file": token_file, "profile": profile, "data_dir": data_dir}
        options = terminal_ui.TerminalOptions(
            chat_id=chat_id,
            theme=theme,
            rings=bell,
            return_flags=return_flags(flags) + (" --here" if here else ""),
        )
        choice = here_commands.read_choice(
            here=here, network=network, no_sandbox=no_sandbox, yes=yes, continues=continue_last
        )
        if choice is None:
            found = target.find_server(url, token_file, profile, data_dir)
            work = terminal_ui.run_terminal(found, options)
        else:
            work = here_commands.open_terminal(flags, choice, options, continues=continue_last)
        code = process.run_to_completion(work)
    raise typer.Exit(code)


def _chat_inline(
    chat_id: str | None,
    url: str | None,
    token_file: Path | None,
    profile: str | None,
    data_dir: str | None,
    *,
    here: bool,
) -> NoReturn:
    from chatd.cli import api_session, target, terminal_ui
    from chatd.cli.chats import inline_chat

    with api_session.report_errors():
        if here:
            raise api_session.UsageProblem("--inline has no --here: chatd run --here works there")
        if not inline_chat.has_terminal():
            terminal_ui.refuse_no_screen()
        server = target.find_server(url, token_file, profile, data_dir).server
        given = None if chat_id is None else terminal_ui.read_chat_id(chat_id)
        flags = {"url": url, "token_file": token_file, "profile": profile, "data_dir": data_dir}
        chat = inline_chat.InlineChat(
            server,
            inline_chat.Spot(chat_id=given),
            lambda name: f"chatd chat --inline{return_flags(flags)} {name}",
        )
        raise typer.Exit(chat.run())


def has_screen(stdin: TextIO, stdout: TextIO, env: Mapping[str, str]) -> bool:
    """Whether a terminal can be drawn on: that of an editor's shell or of a build cannot."""
    return stdin.isatty() and stdout.isatty() and env.get("TERM", "") not in ("", "dumb")


def open_bare() -> None:
    """`chatd` without a command, on a terminal."""
    chat()


def acp(
    url: Url = None,
    token_file: TokenFile = None,
    profile: Profile = None,
    data_dir: DataDir = None,
    *,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="The model of new chats")
    ] = None,
    remote: Annotated[
        bool,
        typer.Option("--remote", help="Work in workspaces of the server, not in the directory"),
    ] = False,
    network: HereNetwork = None,
    no_sandbox: NoSandbox = False,
    yes: Yes = False,
) -> None:
    """Be the agent of an editor (Agent Client Protocol).

    For Zed, JetBrains, Neovim and others that start their agents themselves. Sessions are chats of
    the server; they work in the directory that the editor has open, as with --here.
    """
    from chatd.cli import api_session, process, target
    from chatd.cli.acp import agent
    from chatd.cli.chats import here_commands

    with api_session.report_errors():
        flags = {"url": url, "token_file": token_file, "profile": profile, "data_dir": data_dir}
        choice = here_commands.read_choice(
            here=not remote, network=network, no_sandbox=no_sandbox, yes=yes
        )
        if choice is None:
            server = target.find_server(url, token_file, profile, data_dir).server
            work = agent.run_agent(server, None, model=model)
        else:
            found, hidden = here_commands.find_target(flags)
            directory = agent.DirectoryChoice(
                network=choice.network,
                sandbox=choice.sandbox,
                agreed=choice.agreed,
                hidden=tuple(hidden),
            )
            work = agent.run_agent(found.server, directory, model=model)
        process.run_to_completion(work)


# `chatd run`

FILE = typer.Option("--file", "-f", metavar="FILE", help="Attach this file; may be repeated")
MODEL = typer.Option("--model", "-m", metavar="NAME", help="The model [else the default]")
EFFORT = typer.Option("--effort", metavar="WORD", help="How much the model thinks: low, high ...")
MODE = typer.Option("--mode", help="plan: look around and propose a plan; off: end that mode")


@with_target
def run(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What to do; standard input is added to it")
    ] = "",
    *,
    model: Annotated[str | None, MODEL] = None,
    effort: Annotated[str | None, EFFORT] = None,
    mode: Annotated[Literal["plan", "off"] | None, MODE] = None,
    file: Annotated[list[Path] | None, FILE] = None,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="NAME", help="The project of the new chat"),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option("--workspace", "-w", metavar="NAME", help="The workspace, by name or id"),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option("--template", metavar="NAME", help="Make a workspace from this template"),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="A label of the chat; may be repeated"),
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option("--mcp", metavar="SLUG", help="Use this MCP server; may be repeated"),
    ] = None,
    max_cost: Annotated[
        str | None,
        typer.Option("--max-cost", metavar="DOLLARS", help="The budget of the new chat"),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps", metavar="N", min=1, help="Interrupt the chat after so many model calls"
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", help="Instructions for the new chat"),
    ] = None,
    allow_tool: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-tool",
            metavar="NAME[:ARGUMENT=PATTERN]",
            help="Run calls of this tool without asking; may be repeated",
        ),
    ] = None,
    deny_tool: Annotated[
        list[str] | None,
        typer.Option(
            "--deny-tool",
            metavar="NAME[:ARGUMENT=PATTERN]",
            help="Never run calls of this tool; may be repeated",
        ),
    ] = None,
    output_schema: Annotated[
        Path | None,
        typer.Option(
            "--output-schema", metavar="FILE", help="Answer with JSON of this JSON Schema"
        ),
    ] = None,
    continue_last: Annotated[
        bool, typer.Option("--continue", "-c", help="Continue the chat that changed last")
    ] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", "-r", metavar="ID", help="Continue this chat")
    ] = None,
    form: Annotated[
        Literal["text", "json", "stream-json"],
        typer.Option("--format", help="What standard output gets"),
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json")] = False,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Interrupt the chat after that"),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the chat's id and do not wait")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress")] = False,
    here: Here = False,
    network: HereNetwork = None,
    no_sandbox: NoSandbox = False,
    yes: Yes = False,
    server: ServerFinder,
) -> None:
    """Send a prompt, wait, and print the answer.

    With --here the chat works in the current directory, and -c continues the last one of it.

    Standard output gets the answer only; progress, and the chat's id, go to standard error. Ctrl-C
    interrupts the chat, a second one leaves at once.

    Exit codes: 0 done, 1 failure, 2 usage, 3 sign-in, 4 model error, 5 spend limit, 6 the chat
    needs an approval or an answer, 7 the answer does not fit the schema, 124 time-out, 130
    interrupted.
    """
    from chatd.cli.api_session import UsageProblem, report_errors, run_command
    from chatd.cli.chats import here_commands, run_report
    from chatd.cli.chats.run_request import RunRequest, read_prompt, read_tool_rule
    from chatd.cli.chats.structured_output import read_schema

    with report_errors():
        request = RunRequest(
            prompt=read_prompt(prompt, has_files=bool(file)),
            chat_id=None if resume is None else run_report.read_chat_id(resume),
            continues=continue_last,
            model=model,
            effort=run_report.read_effort(effort),
            mode=mode,
            workspace=workspace,
            project=project,
            template=template,
            files=tuple(file or ()),
            labels=run_report.read_labels(label or ()),
            mcp=tuple(mcp or ()),
            max_cost_micros=None if max_cost is None else run_report.read_dollars(max_cost),
            max_steps=max_steps,
            system=system,
            tool_rules=(
                *(read_tool_rule(one, "auto") for one in allow_tool or ()),
                *(read_tool_rule(one, "deny") for one in deny_tool or ()),
            ),
            output=read_schema(output_schema),
        )
        run_report.check_choices(request)
        if detach and (output_schema is not None or max_steps is not None):
            raise UsageProblem("--detach does not wait: leave out --output-schema and --max-steps")
        choice = here_commands.read_choice(
            here=here, network=network, no_sandbox=no_sandbox, yes=yes
        )
        if choice is not None:
            here_commands.check_request(request, detach=detach)
    form = "json" if as_json else form
    if choice is not None:
        code = here_commands.run_here(
            target_flags(),
            choice,
            request,
            lambda api, wanted: run_report.run(
                api, wanted, form=form, timeout_s=timeout, quiet=quiet
            ),
        )
    elif detach:
        code = run_command(server, lambda api: run_report.run_detached(api, request, form=form))
    else:
        code = run_command(
            server,
            lambda api: run_report.run(api, request, form=form, timeout_s=timeout, quiet=quiet),
        )
    raise typer.Exit(code)


# `chatd chats`

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
    project: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Those of this project, of all its members"),
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--count", metavar="NUMBER", min=1, max=10_000, help="How many")
    ] = 20,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """List your chats, pinned ones first, then the newest."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import chat_work

    wanted = chat_work.ListFilter(
        search=search,
        status=status,
        labels=tuple(label or ()),
        archived=archived,
        shared=shared,
        project=project,
        limit=count,
    )
    run_command(server, lambda api: chat_work.list_chats(api, wanted, as_json=as_json))


@chats.command()
@with_target
def show(
    chat: ChatName, *, count: Count = 50, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Show a chat with its newest messages."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import chat_work

    run_command(server, lambda api: chat_work.show_chat(api, chat, count=count, as_json=as_json))


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
    from chatd.cli.chats import chat_work
    from chatd.cli.chats.run_report import read_effort
    from chatd.cli.chats.run_request import read_prompt

    with report_errors():
        message = chat_work.NewMessage(
            prompt=read_prompt(text, has_files=bool(file)),
            files=tuple(file or ()),
            busy=chat_work.read_busy(busy),
            model=model,
            effort=read_effort(effort),
            mode=mode,
        )
    run_command(server, lambda api: chat_work.send(api, chat, message, as_json=as_json))


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
    from chatd.cli.chats import chat_work

    code = run_command(
        server,
        lambda api: chat_work.tail(api, chat, count=count, as_json=as_json, until_idle=until_idle),
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
    from chatd.cli.chats import chat_work

    run_command(
        server,
        lambda api: chat_work.interrupt(api, chat, hold=hold, subagents=subagents, as_json=as_json),
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
    from chatd.cli.chats import chat_work

    run_command(server, lambda api: chat_work.archive(api, chat, undo=undo, as_json=as_json))


@chats.command()
@with_target
def fork(
    chat: ChatName,
    *,
    at: Annotated[
        int | None, typer.Option("--at", metavar="MESSAGE", help="Copy up to this message [all]")
    ] = None,
    copies_workspace: Annotated[
        bool,
        typer.Option(
            "--copy-workspace",
            help="Give it a new workspace with the same files; without it both chats use one",
        ),
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Copy a chat into a new one, and print its id."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import chat_work

    run_command(
        server,
        lambda api: chat_work.fork(
            api, chat, message_id=at, copies_workspace=copies_workspace, as_json=as_json
        ),
    )


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
    from chatd.cli.chats import chat_work

    form = "jsonl" if as_json else form
    run_command(server, lambda api: chat_work.export(api, chat, form=form, target=output))


@chats.command("import")
@with_target
def import_chats(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Written by export --format jsonl")
    ],
    *,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Make new chats of exported ones, and print their ids."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import chat_work

    run_command(server, lambda api: chat_work.import_files(api, files, as_json=as_json))


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
    from chatd.cli.chats import chat_work

    run_command(
        server,
        lambda api: chat_work.share(
            api, chat, users=user or (), groups=group or (), remove=remove, as_json=as_json
        ),
    )


@chats.command()
@with_target
def link(
    chat: ChatName,
    *,
    days: Annotated[
        int, typer.Option(metavar="DAYS", min=1, max=365, help="After how many days it ends")
    ] = 7,
    tools: Annotated[
        bool, typer.Option("--tools", help="Show calls of tools and their output")
    ] = False,
    files: Annotated[bool, typer.Option("--files", help="Show files of the messages")] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Make a link by which everyone reads a chat as it is now, and print it."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import chat_work

    run_command(
        server,
        lambda api: chat_work.make_link(
            api, chat, days=days, with_tools=tools, with_files=files, as_json=as_json
        ),
    )


@chats.command()
@with_target
def links(
    chat: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A chat; else all of yours")
    ] = None,
    *,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Of all users, for administrators")
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """List public links."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import chat_work

    run_command(
        server,
        lambda api: chat_work.list_links(api, chat, everyone=everyone, as_json=as_json),
    )


LinkIds = Annotated[
    list[UUID], typer.Argument(metavar="LINK...", help="Ids from chatd chats links")
]


@chats.command("update-link")
@with_target
def update_link(link: LinkIds, *, server: ServerFinder) -> None:
    """Let public links show what their chats have now."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import chat_work

    run_command(server, lambda api: chat_work.update_links(api, link))


@chats.command()
@with_target
def unlink(link: LinkIds, *, server: ServerFinder) -> None:
    """Revoke public links."""
    from chatd.cli.api_session import run_command
    from chatd.cli.chats import chat_work

    run_command(server, lambda api: chat_work.revoke_links(api, link))


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
    from chatd.cli.chats import chat_work

    with report_errors():
        confirm(f"Delete {len(chat)} chat{'s' if len(chat) > 1 else ''} for ever?", yes=yes)
    run_command(server, lambda api: chat_work.remove(api, chat, as_json=as_json))


# `chatd chats approve`, `deny` and `answer`

Call = Annotated[
    str | None,
    typer.Option("--call", metavar="ID", help="Which call or plan [else shows it and asks]"),
]
Every = Annotated[bool, typer.Option("--all", help="All calls that wait, unseen")]


@chats.command()
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
    from chatd.cli.chats.answers import Choice

    choice = Choice(call=call, every=every)
    answers.approve(server, chat, choice, always=always, as_json=as_json)


@chats.command()
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
    from chatd.cli.chats.answers import Choice

    choice = Choice(call=call, every=every)
    answers.deny(server, chat, choice, reason=reason, as_json=as_json)


@chats.command()
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
    from chatd.cli.chats.answers import Choice

    answers.answer(server, chat, text, Choice(call=call), as_json=as_json)
