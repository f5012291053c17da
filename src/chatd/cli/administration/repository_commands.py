"""`chatd admin repositories`: connect git hosts, so that their issues and pull requests start
chats, over the API of a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

if TYPE_CHECKING:
    from chatd.client.resources import RepositoryConnection
    from chatd.client.server import ServerApi

Vendor = Literal["github", "gitlab", "gitea"]
_HEADINGS: Final = ("NAME", "HOST", "REPOSITORIES", "TEMPLATE", "USER", "PROBLEM")
_EVENT_HEADINGS: Final = ("AT", "EVENT", "PLACE", "BY", "OUTCOME", "DETAIL")
MAX_LISTED_CONNECTIONS: Final = 1000
MAX_LISTED_EVENTS: Final = 50
MAX_KEY_FILE_BYTES: Final = 16_384

ConnectionArgument = Annotated[
    str, typer.Argument(metavar="NAME|ID", help="The connection's name or id")
]
Repositories = Annotated[
    list[str] | None,
    typer.Option(
        "--repository", metavar="OWNER/NAME", help="owner/name or owner/*; repeat it for several"
    ),
]
TemplateOption = Annotated[
    str | None, typer.Option("--template", metavar="NAME", help="The template of the workspaces")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model of the chats")
]
UserOption = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="To whom the chats and their cost go")
]
Allowed = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="LOGIN", help="Only this account of the host may ask; repeat it"
    ),
]
Mention = Annotated[
    str | None, typer.Option("--mention", metavar="NAME", help="What people mention: @NAME")
]
Label = Annotated[str | None, typer.Option("--label", help="The label that starts a chat")]
Rounds = Annotated[
    int | None,
    typer.Option("--check-rounds", metavar="N", help="How often failed checks are sent back"),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--secret-file", help="A file with the token; - for the input. Else it asks"),
]
AppId = Annotated[
    str | None,
    typer.Option("--app-id", metavar="ID", help="An App of GitHub, instead of a token"),
]
AppKeyFile = Annotated[
    Path | None,
    typer.Option("--app-key-file", help="The file with the private key of the App"),
]

repositories: Final = typer.Typer(
    help="Connect git hosts: their issues and pull requests start chats.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@repositories.command("list")
@with_target
def list_connections(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the connections."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_table

    async def work(api: "ServerApi") -> None:
        listed = api.list_repository_connections()
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_CONNECTIONS))
            return
        found = await listed.items(MAX_LISTED_CONNECTIONS)
        print_table(_HEADINGS, [_row(one) for one in found])

    run_command(server, work)


@repositories.command("add")
@with_target
def add_connection(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name for people")],
    *,
    vendor: Annotated[Vendor, typer.Option("--vendor", help="The software of the host")],
    address: Annotated[
        str | None,
        typer.Option(
            "--host-url", help="The address of its pages, without it github.com and the like"
        ),
    ] = None,
    repository: Repositories = None,
    template: TemplateOption = None,
    model: ModelOption = None,
    user: UserOption = None,
    allow: Allowed = None,
    mention: Mention = None,
    label: Label = None,
    check_rounds: Rounds = None,
    secret_file: TokenFile = None,
    app_id: AppId = None,
    app_key_file: AppKeyFile = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Connect a git host. Asks for the token, hidden, unless an App of GitHub is given.

    Prints what its webhook needs: the address and the secret, which is shown only here.
    """
    from chatd.cli.api_session import UsageProblem, run_command
    from chatd.cli.output import print_json, print_notice, print_text

    has_app = app_id is not None or app_key_file is not None
    token = None if has_app else _read_token(name, secret_file)

    async def work(api: "ServerApi") -> None:
        if not repository or template is None:
            raise UsageProblem("give --repository and --template")
        fields = await _fields(
            api,
            {
                "repositories": repository,
                "mention": mention,
                "label": label,
                "allowed": allow,
                "check_rounds": check_rounds,
                "url": address,
            },
            template=template,
            model=model,
            user=user,
        )
        app = _read_app(app_id, app_key_file, secret_file)
        fields |= {"name": name, "vendor": vendor, **(app or {"token": token})}
        made = await api.create_repository_connection(fields)
        if as_json:
            print_json(made)
            return
        place = "add a webhook at" if made.app_id is None else "give the App its webhook at"
        print_notice(
            f"connected {made.name}. Now {place} {made.url}, with the path"
            f" {made.events_path} of this server, the content type application/json, and this"
            " secret, which is not shown again:"
        )
        print_text(made.secret)

    run_command(server, work)


