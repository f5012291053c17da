"""The `chatd` command line: commands, options and help texts.

`server_commands` and `admin` do the work; `process` runs it and maps errors to exit codes. Commands
import lazily, so that `chatd --help` stays fast.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Annotated, Final, Protocol

import typer
from typer.core import TyperGroup

from chatd.cli import completion, runner, workspace_commands
from chatd.cli.account import account_commands, credential_commands
from chatd.cli.administration import (
    hook_commands,
    repository_commands,
    slack_commands,
    template_commands,
    user_commands,
)
from chatd.cli.chats import chat_commands
from chatd.cli.operator import operator_commands
from chatd.cli.options import AsJson, Config, DatabaseUrl, DataDir, Host, Port

SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "Work with agents": ("chat", "run", "acp", "chats", "workspaces", "models", "usage", "policy"),
    "Your account at a server": (
        *("login", "logout", "whoami", "mcp", "skills", "memory", "projects"),
        *("files", "tokens", "credentials", "slack"),
    ),
    "Run a server": (
        *("serve", "worker", "runner", "providers", "migrate", "admin"),
        *("backup", "restore", "doctor", "config", "upgrade", "debug", "bench"),
    ),
    "Other": ("completion", "version"),
}
"""The commands of `chatd --help`: what a user needs first."""


class HelpWriter(Protocol):
    """What typer's formatter does here."""

    width: int

    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None: ...


class SectionedGroup(TyperGroup):
    """A command that no section names comes with the last one."""

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002
        ordered = [name for names in SECTIONS.values() for name in names if name in self.commands]
        return [*ordered, *(name for name in self.commands if name not in ordered)]

    def format_commands(self, ctx: object, formatter: HelpWriter) -> None:
        names = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        named = {name for group in SECTIONS.values() for name in group}
        width = max(map(len, names))
        limit = formatter.width - 6 - width
        for heading, group in SECTIONS.items():
            is_last = heading == list(SECTIONS)[-1]
            shown = [name for name in names if name in group or (is_last and name not in named)]
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in shown
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


app = typer.Typer(
    cls=SectionedGroup,
    help="A self-hosted server that runs AI agent chats that cannot be lost.",
    epilog="To begin: chatd serve, then chatd chat in another terminal. Every key of chatd.toml"
    " is also CHATD_* in the environment; flags win over both.",
    add_completion=False,
    rich_markup_mode=None,
    # A traceback with local variables would print secrets.
    pretty_exceptions_enable=False,
)
migrations = typer.Typer(
    help="Migrate the database to this version's schema.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(migrations, name="migrate")

administration = typer.Typer(
    help="Administer a deployment, on its database or over its API.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(administration, name="admin")
administration.add_typer(account_commands.runners, name="runners")
administration.add_typer(user_commands.users, name="users")
administration.add_typer(user_commands.groups, name="groups")
administration.add_typer(user_commands.limits, name="limits")
administration.add_typer(template_commands.templates, name="templates")
administration.add_typer(credential_commands.shared, name="credentials")
administration.add_typer(hook_commands.hooks, name="hooks")
administration.add_typer(repository_commands.repositories, name="repositories")
administration.add_typer(slack_commands.connections, name="slack")
app.add_typer(runner.runner, name="runner")

EXIT_BEHIND: Final = 3


def main() -> None:
    app(prog_name="chatd")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root_command(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version"),
    ] = False,
) -> None:
    """Typer reads the options of the bare command from here. Alone on a terminal it opens the
    terminal UI, else it prints its help."""
    if show_version or context.invoked_subcommand is not None:
        return
    has_screen = chat_commands.has_screen(sys.stdin, sys.stdout, os.environ)
    if has_screen and find_spec("textual") is not None:
        chat_commands.open_bare()
    print(context.get_help())
    raise typer.Exit(2)


@app.command()
def version() -> None:
    """Print the version, and what it was built from."""
    import json
    from importlib import metadata
    from importlib.resources import files

    built = ""
    note = files("chatd") / "build.json"  # in a wheel: tools/wheel_hook.py
    if note.is_file():
        told = json.loads(note.read_text())
        known = [f"{name} {told[name]}" for name in ("commit", "date") if told.get(name)]
        built = f" ({', '.join(known)})" if known else ""
    print(f"chatd {metadata.version('chatd')}{built}")


@app.command()
def serve(
    host: Host = None,
    port: Port = None,
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Run no chats in this process")
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Open no browser, also on a desktop")
    ] = False,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Processes that share the port; auto: one for each core [1]"
        ),
    ] = None,
    member: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve the API and run chats until stopped. Starts a database unless one is given."""
    from chatd.app.composition import ProcessRole
    from chatd.cli import process, server_commands

    with process.report_errors():
        flags = {
            "data_dir": data_dir,
            "database.url": database_url,
            "server.host": host,
            "server.port": port,
            "server.processes": processes,
        }
        settings = process.read_settings(flags, config)
        process.configure_logging(settings.log)
        role = ProcessRole(runs_chats=not no_worker)
        may_open = not no_browser
        process.run_until_signal(
            lambda stop: server_commands.serve_here_or_in_group(
                settings, stop, role, member, may_open_browser=may_open
            )
        )


@app.command()
def worker(
    host: Host = None,
    port: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Serve /healthz, /readyz and /metrics on this port [no port]"
        ),
    ] = None,
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Run chats as chatd serve does, without the API, until stopped."""
    from chatd.app.composition import ProcessRole
    from chatd.cli import process, server_commands

    with process.report_errors():
        flags = {
            "data_dir": data_dir,
            "database.url": database_url,
            "server.host": host,
            "server.port": port,
        }
        settings = process.read_settings(flags, config)
        process.configure_logging(settings.log)
        role = ProcessRole(serves="nothing" if port is None else "health")
        process.run_until_signal(lambda stop: server_commands.serve(settings, stop, role))


