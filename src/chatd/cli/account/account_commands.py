"""`chatd usage`, `providers`, `skills`, `files`, `tokens`, `mcp`, `login`, `logout`,
`whoami` and `admin runners`: options and help texts. The work is imported when it runs."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from chatd.cli.account import credential_commands, memory_commands, project_commands
from chatd.cli.administration import model_commands, policy_commands, slack_commands
from chatd.cli.options import AsJson, DataDir, Profile, ServerFinder, TokenFile, Url, with_target

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
ProviderName = Annotated[str, typer.Argument(metavar="NAME")]
SkillName = Annotated[str, typer.Argument(metavar="NAME")]


def _group(text: str) -> typer.Typer:
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)


providers: Final = _group("Add, test, list and remove providers of models.")
skills: Final = _group("List, read, write and delete your own skills.")
files: Final = _group("Upload and load files.")
tokens: Final = _group("Create, list and revoke your API tokens.")
runners: Final = _group("List, drain and remove runners, and make their tokens, over the API.")
runner_tokens: Final = _group("Create, list and revoke the tokens that runners connect with.")
runners.add_typer(runner_tokens, name="tokens")
mcp: Final = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    app.add_typer(
        model_commands.models,
        name="models",
        short_help="List the models; connect a provider with models add.",
    )
    app.add_typer(providers, name="providers")
    app.add_typer(skills, name="skills")
    app.add_typer(memory_commands.memory, name="memory")
    app.add_typer(project_commands.projects, name="projects")
    app.add_typer(files, name="files")
    app.add_typer(tokens, name="tokens")
    app.add_typer(credential_commands.own, name="credentials")
    app.add_typer(slack_commands.own, name="slack")
    app.add_typer(policy_commands.policy, name="policy")
    app.command()(usage)
    app.add_typer(mcp, name="mcp", short_help="Connect your MCP servers; be one yourself.")
    app.command()(login)
    app.command()(logout)
    app.command()(whoami)


@with_target
def usage(
    *,
    since: Annotated[
        str | None,
        typer.Option(metavar="DAY", help="The first day, or 7d, 4w, 3m [30 days ago]"),
    ] = None,
    by: Annotated[
        Literal["model", "chat", "day", "user"],
        typer.Option(help="One line for each; user: all users, for administrators"),
    ] = "model",
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Show what model calls have cost.

    A + marks a sum that lacks calls whose price is not known.
    """
    from chatd.cli.account import own_resources as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.show_usage(api, since=since, grouping=by, as_json=as_json))


# Providers


@providers.command("add")
@with_target
def add_provider(
    name: ProviderName,
    *,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="anthropic, openai, google, openrouter, openai-compat, azure ..."
        ),
    ],
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Its address [the vendor's]")
    ] = None,
    region: Annotated[str | None, typer.Option(metavar="REGION", help="For bedrock")] = None,
    key_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE",
            help="The environment variable that has the key [asked for, or standard input]",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="ID", help="Its first model [chosen from the provider's list]"
        ),
    ] = None,
    no_model: Annotated[bool, typer.Option("--no-model", help="Add no model")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Store it even if its test fails")] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Add a provider, test it, and add its first model.

    The first model besides the demo model becomes the default. A provider whose test fails is not
    stored.
    """
    from chatd.cli.administration import providers as work
    from chatd.cli.api_session import report_errors, run_command

    with report_errors():
        key = work.read_key(key_env)
    wanted = work.NewProvider(
        name=name,
        kind=kind,
        url=base_url,
        region=region,
        model=model,
        adds_model=not no_model,
        keeps=keep,
    )
    run_command(server, lambda api: work.add_provider(api, wanted, key, as_json=as_json))


@providers.command("test")
@with_target
def try_provider(
    name: ProviderName,
    *,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="ID", help="The model to call")
    ] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Make one small call, and say what is wrong if it fails."""
    from chatd.cli.administration import providers as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.try_provider(api, name, model, as_json=as_json))


@providers.command("list")
@with_target
def list_providers(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the providers, without their secrets."""
    from chatd.cli.administration import providers as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_providers(api, as_json=as_json))


@providers.command("add-model")
@with_target
def add_model(
    name: ProviderName,
    model: Annotated[str, typer.Argument(metavar="ID", help="The model's name at the provider")],
    *,
    called: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What -m takes [after the ID]")
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Chats that name no model use it")
    ] = False,
    server: ServerFinder,
) -> None:
    """Add a model of a provider. What the provider tells of it is filled in."""
    from chatd.cli.administration import providers as work
    from chatd.cli.api_session import run_command

    chosen = True if default else None
    run_command(server, lambda api: work.add_model(api, name, model, called, is_default=chosen))


@providers.command("fallbacks")
@with_target
def fallbacks(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model that may fail")],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FALLBACK[:REASON,...]]...",
            help="Models that answer instead, in order; reasons are outage, overload, access,"
            " refusal, context [all]",
        ),
    ] = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="Remove the fallbacks")] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Show or set the models that answer if a model cannot."""
    from chatd.cli.administration import providers as work
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: work.show_or_set_fallbacks(
            api, model, given or (), removes=none, as_json=as_json
        ),
    )


