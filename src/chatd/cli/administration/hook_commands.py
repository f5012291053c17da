"""`chatd admin hooks`: add, list, change, try and remove hooks, over the API of a server."""

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

if TYPE_CHECKING:
    from chatd.client.resources import HookConfig
    from chatd.client.server import ServerApi

Failure = Literal["open", "closed"]
_HEADINGS: Final = ("NAME", "WHEN", "FOR", "IF IT FAILS", "WITHIN", "URL")
MAX_LISTED_HOOKS: Final = 1000

HookArgument = Annotated[str, typer.Argument(metavar="NAME|ID", help="The hook's name or id")]
Events = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        metavar="EVENT",
        help="turn_start, before_tool, after_tool, step or turn_end; repeat it for several",
    ),
]
FailureOption = Annotated[
    Failure | None,
    typer.Option("--if-it-fails", help="closed: refuse the call or turn; open: go on"),
]
Timeout = Annotated[
    int | None, typer.Option("--timeout-ms", metavar="MS", help="How long it may take to answer")
]

hooks: Final = typer.Typer(
    help="List, add, change, try and remove hooks: URLs that are asked while a turn waits.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@hooks.command("list")
@with_target
def list_hooks(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the hooks, in the order in which they are asked."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_table

    async def work(api: "ServerApi") -> None:
        listed = api.list_hooks()
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_HOOKS))
            return
        found = await listed.items(MAX_LISTED_HOOKS)
        print_table(_HEADINGS, [_row(one) for one in found])

    run_command(server, work)


@hooks.command("add")
@with_target
def add_hook(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name for people")],
    address: Annotated[str, typer.Argument(metavar="URL", help="Where it is asked, by POST")],
    *,
    on: Events = None,
    failure: FailureOption = None,
    timeout_ms: Timeout = None,
    template: Annotated[
        str, typer.Option("--template", metavar="NAME", help="Only for workspaces of this template")
    ] = "",
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Add a hook. Without --on it is asked before tool calls.

    Prints the secret of its signatures, which is shown only here.
    """
    from chatd.cli.api_session import UsageProblem, run_command
    from chatd.cli.output import print_json, print_notice, print_text

    async def work(api: "ServerApi") -> None:
        fields = _fields(name=name, url=address, on=on or ["before_tool"], failure=failure)
        if timeout_ms is not None:
            fields["timeout_ms"] = timeout_ms
        if template:
            known = await api.list_template_configs().items(MAX_LISTED_HOOKS)
            found = [one.id for one in known if one.name == template]
            if not found:
                raise UsageProblem(f"there is no template {template!r}")
            fields["template_id"] = str(found[0])
        made = await api.create_hook(fields)
        if as_json:
            print_json(made)
            return
        print_notice(
            f"added {made.name}. It counts from now on. Its requests are signed with this"
            " secret, which is not shown again:"
        )
        print_text(made.secret)

    run_command(server, work)


@hooks.command("change")
@with_target
def change_hook(
    hook: HookArgument,
    *,
    name: Annotated[str | None, typer.Option("--name", help="Another name")] = None,
    address: Annotated[str | None, typer.Option("--to", metavar="URL", help="Another URL")] = None,
    on: Events = None,
    failure: FailureOption = None,
    timeout_ms: Timeout = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether it is asked")
    ] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Change a hook, or disable it for a while."""
    from chatd.cli.api_session import UsageProblem, run_command
    from chatd.cli.output import print_json, print_notice

    async def work(api: "ServerApi") -> None:
        fields = _fields(name=name, url=address, on=on, failure=failure)
        if timeout_ms is not None:
            fields["timeout_ms"] = timeout_ms
        if enabled is not None:
            fields["enabled"] = enabled
        if not fields:
            raise UsageProblem("say what to change, such as --disable or --timeout-ms 2000")
        changed = await api.change_hook((await _find(api, hook)).id, fields)
        if as_json:
            print_json(changed)
            return
        print_notice(f"changed {changed.name}")

    run_command(server, work)


@hooks.command("test")
@with_target
def try_hook(hook: HookArgument, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Ask a hook something without effect, and show what it answers."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_text

    async def work(api: "ServerApi") -> None:
        trial = await api.try_hook((await _find(api, hook)).id)
        if as_json:
            print_json(trial)
            return
        said = trial.decision or "no opinion" if trial.ok else "no answer"
        why = f": {trial.reason}" if trial.reason else ""
        print_text(f"{said}{why} ({trial.duration_ms} ms)")
        if not trial.ok:
            raise typer.Exit(1)

    run_command(server, work)


@hooks.command("remove")
@with_target
def remove_hook(hook: HookArgument, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Remove a hook. Calls that wait for it go on without it."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_notice

    async def work(api: "ServerApi") -> None:
        found = await _find(api, hook)
        await api.delete_hook(found.id)
        if as_json:
            print_json({"removed": str(found.id)})
            return
        print_notice(f"removed {found.name}")

    run_command(server, work)


def _fields(
    *, name: str | None, url: str | None, on: list[str] | None, failure: str | None
) -> dict[str, object]:
    given = {"name": name, "url": url, "events": on, "failure": failure}
    return {field: value for field, value in given.items() if value is not None}


def _row(one: "HookConfig") -> tuple[str, ...]:
    return (
        one.name if one.enabled else f"{one.name} (disabled)",
        ", ".join(one.events),
        "all chats" if one.template_id is None else f"template {one.template_name or ''}",
        "refuse" if one.failure == "closed" else "go on",
        f"{one.timeout_ms} ms",
        one.url,
    )


async def _find(api: "ServerApi", name: str) -> "HookConfig":
    """Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    known = await api.list_hooks().items(MAX_LISTED_HOOKS)
    found = [one for one in known if name in (one.name, str(one.id))]
    if len(found) != 1:
        which = "there is no hook" if not found else "there are several hooks"
        raise UsageProblem(f"{which} {name!r}; chatd admin hooks list --json shows their ids")
    return found[0]
