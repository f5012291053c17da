"""`chatd policy`: show a tool policy, replace it by a file, and say what would happen to a call."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from msgspec import Struct

from chatd.cli.options import AsJson, ServerFinder, with_target

if TYPE_CHECKING:
    from chatd.client.calls import Call
    from chatd.client.resources import ToolPolicyState, ToolTrial
    from chatd.client.server import ServerApi

MAX_POLICY_BYTES: Final = 4 * 1024 * 1024
MAX_TEMPLATES: Final = 1000
_HEADINGS: Final = ("ACTION", "TOOL", "ARGUMENTS", "REASON")

policy: Final = typer.Typer(
    help="Show and set which tool calls ask first or never run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Deployment = Annotated[
    bool, typer.Option("--deployment", help="That of all chats; administrators change it")
]
Template = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="That of the workspaces of this template"),
]
OfChat = Annotated[
    str | None, typer.Option("--chat", metavar="ID", help="That of this chat; last: the newest one")
]


class Which(Struct, frozen=True, kw_only=True):
    """One of the four policies; without any it is the user's own."""

    deployment: bool = False
    template: str | None = None
    chat: str | None = None


@policy.command("show")
@with_target
def show_policy(
    *,
    deployment: Deployment = False,
    template: Template = None,
    chat: OfChat = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Show a policy: your own, or another one. --json is what set takes."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_notice, print_table

    which = Which(deployment=deployment, template=template, chat=chat)

    async def work(api: "ServerApi") -> None:
        call = await _stored(api, which)
        if as_json:
            print_json(await call.raw())
            return
        found = await call
        rows = [
            (
                one.action,
                one.tool,
                ", ".join(f"{name}: {pattern}" for name, pattern in one.args.items()),
                one.reason,
            )
            for one in found.rules
        ]
        print_table(_HEADINGS, rows)
        if found.may_loosen:
            print_notice("Users and chats may run without approval what this policy asks for.")

    run_command(server, work)


@policy.command("set")
@with_target
def set_policy(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="JSON, or TOML if it ends in .toml; - is JSON of standard input"
        ),
    ],
    *,
    deployment: Deployment = False,
    template: Template = None,
    chat: OfChat = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Replace a policy by the rules of a file.

    The file is what show --json prints. With its "version" the change is refused if the policy has
    changed since; without, it replaces whatever is there.
    """
    from chatd.cli.api_session import report_errors, run_command
    from chatd.cli.output import print_json, print_notice

    which = Which(deployment=deployment, template=template, chat=chat)
    with report_errors():
        given = read_policy(file)

    async def work(api: "ServerApi") -> None:
        stored = await _replace(api, which, given)
        if as_json:
            print_json(stored)
            return
        count = len(stored.rules)
        print_notice(
            f"the policy has {count} rule{'' if count == 1 else 's'}, version {stored.version}"
        )

    run_command(server, work)


@policy.command("try")
@with_target
def try_call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Its name, such as execute")],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Its arguments, such as command='git push'"),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Rules to try instead of the stored ones"),
    ] = None,
    deployment: Deployment = False,
    chat: OfChat = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Say what would happen to a call. Nothing is run or stored.

    Without an option it is a call in your own chats.
    """
    from chatd.cli.api_session import report_errors, run_command
    from chatd.cli.output import print_json, print_notice, print_text

    which = Which(deployment=deployment, chat=chat)
    tried: dict[str, object] = {"tool": tool}
    with report_errors():
        tried["args"] = read_arguments(args or [])
        if file is not None:
            given = read_policy(file)
            tried |= {name: given[name] for name in ("rules", "may_loosen") if name in given}

    async def work(api: "ServerApi") -> None:
        call = await _trial(api, which, tried)
        if as_json:
            print_json(await call.raw())
            return
        found = await call
        print_text(found.action)
        print_notice(found.explanation)
        if found.reason:
            print_notice(found.reason)
        if len(found.commands) > 1:
            for one in found.commands:
                print_notice(f"  {one.matches:<4} {one.command}")

    run_command(server, work)


def read_policy(file: Path) -> dict[str, object]:
    """What the API takes; the server checks the rules. Raises UsageProblem."""
    import sys

    from chatd.cli.api_session import UsageProblem
    from chatd.cli.chats.run_request import read_bounded

    try:
        if str(file) == "-":
            data = read_bounded(sys.stdin.buffer, "the policy", MAX_POLICY_BYTES)
        else:
            with file.open("rb") as opened:
                data = read_bounded(opened, str(file), MAX_POLICY_BYTES)
    except OSError as error:
        raise UsageProblem(f"{file}: {error.strerror}") from None
    try:
        if file.suffix == ".toml":
            found = msgspec.toml.decode(data, type=dict[str, object])
        else:
            found = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageProblem(f"{file}: {error}") from None
    if "rules" not in found:
        raise UsageProblem(f"{file}: it has no rules; [] for none")
    return found


def read_arguments(given: list[str]) -> dict[str, str]:
    """Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    found: dict[str, str] = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise UsageProblem(f"{one!r} is no argument: write NAME=VALUE")
        found[name] = value
    return found


def _check(which: Which) -> None:
    from chatd.cli.api_session import UsageProblem

    if sum((which.deployment, which.template is not None, which.chat is not None)) > 1:
        raise UsageProblem("say one of --deployment, --template and --chat")


async def _stored(api: "ServerApi", which: Which) -> "Call[ToolPolicyState]":
    from chatd.cli.chats.chat_work import find_chat

    _check(which)
    if which.deployment:
        return api.get_tool_policy()
    if which.template is not None:
        return api.get_template_tool_policy(await _template_id(api, which.template))
    if which.chat is not None:
        return api.get_chat_tool_policy(await find_chat(api, which.chat))
    return api.get_my_tool_policy()


async def _replace(api: "ServerApi", which: Which, given: dict[str, object]) -> "ToolPolicyState":
    from chatd.cli.chats.chat_work import find_chat

    _check(which)
    if which.deployment:
        return await api.put_tool_policy(given)
    if which.template is not None:
        return await api.put_template_tool_policy(await _template_id(api, which.template), given)
    # As show prints it: other policies have no such word.
    given = {name: value for name, value in given.items() if (name, value) != ("may_loosen", False)}
    if which.chat is not None:
        return await api.put_chat_tool_policy(await find_chat(api, which.chat), given)
    return await api.put_my_tool_policy(given)


async def _trial(api: "ServerApi", which: Which, tried: dict[str, object]) -> "Call[ToolTrial]":
    from chatd.cli.chats.chat_work import find_chat

    _check(which)
    if which.deployment:
        return api.try_tool_policy(tried)
    if which.chat is not None:
        return api.try_chat_tool_policy(await find_chat(api, which.chat), tried)
    return api.try_my_tool_policy(tried)


async def _template_id(api: "ServerApi", name: str) -> str:
    """Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    known = await api.list_template_configs().items(MAX_TEMPLATES)
    found = next((one for one in known if one.name == name), None)
    if found is None:
        raise UsageProblem(f"there is no template {name!r}")
    return str(found.id)