@providers.command("rm")
@with_target
def remove_provider(
    name: ProviderName,
    *,
    with_models: Annotated[
        bool, typer.Option("--with-models", help="Also delete the models that use it")
    ] = False,
    yes: Yes = False,
    server: ServerFinder,
) -> None:
    """Delete a provider with its keys. Without --with-models no model may use it."""
    from chatd.cli.administration import providers as work
    from chatd.cli.api_session import confirm, report_errors, run_command

    with report_errors():
        confirm(f"Delete the provider {name}?", yes=yes)
    run_command(server, lambda api: work.remove_provider(api, name, with_models=with_models))


# Skills


@skills.command("list")
@with_target
def list_skills(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List your skills."""
    from chatd.cli.account import own_resources as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_skills(api, as_json=as_json))


@skills.command("show")
@with_target
def show_skill(name: SkillName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Print a skill, in the form that put takes."""
    from chatd.cli.account import own_resources as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.show_skill(api, name, as_json=as_json))


@skills.command("put")
@with_target
def put_skill(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Such as SKILL.md; -: standard input")
    ],
    *,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its name [as the file says]")
    ] = None,
    description: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What it is for [as the file says]")
    ] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Create a skill, or replace the one with its name."""
    from chatd.cli.account import own_resources as work
    from chatd.cli.api_session import report_errors, run_command

    with report_errors():
        text = work.read_text_file(file)
    run_command(
        server,
        lambda api: work.put_skill(api, text, name=name, description=description, as_json=as_json),
    )


@skills.command("rm")
@with_target
def remove_skill(
    name: SkillName, *, yes: Yes = False, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Delete a skill."""
    from chatd.cli.account import own_resources as work
    from chatd.cli.api_session import confirm, report_errors, run_command

    with report_errors():
        confirm(f"Delete the skill {name}?", yes=yes)
    run_command(server, lambda api: work.remove_skill(api, name, as_json=as_json))


# Files


@files.command("put")
@with_target
def put_files(
    file: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    *,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Upload files, and print their ids."""
    from chatd.cli.account import user_files as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.put_files(api, file, as_json=as_json))


@files.command("get")
@with_target
def get_file(
    file_id: Annotated[str, typer.Argument(metavar="ID", help="As chatd files put prints it")],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PLACE", help="A file or a directory [else standard output]"
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file in the directory")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only its facts, as JSON")] = False,
    server: ServerFinder,
) -> None:
    """Load a file."""
    from chatd.cli.account import user_files as work
    from chatd.cli.api_session import run_command

    run_command(
        server, lambda api: work.get_file(api, file_id, output, force=force, as_json=as_json)
    )


# Tokens


@tokens.command("create")
@with_target
def create_token(
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="What it is for")],
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE",
            help="What it may do, may be repeated: chat:read, chat:write, files, account, admin"
            " [all]",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="90d, 12h, 4w or 2027-01-31 [never]")
    ] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Create an API token and print it, once."""
    from chatd.cli.account import sign_in as work
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: work.create_token(
            api, name, scopes=scope or (), expires=expires, as_json=as_json
        ),
    )


@tokens.command("list")
@with_target
def list_tokens(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List your API tokens."""
    from chatd.cli.account import sign_in as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_tokens(api, as_json=as_json))


@tokens.command("revoke")
@with_target
def revoke_token(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As chatd tokens list shows it")],
    *,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """End an API token; it is refused within a second."""
    from chatd.cli.account import sign_in as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.revoke_token(api, token_id, as_json=as_json))


# Runners, as an administrator: `chatd admin runners`

RunnerName = Annotated[str, typer.Argument(metavar="RUNNER", help="Its name or its id")]


@runners.command("list")
@with_target
def list_runners(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the runners, and why builds wait."""
    from chatd.cli.administration import runner_administration as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_runners(api, as_json=as_json))


@runners.command("show")
@with_target
def show_runner(runner: RunnerName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Show a runner, its workspaces, and the builds that wait for it."""
    from chatd.cli.administration import runner_administration as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.show_runner(api, runner, as_json=as_json))


@runners.command("drain")
@with_target
def drain_runner(runner: RunnerName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Give a runner no new workspaces; those that it has go on."""
    from chatd.cli.administration import runner_administration as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.set_draining(api, runner, draining=True, as_json=as_json))


@runners.command("resume")
@with_target
def resume_runner(runner: RunnerName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Let a drained runner take new workspaces again."""
    from chatd.cli.administration import runner_administration as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.set_draining(api, runner, draining=False, as_json=as_json))


@runners.command("remove")
@with_target
def remove_runner(
    runner: RunnerName,
    *,
    with_workspaces: Annotated[
        bool,
        typer.Option(
            "--with-workspaces", help="Its machine is gone for good: its workspaces are deleted too"
        ),
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Remove a runner that is not connected and has no workspaces."""
    from chatd.cli.administration import runner_administration as work
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: work.remove_runner(
            api, runner, with_workspaces=with_workspaces, as_json=as_json
        ),
    )


