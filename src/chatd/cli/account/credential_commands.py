"""`chatd credentials` and `chatd admin credentials`: options and help texts. The work is imported
when it runs."""

from pathlib import Path
from typing import Annotated, Final, Literal, TypedDict, Unpack

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

Scheme = Literal["bearer", "basic", "header"]
Host = Annotated[
    str, typer.Argument(metavar="HOST[:PORT]", help="The host, such as registry.example.org")
]
PathOption = Annotated[
    str, typer.Option("--path", metavar="PATH", help="Only for this path and all below it")
]
Username = Annotated[
    str, typer.Option("--user", metavar="NAME", help="Send it as a password, with this user name")
]
Header = Annotated[
    str,
    typer.Option("--header", metavar="NAME", help="Send it as this header, such as PRIVATE-TOKEN"),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file", metavar="FILE", help="Read it from a file; - is stdin [else: ask, hidden]"
    ),
]
CredentialName = Annotated[
    str, typer.Argument(metavar="ID|HOST", help="Its id, or its host if there is one for it")
]


class Sent(TypedDict):
    """How and with which requests the secret is sent."""

    path: str
    user: str
    header: str
    secret_file: Path | None


def _group(text: str) -> typer.Typer:
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)


own: Final = _group("Credentials of hosts that your workspaces may reach.")
shared: Final = _group("Credentials of hosts for the workspaces of others.")


def _add(
    server: ServerFinder, host: str, *, group: str | None, as_json: bool, **given: Unpack[Sent]
) -> None:
    """`group` is None for a credential of one's own, and empty for one of the deployment."""
    from chatd.cli.administration import host_credentials as work
    from chatd.cli.api_session import report_errors, run_command

    with report_errors():
        new = work.read_new(host, **given)
    run_command(server, lambda api: work.add_credential(api, new, group=group, as_json=as_json))


@own.command("list")
@with_target
def list_own(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List your credentials, without their secrets."""
    from chatd.cli.administration import host_credentials as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_credentials(api, shared=False, as_json=as_json))


@own.command("add")
@with_target
def add_own(
    host: Host,
    *,
    path: PathOption = "/",
    user: Username = "",
    header: Header = "",
    secret_file: SecretFile = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Add a credential, or replace the one for the same host and path.

    A proxy adds it to the requests of your workspaces, as a bearer token unless --user or --header
    is given. It never enters a workspace. Templates must allow the host.
    """
    sent = Sent(path=path, user=user, header=header, secret_file=secret_file)
    _add(server, host, group=None, as_json=as_json, **sent)


@own.command("remove")
@with_target
def remove_own(
    credential: CredentialName, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Remove a credential; running workspaces lose it at once."""
    from chatd.cli.administration import host_credentials as work
    from chatd.cli.api_session import run_command

    run_command(
        server, lambda api: work.remove_credential(api, credential, shared=False, as_json=as_json)
    )


@shared.command("list")
@with_target
def list_shared(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the credentials of the deployment and of groups, without their secrets."""
    from chatd.cli.administration import host_credentials as work
    from chatd.cli.api_session import run_command

    run_command(server, lambda api: work.list_credentials(api, shared=True, as_json=as_json))


@shared.command("add")
@with_target
def add_shared(
    host: Host,
    *,
    group: Annotated[
        str, typer.Option("--group", metavar="NAME", help="Only for the members of a group")
    ] = "",
    path: PathOption = "/",
    user: Username = "",
    header: Header = "",
    secret_file: SecretFile = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Add a credential for the workspaces of all users or of a group, or replace it.

    A proxy adds it to the requests of workspaces whose template allows the host.
    """
    sent = Sent(path=path, user=user, header=header, secret_file=secret_file)
    _add(server, host, group=group, as_json=as_json, **sent)


@shared.command("remove")
@with_target
def remove_shared(
    credential: CredentialName, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Remove a credential; running workspaces lose it at once."""
    from chatd.cli.administration import host_credentials as work
    from chatd.cli.api_session import run_command

    run_command(
        server, lambda api: work.remove_credential(api, credential, shared=True, as_json=as_json)
    )