@app.command()
def bench(
    rows: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Only these rows, separated by commas; plans and workspaces run only on request",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure less, with rough results")
    ] = False,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Create a database on this server and drop it afterwards, instead of starting one",
        ),
    ] = None,
) -> None:
    """Measure chatd on this machine with a fake provider.

    A minimal relay is measured beside it. Needs a checkout of chatd's repository. Exits with 1 if a
    target was missed.
    """
    from chatd.cli import process, server_commands

    with process.report_errors():
        names = [name.strip() for name in rows.split(",") if name.strip()]
        met = process.run_to_completion(
            server_commands.run_bench(names, quick=quick, json=as_json, database_url=database_url)
        )
        if not met:
            raise typer.Exit(1)


@migrations.command()
def up(config: Config = None, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Apply all pending migrations."""
    from chatd.cli import admin, process

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        process.run_to_completion(admin.migrate_up(process.read_settings(flags, config)))


@migrations.command()
def status(
    config: Config = None, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """List all migrations and their state."""
    from chatd.cli import admin, process

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        process.run_to_completion(admin.show_migrations(process.read_settings(flags, config)))


@migrations.command()
def check(
    config: Config = None, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Exit with 0 if the database is up to date, with 3 if it is not."""
    from chatd.cli import admin, process

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        if not process.run_to_completion(
            admin.check_migrations(process.read_settings(flags, config))
        ):
            raise typer.Exit(EXIT_BEHIND)


@administration.command("rotate-keys")
def rotate_keys(
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    lost: Annotated[
        bool,
        typer.Option("--lost", help="Go on although no host has the current key any more"),
    ] = False,
    remove_old: Annotated[
        bool, typer.Option("--remove-old", help="Only remove old keys that no secret uses")
    ] = False,
) -> None:
    """Seal all secrets of the database with a new key. Can be stopped and run again."""
    from chatd.cli import admin, process

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = admin.find_deployment(flags, config)
        work = admin.remove_old_keys(settings) if remove_old else None
        process.run_to_completion(work or admin.rotate_keys(settings, lost=lost))


@administration.command("sign-in-link")
def sign_in_link(
    user: Annotated[str, typer.Option(metavar="NAME", help="Sign this user in")] = "admin",
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Print a link that signs a browser in, once, within 15 minutes."""
    from chatd.cli import admin, process

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = admin.find_deployment(flags, config)
        process.run_to_completion(admin.print_sign_in_link(settings, user))


@administration.command("confirm-restore")
def confirm_restore(
    config: Config = None, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Confirm that a deployment that was restored from a backup replaces the original.

    Until then it runs no chats and schedules, sends no webhooks and deletes nothing.
    """
    from chatd.cli import admin, process
    from chatd.cli.operator import backup

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = admin.find_deployment(flags, config)
        process.run_to_completion(backup.confirm_restore(settings))


@administration.command("create-user")
def create_user(
    username: Annotated[str, typer.Argument(metavar="NAME")],
    role: Annotated[str, typer.Option(metavar="ROLE", help="admin, member or viewer")] = "member",
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    email: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The user's email")] = None,
    with_password: Annotated[
        bool,
        typer.Option("--password", help="Read a password from the terminal or standard input"),
    ] = False,
) -> None:
    """Create a user. Without a password, print a link that signs the user in once."""
    from chatd.cli import admin, process

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = admin.find_deployment(flags, config)
        password = process.read_password() if with_password else None
        process.run_to_completion(
            admin.create_user(settings, username, role=role, email=email, password=password)
        )


@administration.command("reset-password")
def reset_password(
    username: Annotated[str, typer.Argument(metavar="NAME")],
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Set a user's password, read from the terminal or standard input, and end the sessions."""
    from chatd.cli import admin, process

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = admin.find_deployment(flags, config)
        password = process.read_password()
        process.run_to_completion(admin.reset_password(settings, username, password))


@administration.command("audit")
def audit_log(
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only what this user did")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DAY", help="Only from this UTC day on")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="DAY", help="Only up to this UTC day")
    ] = None,
    object_type: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help="Only what was done to such objects"),
    ] = None,
    object_id: Annotated[
        str | None, typer.Option("--object", metavar="ID", help="Only what was done to this object")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only entries with this text")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many entries")] = 50,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="All entries that fit, as CSV; the log records this")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print who did what, newest first."""
    from chatd.cli import admin, process

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = admin.find_deployment(flags, config)
        request = admin.AuditRequest(
            user=user,
            since=since,
            until=until,
            object_type=object_type,
            object_id=object_id,
            text=text,
            limit=limit,
            as_csv=as_csv,
            as_json=as_json,
        )
        process.run_to_completion(admin.print_audit_log(settings, request))


# Further commands have a module per group, which registers them.
for commands_of in (
    *(chat_commands, workspace_commands, account_commands),
    *(operator_commands, completion),
):
    commands_of.register(app)