@runner_tokens.command("list")
@with_target
def list_runner_tokens(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the tokens of runners, without their secrets."""
    from chatd.cli.administration import runner_administration as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_tokens(api, as_json=as_json))


@runner_tokens.command("create")
@with_target
def create_runner_token(
    pool: Annotated[
        str, typer.Option("--pool", metavar="NAME", help="The pool of its runners, such as build")
    ],
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="What it is for [the pool's name]")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="90d, 12h, 4w or 2027-01-31 [never]")
    ] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Create a token of runners and print it, once, with the commands that start a runner."""
    from chatd.cli.administration import runner_administration as work
    from chatd.cli.api_session import run_command

    run_command(
        server,
        lambda api: work.create_token(api, pool, name=name, expires=expires, as_json=as_json),
    )


@runner_tokens.command("revoke")
@with_target
def revoke_runner_token(
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="As chatd admin runners tokens list shows it")
    ],
    *,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """End a token of runners; its runners are disconnected, their workspaces go on."""
    from chatd.cli.administration import runner_administration as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.revoke_token(api, token_id, as_json=as_json))


# MCP: clients have the bare `chatd mcp` in their configuration, so it stays the server

Slug = Annotated[str, typer.Argument(metavar="SLUG", help="As chatd mcp list shows it")]


@mcp.callback()
def serve_mcp(
    context: typer.Context,
    url: Url = None,
    token_file: TokenFile = None,
    profile: Profile = None,
    data_dir: DataDir = None,
) -> None:
    """Offer the chats of a running server as MCP tools, on standard input and output.

    For clients that start their MCP servers themselves, such as editors and other agents. It
    reconnects while the server restarts. Clients that speak HTTP can use URL/mcp instead. The
    commands below are about the MCP servers that your own chats use.
    """
    from chatd.cli import mcp_stdio, process, target

    if context.invoked_subcommand is not None:
        if any((url, token_file, profile, data_dir)):
            text = f"write the options after {context.invoked_subcommand}"
            raise typer.BadParameter(text)
        return
    with process.report_errors():
        server = target.find_server(url, token_file, profile, data_dir).server
        process.run_to_completion(mcp_stdio.run_bridge(server))


@mcp.command("list")
@with_target
def list_servers(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the MCP servers that your chats can use."""
    from chatd.cli.account import own_resources as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_servers(api, as_json=as_json))


@mcp.command()
@with_target
def connect(
    slug: Slug,
    *,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=3600, help="How long to wait")
    ] = 600,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the page")] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Connect your account to an MCP server, in a browser.

    Prints and opens the page of the chatd server where you connect, and waits until it is done.
    """
    from chatd.cli.account import own_resources as work
    from chatd.cli.api_session import run_command

    code = run_command(
        server,
        lambda api: work.connect(
            api, slug, timeout_s=timeout, may_open=not no_browser, as_json=as_json
        ),
    )
    raise typer.Exit(code)


@mcp.command()
@with_target
def disconnect(slug: Slug, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """End your connection to an MCP server.

    Its tokens are deleted here, and revoked there if that is possible.
    """
    from chatd.cli.account import own_resources as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.disconnect(api, slug, as_json=as_json))


# Signing in


def login(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="The server's address, or a sign-in link of it; - asks for the link",
            show_default=False,
        ),
    ],
    username: Annotated[
        str | None,
        typer.Option("--username", metavar="NAME", help="Sign in as this user, with a password"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Sign in with the token in this file; - is stdin"
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Store it by this name [the host's]"),
    ] = None,
) -> None:
    """Sign in at a server, and store a token for it.

    Asks for the username and the password on a terminal. Without one, the password of --username,
    or a token, is read from standard input. The password is not stored.

    A sign-in link is a secret, and other users of this computer can read the arguments of commands:
    chatd login - asks for the link, or reads it from standard input.
    """
    from chatd.cli import api_session, process
    from chatd.cli.account import sign_in

    with api_session.report_errors():
        given = sign_in.read_given(url, username, token_file)
        process.run_to_completion(sign_in.sign_in(given, profile))


def logout(
    profile: Profile = None,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Only remove it here, and do not revoke the token"),
    ] = False,
) -> None:
    """Revoke the token that chatd login made, and remove it."""
    from chatd.cli import api_session, process
    from chatd.cli.account import sign_in

    with api_session.report_errors():
        process.run_to_completion(sign_in.sign_out(profile, is_revoking=not forget))


def whoami(
    url: Url = None,
    token_file: TokenFile = None,
    profile: Profile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print who you are, at which server."""
    from chatd.cli import api_session, process, target
    from chatd.cli.account import sign_in

    with api_session.report_errors():
        found = target.find_server(url, token_file, profile, data_dir)
        process.run_to_completion(sign_in.print_user(found, as_json=as_json))
