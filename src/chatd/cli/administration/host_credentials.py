"""The work of `chatd credentials`, `chatd admin credentials` and `chatd workspaces network`."""

import getpass
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_request import read_id
from chatd.cli.output import print_json, print_notice, print_table, print_text, short_time
from chatd.cli.workspace_copies import find_workspace
from chatd.client.resources import CredentialedHost, HostCredential, WorkspaceNetwork
from chatd.client.server import ServerApi
from chatd.domain.workspace.network import parse_target

MAX_CREDENTIALS: Final = 1000
MAX_SECRET_FILE_BYTES: Final = 16 * 1024
_HEADINGS: Final = ("HOST", "PATH", "AS", "FOR", "ADDED", "ID")
_REFUSAL_HEADINGS: Final = ("REFUSED", "WHY", "TIMES", "LAST")
_REASONS: Final = {
    "not_allowed": "not allowed by the template",
    "private_address": "its address is not public",
    "wrong_name": "another host over this connection",
    "untrusted_certificate": "a program did not trust the proxy",
    "no_authority": "sent without its credential: stop and start the workspace",
}


def read_new(
    host: str, *, path: str, user: str, header: str, secret_file: Path | None
) -> Mapping[str, object]:
    """What to send, with the secret. Raises UsageProblem."""
    if user and header:
        raise UsageProblem("--user and --header are two ways to send it: give one of them")
    try:
        target = parse_target(host, default_port=443)
    except ValueError as error:
        raise UsageProblem(f"{host!r} {error}") from None
    scheme = "basic" if user else "header" if header else "bearer"
    return {
        "host": target.host,
        "port": target.port,
        "path": path,
        "scheme": scheme,
        "username": user,
        "header": header,
        "secret": read_secret(host, secret_file),
    }


def read_secret(host: str, file: Path | None) -> str:
    """Never from the arguments: other users of the machine can read those of a process."""
    if file is not None and str(file) != "-":
        try:
            with file.open("rb") as opened:
                text = opened.read(MAX_SECRET_FILE_BYTES).decode(errors="replace")
        except OSError as error:
            raise UsageProblem(f"--secret-file: {file}: {error.strerror}") from None
    elif file is None and sys.stdin.isatty():
        text = getpass.getpass(f"Token or password for {host}: ")
    else:
        text = sys.stdin.readline()
    if not text.strip():
        raise UsageProblem("the token or password is empty")
    return text.strip()


async def list_credentials(api: ServerApi, *, shared: bool, as_json: bool) -> None:
    listed = api.list_shared_credentials() if shared else api.list_host_credentials()
    if as_json:
        print_json(await listed.raw_items(MAX_CREDENTIALS))
        return
    now, found = datetime.now(UTC), await listed.items(MAX_CREDENTIALS)
    print_table(_HEADINGS, [credential_row(one, now) for one in found])


def credential_row(one: HostCredential, now: datetime) -> tuple[str, ...]:
    forms = {"basic": f"password of {one.username}", "header": one.header}
    return (
        _address(one.host, one.port),
        one.path,
        forms.get(one.scheme, "bearer token"),
        _users(one.scope, one.group),
        short_time(one.created_at, now),
        str(one.id),
    )


def _address(host: str, port: int) -> str:
    return host if port == 443 else f"{host}:{port}"


def _users(scope: str, group: str | None) -> str:
    if scope == "group":
        return f"the group {group or ''}".strip()
    return "you" if scope == "user" else "all users"


async def add_credential(
    api: ServerApi, new: Mapping[str, object], *, group: str | None, as_json: bool
) -> None:
    """`group` is None for a credential of one's own, empty for all users."""
    if group is None:
        made = api.save_host_credential(new)
    else:
        made = api.save_shared_credential({**new, "group": group})
    raw = await made.raw()
    if as_json:
        print_json(raw)
        return
    saved = msgspec.json.decode(raw, type=HostCredential)
    users = _users(saved.scope, saved.group)
    print_notice(
        f"added for {_address(saved.host, saved.port)}{saved.path}, for {users}. Running workspaces"
        " whose template allows the host use it from now on."
    )


async def remove_credential(api: ServerApi, name: str, *, shared: bool, as_json: bool) -> None:
    listed = api.list_shared_credentials() if shared else api.list_host_credentials()
    known = await listed.items(MAX_CREDENTIALS)
    given = read_id(name)
    found = [one for one in known if one.id == given or _address(one.host, one.port) == name]
    if len(found) != 1:
        which = "there is no credential" if not found else "there are several credentials"
        raise UsageProblem(f"{which} {name!r}; the command list shows their ids")
    (one,) = found
    await (api.delete_shared_credential if shared else api.delete_host_credential)(one.id)
    if as_json:
        print_json({"removed": str(one.id)})
        return
    print_notice(f"removed that of {_address(one.host, one.port)}{one.path}")


async def show_network(api: ServerApi, name: str, *, as_json: bool) -> None:
    asked = api.get_workspace_network((await find_workspace(api, name)).id)
    if as_json:
        print_json(await asked.raw())
        return
    found, now = await asked, datetime.now(UTC)
    print_text(describe_mode(found))
    for host in found.credentials:
        print_text(f"  credential for {describe_host(host)}")
    rows = [
        (
            f"{one.host}:{one.port}",
            _REASONS.get(one.reason, one.reason),
            str(one.count),
            short_time(one.last_at, now),
        )
        for one in found.refusals
    ]
    if rows:
        print_table(_REFUSAL_HEADINGS, rows)
    if found.refusals_unknown:
        print_notice(f"What was refused is not known: {found.refusals_unknown}")


def describe_mode(network: WorkspaceNetwork) -> str:
    match network.mode:
        case "allow":
            return f"It may reach: {', '.join(network.allow) or 'nothing'}"
        case "full":
            return "It may reach everything that its host reaches. No proxy adds credentials."
        case _:
            return "It has no network."


def describe_host(one: CredentialedHost) -> str:
    path = "" if one.path == "/" else one.path
    kind = ", for git" if one.git_only else ""
    return f"{_address(one.host, one.port)}{path} ({_users(one.scope, one.group)}{kind})"
