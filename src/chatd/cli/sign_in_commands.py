"""`chatd login`, `logout` and `whoami`: their options and help texts. `sign_in` does the work."""

from pathlib import Path
from typing import Annotated

import typer

from chatd.cli.options import AsJson, DataDir, Profile, TokenFile, Url


def register(app: typer.Typer) -> None:
    app.command()(login)
    app.command()(logout)
    app.command()(whoami)


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
    from chatd.cli import api_session, process, sign_in

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
    from chatd.cli import api_session, process, sign_in

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
    from chatd.cli import api_session, process, sign_in, target

    with api_session.report_errors():
        found = target.find_server(url, token_file, profile, data_dir)
        process.run_to_completion(sign_in.print_user(found, as_json=as_json))
