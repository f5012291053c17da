"""`chatd admin slack`: connect workspaces of Slack, whose threads become chats; `chatd slack`: say
who you are there. Over the API of a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

if TYPE_CHECKING:
    from chatd.client.resources import SlackConnection
    from chatd.client.server import ServerApi

_HEADINGS: Final = ("NAME", "WORKSPACE", "CONNECTED SINCE", "TEMPLATE", "PROJECT", "PROBLEM")
_EVENT_HEADINGS: Final = ("AT", "EVENT", "CHANNEL", "BY", "OUTCOME", "DETAIL")
_LINK_HEADINGS: Final = ("ID", "CONNECTION", "WORKSPACE", "PERSON", "LINKED")
MAX_LISTED_SLACK: Final = 1000
MAX_LISTED_EVENTS: Final = 50
MANIFEST: Final[dict[str, object]] = {
    "display_information": {"name": "chatd", "description": "Chats with agents of chatd"},
    "features": {
        "app_home": {
            "home_tab_enabled": False,
            "messages_tab_enabled": True,
            "messages_tab_read_only_enabled": False,
        },
        "bot_user": {"display_name": "chatd", "always_online": True},
    },
    "oauth_config": {
        "scopes": {
            "bot": [
                "app_mentions:read",
                "channels:history",
                "chat:write",
                "files:read",
                "groups:history",
                "im:history",
                "mpim:history",
                "users:read",
                "users:read.email",
            ]
        }
    },
    "settings": {
        "event_subscriptions": {
            "bot_events": [
                "app_mention",
                "message.channels",
                "message.groups",
                "message.im",
                "message.mpim",
            ]
        },
        "interactivity": {"is_enabled": True},
        "org_deploy_enabled": False,
        "socket_mode_enabled": True,
        "token_rotation_enabled": False,
    },
}

ConnectionArgument = Annotated[
    str, typer.Argument(metavar="NAME|ID", help="The connection's name or id")
]
TemplateOption = Annotated[
    str | None, typer.Option("--template", metavar="NAME", help="The template of the workspaces")
]
ProjectOption = Annotated[
    str | None, typer.Option("--project", metavar="ID", help="The project of the chats")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model of the chats")
]
EmailOption = Annotated[
    bool | None,
    typer.Option(
        "--match-email/--no-match-email",
        help="Whether an email that Slack has confirmed identifies a user",
    ),
]
BotFile = Annotated[
    Path | None,
    typer.Option("--bot-token-file", help="A file with the bot token, xoxb-. Else it asks"),
]
AppFile = Annotated[
    Path | None,
    typer.Option("--app-token-file", help="A file with the app-level token, xapp-. Else it asks"),
]

connections: Final = typer.Typer(
    help="Connect workspaces of Slack: their threads become chats.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
own: Final = typer.Typer(
    help="Link your person of Slack, so that chatd knows you there.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@connections.command("manifest")
def print_manifest() -> None:
    """Print the manifest from which Slack makes the app."""
    from chatd.cli.output import print_json

    print_json(MANIFEST)


@connections.command("list")
@with_target
def list_connections(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the connections."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_table

    async def work(api: "ServerApi") -> None:
        listed = api.list_slack_connections()
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_SLACK))
            return
        print_table(_HEADINGS, [_row(one) for one in await listed.items(MAX_LISTED_SLACK)])

    run_command(server, work)


@connections.command("add")
@with_target
def add_connection(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name for people")],
    *,
    template: TemplateOption = None,
    project: ProjectOption = None,
    model: ModelOption = None,
    match_email: EmailOption = None,
    bot_token_file: BotFile = None,
    app_token_file: AppFile = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Connect a workspace of Slack. Asks for both tokens, hidden."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_notice

    tokens = {
        "bot_token": _read_token(f"bot token of {name}", bot_token_file),
        "app_token": _read_token(f"app-level token of {name}", app_token_file),
    }

    async def work(api: "ServerApi") -> None:
        given: dict[str, object] = {
            "name": name,
            "project_id": project,
            "match_email": match_email,
            **tokens,
        }
        fields = await _fields(api, given, template=template, model=model)
        made = await api.create_slack_connection(fields)
        if as_json:
            print_json(made)
            return
        print_notice(f"added {made.name}. chatd admin slack test {made.name!r} asks Slack.")

    run_command(server, work)


@connections.command("change")
@with_target
def change_connection(
    connection: ConnectionArgument,
    *,
    name: Annotated[str | None, typer.Option("--name", help="Another name")] = None,
    template: TemplateOption = None,
    no_template: Annotated[
        bool, typer.Option("--no-template", help="Chats begin without a workspace")
    ] = False,
    project: ProjectOption = None,
    no_project: Annotated[
        bool, typer.Option("--no-project", help="Chats belong to no project")
    ] = False,
    model: ModelOption = None,
    match_email: EmailOption = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether chatd connects to Slack")
    ] = None,
    bot_token: Annotated[
        bool, typer.Option("--bot-token", help="Give it another bot token; asks for it, hidden")
    ] = False,
    app_token: Annotated[
        bool, typer.Option("--app-token", help="Give it another app-level token; asks for it")
    ] = False,
    bot_token_file: BotFile = None,
    app_token_file: AppFile = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Change a connection, disable it, or give it other tokens."""
    from chatd.cli.api_session import UsageProblem, run_command
    from chatd.cli.output import print_json, print_notice

    given: dict[str, object] = {
        "name": name,
        "project_id": project,
        "match_email": match_email,
        "enabled": enabled,
    }
    if bot_token or bot_token_file is not None:
        given["bot_token"] = _read_token(f"bot token of {connection}", bot_token_file)
    if app_token or app_token_file is not None:
        given["app_token"] = _read_token(f"app-level token of {connection}", app_token_file)

    async def work(api: "ServerApi") -> None:
        fields = await _fields(api, given, template=template, model=model)
        fields |= {"template_id": None} if no_template else {}
        fields |= {"project_id": None} if no_project else {}
        if not fields:
            raise UsageProblem("say what to change, such as --disable or --bot-token")
        found = await _find(api, connection)
        changed = await api.change_slack_connection(found.id, fields)
        if as_json:
            print_json(changed)
            return
        print_notice(f"changed {changed.name}")

    run_command(server, work)


