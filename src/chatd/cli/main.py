"""The `chatd` command: what can be typed, and what is printed.

Owns the commands, their flags and their words. The work is done in app.py and below; how a
command is run and how it ends is run.py's.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from chatd.settings.keys import keys

app = typer.Typer(
    help="A self-hosted server that runs AI agent chats that cannot be lost.",
    epilog="Every key of chatd.toml is also CHATD_* in the environment; flags win over both.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    # A traceback with the values of all locals would print secrets.
    pretty_exceptions_enable=False,
)
migrations = typer.Typer(
    help="Bring the database to this version's schema.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(migrations, name="migrate")

BEHIND: Final = 3

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read settings from this file [else CHATD_CONFIG, ./chatd.toml, "
        "~/.config/chatd/chatd.toml]",
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        keys()["data_dir"].flag,
        metavar="DIR",
        help=f"{keys()['data_dir'].help} [else ~/.local/share/chatd; as root /var/lib/chatd]",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(keys()["database.url"].flag, metavar="URL", help=keys()["database.url"].help),
]
Host = Annotated[
    str | None,
    typer.Option(
        keys()["server.host"].flag,
        metavar="ADDRESS",
        help=f"{keys()['server.host'].help} [127.0.0.1]",
    ),
]
Port = Annotated[
    str | None,
    typer.Option(
        keys()["server.port"].flag, metavar="NUMBER", help=f"{keys()['server.port'].help} [7870]"
    ),
]


def main() -> None:
    app(prog_name="chatd")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def top(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version"),
    ] = False,
) -> None:
    """Typer reads the flags of the bare command from here."""


@app.command()
def version() -> None:
    """Print the version."""
    from importlib import metadata

    print(f"chatd {metadata.version('chatd')}")


@app.command()
def serve(
    host: Host = None,
    port: Port = None,
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    *,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Leave running chats to other processes")
    ] = False,
) -> None:
    """Serve the API and run chats, until stopped. Starts a database unless given one."""
    from chatd import app as roof
    from chatd.cli import logs, run, serving

    with run.errors():
        flags = {
            "data_dir": data_dir,
            "database.url": database_url,
            "server.host": host,
            "server.port": port,
        }
        settings = run.read_settings(flags, config)
        logs.configure(settings.log)
        job = roof.ProcessRole(works=not no_worker)
        run.until_signal(lambda stop: serving.serve(settings, stop, job))


@app.command()
def worker(
    host: Host = None,
    port: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Answer /healthz, /readyz and /metrics on this port [no port]"
        ),
    ] = None,
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Run chats without serving the API, until stopped: for replicas of chatd serve."""
    from chatd import app as roof
    from chatd.cli import logs, run, serving

    with run.errors():
        flags = {
            "data_dir": data_dir,
            "database.url": database_url,
            "server.host": host,
            "server.port": port,
        }
        settings = run.read_settings(flags, config)
        logs.configure(settings.log)
        job = roof.ProcessRole(answers="nothing" if port is None else "health")
        run.until_signal(lambda stop: serving.serve(settings, stop, job))


@app.command()
def bench(
    rows: Annotated[
        str, typer.Option(metavar="NAMES", help="Only these rows, with commas between them")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small and rough")] = False,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Make a database on this server and drop it afterwards, instead of an own server",
        ),
    ] = None,
) -> None:
    """Measure this machine with a fake provider, beside a plain relay. Exits with 1 if a target
    was missed."""
    from chatd.cli import benching, run

    with run.errors():
        names = [name.strip() for name in rows.split(",") if name.strip()]
        met = run.to_the_end(
            benching.bench(names, quick=quick, json=as_json, database_url=database_url)
        )
        if not met:
            raise typer.Exit(1)


@migrations.command()
def up(config: Config = None, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Apply every migration that is pending."""
    from chatd.cli import migrating, run

    with run.errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        run.to_the_end(migrating.up(run.read_settings(flags, config)))


@migrations.command()
def status(
    config: Config = None, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """List the migrations and whether they are applied."""
    from chatd.cli import migrating, run

    with run.errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        run.to_the_end(migrating.status(run.read_settings(flags, config)))


@migrations.command()
def check(
    config: Config = None, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Exit with 0 if the database is up to date, with 3 if it is not."""
    from chatd.cli import migrating, run

    with run.errors():
        flags = {"data_dir": data_dir, "database.url": database_url}
        if not run.to_the_end(migrating.check(run.read_settings(flags, config))):
            raise typer.Exit(BEHIND)
