"""`chatd backup`, `restore`, `doctor`, `config check`, `debug bundle` and `upgrade check`: options
and help texts. The work is imported when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chatd.cli.options import AsJson, Config, DatabaseUrl, DataDir, TokenFile

if TYPE_CHECKING:
    from chatd.cli.operator.doctor import DoctorReport


def _group(text: str) -> typer.Typer:
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)


settings_group: Final = _group("Check the settings of a server.")
debugging: Final = _group("Collect what a report about a problem needs.")
upgrading: Final = _group("Prepare an upgrade.")


def register(app: typer.Typer) -> None:
    app.command()(backup)
    app.command()(restore)
    app.command()(doctor)
    app.add_typer(settings_group, name="config")
    app.add_typer(debugging, name="debug")
    app.add_typer(upgrading, name="upgrade")


RemoteUrl = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Examine this server, not the deployment here"),
]
RemoteProfile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="NAME", help="Examine the server of this sign-in of chatd login"
    ),
]
Providers = Annotated[
    bool,
    typer.Option(
        "--providers", help="Also make one small call to each provider, which may cost a little"
    ),
]


def backup(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write it there, a new file; - is standard output [chatd-TIME.backup]",
        ),
    ] = None,
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    encrypt: Annotated[
        bool,
        typer.Option(
            "--encrypt",
            help="With a passphrase, from CHATD_BACKUP_PASSPHRASE, the terminal or standard input",
        ),
    ] = False,
    workspaces: Annotated[
        bool, typer.Option("--workspaces", help="With the files of workspaces on this host")
    ] = False,
    no_keys: Annotated[
        bool,
        typer.Option("--no-keys", help="Without the key of stored secrets, which you keep apart"),
    ] = False,
) -> None:
    """Write all data of a deployment into one file.

    Servers may go on running: the file has the state of one moment. It gets its name
    only when it is whole.
    """
    from chatd.cli import admin, process
    from chatd.cli.operator import backup as work

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = admin.find_deployment(flags, config)
        process.run_to_completion(
            work.make_backup(
                settings,
                output,
                encrypts=encrypt,
                holds_keys=not no_keys,
                holds_workspaces=workspaces,
            )
        )


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What chatd backup has written")],
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the file and tell what is in it")
    ] = False,
) -> None:
    """Restore a backup into an empty place.

    That is an empty data directory and an empty database. The whole file is checked before anything
    is written. The restored deployment does nothing by
    itself until chatd admin confirm-restore.
    """
    from chatd.cli import process
    from chatd.cli.operator import backup as work

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = process.read_settings(flags, config)
        process.run_to_completion(work.restore_backup(settings, file, only_check=check))


def doctor(
    url: RemoteUrl = None,
    token_file: TokenFile = None,
    profile: RemoteProfile = None,
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    providers: Providers = False,
    as_json: AsJson = False,
) -> None:
    """Examine a deployment: what is wrong, and what to do about it.

    Without --url or --profile, the deployment of this host is examined, also while no server runs.
    Exits with 0 if nothing has failed, with 1 if something has, with 2 for a wrong command line.
    """
    from chatd.cli import process
    from chatd.cli.operator import doctor as work

    with process.report_errors():
        if url is not None or profile is not None:
            from chatd.cli.target import find_server

            server = find_server(url, token_file, profile, data_dir).server
            examined = work.examine_server(server, tries_providers=providers)
        else:
            flags = {"data_dir": data_dir, "database.url": database_url}
            examined = work.examine_deployment(flags, config, tries_providers=providers)
        report = process.run_to_completion(examined)
        _exit(work.print_report(report, as_json=as_json))


@settings_group.command("check")
def check_config(
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List everything that is wrong with the settings file and the CHATD_* variables.

    Exits with 0 if a server would start, with 2 if it would not.
    """
    from chatd.cli import process
    from chatd.cli.operator import settings_check

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        _exit(settings_check.check_command(flags, config, as_json=as_json))


@debugging.command("bundle")
def bundle(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Write it there; a new file")
    ] = Path("chatd-debug.tar.gz"),
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", metavar="FILE", help="Add the end of this log; may be repeated"),
    ] = None,
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write versions, settings, the doctor's findings, metrics and sizes of tables into one file.

    Secrets, chats and prompts are not in it.
    """
    from chatd.cli import admin, process
    from chatd.cli.operator import debug_bundle
    from chatd.cli.operator import doctor as examination

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = admin.find_deployment(flags, config)

        async def work() -> None:
            report = await examination.examine_deployment(flags, config, tries_providers=False)
            await debug_bundle.write_bundle(settings, report, output, log or [])

        process.run_to_completion(work())


@upgrading.command("check")
def check_upgrade(
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show what a start of this version would do to the database. Changes nothing.

    Exits with 0 if it can start, with 1 if it should not.
    """
    from chatd.cli import admin, process
    from chatd.cli.operator import doctor as work
    from chatd.cli.operator import upgrade_check

    with process.report_errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        settings = admin.find_deployment(flags, config)
        report: DoctorReport = process.run_to_completion(upgrade_check.examine_upgrade(settings))
        _exit(work.print_report(report, as_json=as_json))


def _exit(code: int) -> None:
    if code:
        raise typer.Exit(code)
