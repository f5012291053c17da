"""`chatd run`: its options and help texts. The work is in `work`, imported when it runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from chatd.cli.target_options import ServerFinder, with_target

FILE = typer.Option("--file", "-f", metavar="FILE", help="Attach this file; may be repeated")
MODEL = typer.Option("--model", "-m", metavar="NAME", help="The model [else the default]")
EFFORT = typer.Option("--effort", metavar="WORD", help="How much the model thinks: low, high ...")
MODE = typer.Option("--mode", help="plan: look around and propose a plan; off: end that mode")


def register(app: typer.Typer) -> None:
    app.command()(run)


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
    server: ServerFinder,
) -> None:
    """Send a prompt, wait, and print the answer.

    Standard output gets the answer only; progress, and the chat's id, go to standard error. Ctrl-C
    interrupts the chat, a second one leaves at once.

    Exit codes: 0 done, 1 failure, 2 usage, 3 sign-in, 4 model error, 5 spend limit, 6 the chat
    needs an approval or an answer, 124 time-out, 130 interrupted.
    """
    from chatd.cli.api_session import report_errors, run_command
    from chatd.cli.run import work
    from chatd.cli.run.prompt import read_prompt
    from chatd.cli.run.request import RunRequest

    with report_errors():
        request = RunRequest(
            prompt=read_prompt(prompt, has_files=bool(file)),
            chat_id=None if resume is None else work.read_chat_id(resume),
            continues=continue_last,
            model=model,
            effort=work.read_effort(effort),
            mode=mode,
            workspace=workspace,
            template=template,
            files=tuple(file or ()),
            labels=work.read_labels(label or ()),
            mcp=tuple(mcp or ()),
            max_cost_micros=work.read_dollars(max_cost),
        )
        work.check_choices(request)
    form = "json" if as_json else form
    if detach:
        code = run_command(server, lambda api: work.run_detached(api, request, form=form))
    else:
        code = run_command(
            server,
            lambda api: work.run(api, request, form=form, timeout_s=timeout, quiet=quiet),
        )
    raise typer.Exit(code)