@repositories.command("change")
@with_target
def change_connection(
    connection: ConnectionArgument,
    *,
    name: Annotated[str | None, typer.Option("--name", help="Another name")] = None,
    repository: Repositories = None,
    template: TemplateOption = None,
    model: ModelOption = None,
    user: UserOption = None,
    allow: Allowed = None,
    allow_all: Annotated[
        bool, typer.Option("--allow-all", help="Everyone with write access may ask")
    ] = False,
    mention: Mention = None,
    label: Label = None,
    check_rounds: Rounds = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether events start chats")
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--token", help="Give it another token; asks for it, hidden")
    ] = False,
    secret_file: TokenFile = None,
    app_id: AppId = None,
    app_key_file: AppKeyFile = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Change a connection, disable it, or give it another token or App."""
    from chatd.cli.api_session import UsageProblem, run_command
    from chatd.cli.output import print_json, print_notice

    has_app = app_id is not None or app_key_file is not None
    wants_token = new_token or secret_file is not None
    token = _read_token(connection, secret_file) if wants_token and not has_app else None

    async def work(api: "ServerApi") -> None:
        given: dict[str, object] = {
            "name": name,
            "repositories": repository,
            "mention": mention,
            "label": label,
            "allowed": [] if allow_all else allow,
            "check_rounds": check_rounds,
            "enabled": enabled,
            "token": token,
            **_read_app(app_id, app_key_file, secret_file, wants_token=new_token),
        }
        fields = await _fields(api, given, template=template, model=model, user=user)
        if not fields:
            raise UsageProblem("say what to change, such as --disable or --token")
        found = await _find(api, connection)
        changed = await api.change_repository_connection(found.id, fields)
        if as_json:
            print_json(changed)
            return
        print_notice(f"changed {changed.name}")

    run_command(server, work)


@repositories.command("test")
@with_target
def try_connection(
    connection: ConnectionArgument, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Ask the git host whose the token is, or as whom the App acts."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_text

    async def work(api: "ServerApi") -> None:
        found = await _find(api, connection)
        trial = await api.try_repository_connection(found.id)
        whose = "the token is that of" if found.app_id is None else "the App acts as"
        if as_json:
            print_json(trial)
        else:
            print_text(f"{whose} {trial.login}" if trial.ok else trial.reason)
        if not trial.ok:
            raise typer.Exit(1)

    run_command(server, work)


@repositories.command("events")
@with_target
def list_events(
    connection: ConnectionArgument, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """List the latest events that the host delivered, and what became of them."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_table

    async def work(api: "ServerApi") -> None:
        listed = api.list_repository_events((await _find(api, connection)).id)
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_EVENTS))
            return
        rows = [
            (
                f"{one.created_at:%Y-%m-%d %H:%M}",
                one.kind,
                f"{one.repository}#{one.number}" if one.number else one.repository,
                one.sender,
                one.outcome,
                one.detail or ("" if one.chat_id is None else f"chat {one.chat_id}"),
            )
            for one in await listed.items(MAX_LISTED_EVENTS)
        ]
        print_table(_EVENT_HEADINGS, rows)

    run_command(server, work)


@repositories.command("remove")
@with_target
def remove_connection(
    connection: ConnectionArgument, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Remove a connection. Its chats stay."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_notice

    async def work(api: "ServerApi") -> None:
        found = await _find(api, connection)
        await api.delete_repository_connection(found.id)
        if as_json:
            print_json({"removed": str(found.id)})
            return
        print_notice(f"removed {found.name}")

    run_command(server, work)


def _read_token(name: str, file: Path | None) -> str:
    from chatd.cli.administration.host_credentials import read_secret

    return read_secret(name, file)


def _read_app(
    app_id: str | None,
    key_file: Path | None,
    secret_file: Path | None,
    *,
    wants_token: bool = False,
) -> dict[str, object]:
    """Empty without an App. Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    if app_id is None and key_file is None:
        return {}
    if app_id is None or key_file is None:
        raise UsageProblem("give --app-id and --app-key-file together")
    if wants_token or secret_file is not None:
        raise UsageProblem("give a token or an App, not both")
    try:
        with key_file.open("rb") as opened:
            text = opened.read(MAX_KEY_FILE_BYTES).decode(errors="replace")
    except OSError as error:
        raise UsageProblem(f"--app-key-file: {key_file}: {error.strerror}") from None
    return {"app": {"id": app_id, "private_key": text}}


async def _fields(
    api: "ServerApi",
    given: "dict[str, object]",
    *,
    template: str | None,
    model: str | None,
    user: str | None,
) -> dict[str, object]:
    """What was given, with ids in place of names. Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    fields = {name: value for name, value in given.items() if value is not None}
    if template is not None:
        known = await api.list_template_configs().items(MAX_LISTED_CONNECTIONS)
        found = [one.id for one in known if one.name == template]
        if not found:
            raise UsageProblem(f"there is no template {template!r}")
        fields["template_id"] = str(found[0])
    if model is not None:
        offered = await api.list_models().items(MAX_LISTED_CONNECTIONS)
        models = [one.id for one in offered if model in (one.name, str(one.id))]
        if not models:
            raise UsageProblem(f"there is no model {model!r}")
        fields["model_id"] = str(models[0])
    if user is not None:
        users = await api.list_users().items(MAX_LISTED_CONNECTIONS)
        ids = [one.id for one in users if user in (one.username, str(one.id))]
        if not ids:
            raise UsageProblem(f"there is no user {user!r}")
        fields["user_id"] = str(ids[0])
    return fields


def _row(one: "RepositoryConnection") -> tuple[str, ...]:
    return (
        one.name if one.enabled else f"{one.name} (disabled)",
        one.url,
        ", ".join(one.repositories),
        one.template_name,
        one.username,
        one.problem or "",
    )


async def _find(api: "ServerApi", name: str) -> "RepositoryConnection":
    """Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    known = await api.list_repository_connections().items(MAX_LISTED_CONNECTIONS)
    found = [one for one in known if name in (one.name, str(one.id))]
    if len(found) != 1:
        which = "there is no connection" if not found else "there are several connections"
        raise UsageProblem(
            f"{which} {name!r}; chatd admin repositories list --json shows their ids"
        )
    return found[0]
