"""`chatd credentials`, `chatd admin credentials` and `chatd workspaces network`, as processes."""

from pathlib import Path

import msgspec
import pytest

from chatd.cli.administration.host_credentials import describe_host, describe_mode
from chatd.client.resources import CredentialedHost, WorkspaceNetwork
from tests.support.command_line import ServerProcess

pytestmark = pytest.mark.timeout(240)
SECRET = "very-secret-token"


def test_credentials_are_added_listed_and_removed_and_never_printed(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The first one is a process, which reads the secret from its input."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    given = ("--secret-file", file)
    own = server.pipe(SECRET, "credentials", "add", "git.example:8443", "--user", "ada")
    assert "added for git.example:8443/, for you" in own.err
    added = server.done(
        *("admin", "credentials", "add", "npm.example", "--path", "/team", "--json"), *given
    )
    assert msgspec.convert(added.json, dict[str, object])["scope"] == "deployment"
    listed = server.done("credentials", "list")
    assert "git.example:8443" in listed.out
    assert "password of ada" in listed.out
    shared = server.done("admin", "credentials", "list")
    assert shared.out.splitlines()[1].split()[:2] == ["npm.example", "/team"]
    assert "all users" in shared.out
    wrong = server.call("credentials", "add", "https://git.example", *given)
    assert (wrong.code, "git.example" in wrong.err) == (2, True)
    empty = server.call("credentials", "add", "git.example")
    assert (empty.code, "is empty" in empty.err) == (2, True)
    unknown = server.call("credentials", "remove", "npm.example")
    assert (unknown.code, "there is no credential" in unknown.err) == (2, True)
    removed = server.done("admin", "credentials", "remove", "npm.example")
    assert "removed that of npm.example/team" in removed.err
    server.done("credentials", "remove", "git.example:8443", "--json")
    for each in (own, added, listed, shared, wrong, empty, unknown, removed):
        assert SECRET not in each.out + each.err


def test_a_network_is_described_in_a_line() -> None:
    modes = {
        WorkspaceNetwork(mode="none"): "It has no network.",
        WorkspaceNetwork(mode="allow", allow=("a", "b")): "It may reach: a, b",
        WorkspaceNetwork(mode="allow"): "It may reach: nothing",
    }
    assert {each: describe_mode(each) for each in modes} == modes
    hosts = {
        CredentialedHost(host="a", path="/x"): "a/x (you)",
        CredentialedHost(host="a", port=8443, git_only=True): "a:8443 (you, for git)",
        CredentialedHost(host="a", scope="group", group="data"): "a (the group data)",
        CredentialedHost(host="a", scope="deployment"): "a (all users)",
    }
    assert {each: describe_host(each) for each in hosts} == hosts