@connections.command("test")
@with_target
def try_connection(
    connection: ConnectionArgument, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Ask Slack whether it accepts both tokens, and which scopes are missing."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_text

    async def work(api: "ServerApi") -> None:
        trial = await api.try_slack_connection((await _find(api, connection)).id)
        if as_json:
            print_json(trial)
        else:
            print_text(f"@{trial.bot} in {trial.team}" if trial.ok else trial.reason)
        if not trial.ok:
            raise typer.Exit(1)

    run_command(server, work)


@connections.command("events")
@with_target
def list_events(
    connection: ConnectionArgument, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """List the latest messages and presses that Slack delivered, and what became of them."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_table

    async def work(api: "ServerApi") -> None:
        listed = api.list_slack_events((await _find(api, connection)).id)
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_EVENTS))
            return
        rows = [
            (
                f"{one.created_at:%Y-%m-%d %H:%M}",
                one.kind,
                one.channel,
                one.slack_user,
                one.outcome,
                one.detail or ("" if one.chat_id is None else f"chat {one.chat_id}"),
            )
            for one in await listed.items(MAX_LISTED_EVENTS)
        ]
        print_table(_EVENT_HEADINGS, rows)

    run_command(server, work)


@connections.command("remove")
@with_target
def remove_connection(
    connection: ConnectionArgument, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Remove a connection, with its links. Its chats stay."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_notice

    async def work(api: "ServerApi") -> None:
        found = await _find(api, connection)
        await api.delete_slack_connection(found.id)
        if as_json:
            print_json({"removed": str(found.id)})
            return
        print_notice(f"removed {found.name}")

    run_command(server, work)


@own.command("link")
@with_target
def link_person(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """Make a code that links your person of Slack, once."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_notice, print_text

    async def work(api: "ServerApi") -> None:
        made = await api.make_slack_code()
        if as_json:
            print_json(made)
            return
        print_notice(
            "send this to the bot in a direct message within ten minutes, and show it to nobody:"
            " the sender acts as you"
        )
        print_text(f"link {made.code}")

    run_command(server, work)


@own.command("list")
@with_target
def list_links(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the persons of Slack that you are."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_table

    async def work(api: "ServerApi") -> None:
        listed = api.list_slack_links()
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_SLACK))
            return
        rows = [
            (
                str(one.id),
                one.connection_name,
                one.team_name,
                one.slack_name or one.slack_user,
                f"{one.created_at:%Y-%m-%d %H:%M}",
            )
            for one in await listed.items(MAX_LISTED_SLACK)
        ]
        print_table(_LINK_HEADINGS, rows)

    run_command(server, work)


@own.command("unlink")
@with_target
def unlink_person(
    link: Annotated[str, typer.Argument(metavar="ID", help="The link, by chatd slack list")],
    *,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Remove a link: that person of Slack is no longer you."""
    from chatd.cli.api_session import UsageProblem, run_command
    from chatd.cli.output import print_json, print_notice

    async def work(api: "ServerApi") -> None:
        known = await api.list_slack_links().items(MAX_LISTED_SLACK)
        found = next((one for one in known if str(one.id) == link), None)
        if found is None:
            raise UsageProblem(f"there is no link {link!r}; chatd slack list shows their ids")
        await api.delete_slack_link(found.id)
        if as_json:
            print_json({"removed": str(found.id)})
            return
        print_notice(f"unlinked {found.slack_name or found.slack_user}")

    run_command(server, work)


def _read_token(name: str, file: Path | None) -> str:
    from chatd.cli.administration.host_credentials import read_secret

    return read_secret(name, file)


async def _fields(
    api: "ServerApi", given: "dict[str, object]", *, template: str | None, model: str | None
) -> dict[str, object]:
    """What was given, with ids in place of names. Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    fields = {name: value for name, value in given.items() if value is not None}
    if template is not None:
        known = await api.list_template_configs().items(MAX_LISTED_SLACK)
        found = [one.id for one in known if one.name == template]
        if not found:
            raise UsageProblem(f"there is no template {template!r}")
        fields["template_id"] = str(found[0])
    if model is not None:
        offered = await api.list_models().items(MAX_LISTED_SLACK)
        models = [one.id for one in offered if model in (one.name, str(one.id))]
        if not models:
            raise UsageProblem(f"there is no model {model!r}")
        fields["model_id"] = str(models[0])
    return fields


def _row(one: "SlackConnection") -> tuple[str, ...]:
    return (
        one.name if one.enabled else f"{one.name} (disabled)",
        one.team_name,
        "" if one.connected_at is None else f"{one.connected_at:%Y-%m-%d %H:%M}",
        one.template_name or "",
        one.project_name or "",
        one.problem or "",
    )


async def _find(api: "ServerApi", name: str) -> "SlackConnection":
    """Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    known = await api.list_slack_connections().items(MAX_LISTED_SLACK)
    found = [one for one in known if name in (one.name, str(one.id))]
    if len(found) != 1:
        which = "there is no connection" if not found else "there are several connections"
        raise UsageProblem(f"{which} {name!r}; chatd admin slack list --json shows their ids")
    return found[0]
