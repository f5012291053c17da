"""`chatd admin repositories`, `chatd admin slack` and `chatd slack`: connections are added, listed,
changed, tried and removed, and no token is printed."""

from pathlib import Path

import msgspec
import pytest

from tests.support.command_line import ServerProcess
from tests.support.github_app import new_key, pem_of

pytestmark = pytest.mark.timeout(240)
TOKEN = "github_pat_VerySecret1"
BOT_TOKEN, APP_TOKEN = "xoxb-1234-5678-VerySecret", "xapp-1-A012-3456-VerySecret"


def fields_of(raw: object) -> dict[str, object]:
    return msgspec.convert(raw, dict[str, object])


def add_template(server: ServerProcess, directory: Path, name: str = "app") -> None:
    file = directory / "app.toml"
    file.write_text(
        f'[[templates]]\nname = "{name}"\ndescription = "An app."\n'
        '[templates.spec]\nnetwork = "allow"\nallow = ["git.example.com"]\n'
        '[[templates.parameters]]\nname = "repository"\n'
    )
    server.done("admin", "templates", "create", "--file", file)


def test_connections_to_repositories(server: ServerProcess, tmp_path: Path) -> None:
    add_template(server, tmp_path)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    command = ("admin", "repositories")
    none = server.call(*command, "add", "host", "--vendor", "gitea", "--secret-file", file)
    assert (none.code, "give --repository and --template" in none.err) == (2, True)
    given = ("--host-url", "https://git.example.com", "--repository", "acme/*", "--template", "app")
    added = server.pipe(TOKEN, *command, "add", "Our host", "--vendor", "gitea", *given)
    secret = added.out.strip()
    assert len(secret) >= 32
    assert "/api/v1/repository-connections/" in added.err
    again = server.call(
        *command, "add", "Our host", "--vendor", "gitea", *given, "--secret-file", file
    )
    assert (again.code, "with this name" in again.err) == (1, True)
    listed = server.done(*command, "list")
    assert "https://git.example.com" in listed.out
    assert "acme/*" in listed.out
    changed = server.done(
        *command, "change", "Our host", "--label", "agent", "--allow", "ada", "--disable", "--json"
    )
    shown = fields_of(changed.json)
    assert (shown["label"], shown["allowed"], shown["enabled"]) == ("agent", ["ada"], False)
    nothing = server.call(*command, "change", "Our host")
    assert (nothing.code, "say what to change" in nothing.err) == (2, True)
    unknown = server.call(*command, "events", "Another")
    assert (unknown.code, "there is no connection" in unknown.err) == (2, True)
    events = server.done(*command, "events", "Our host")
    assert events.out.split()[:2] == ["AT", "EVENT"]
    tried = server.call(*command, "test", "Our host")
    assert (tried.code, "cannot be reached" in tried.out) == (1, True)
    removed = server.done(*command, "remove", "Our host")
    assert "removed Our host" in removed.err
    for each in (added, again, listed, changed, events, tried, removed):
        assert TOKEN not in each.out + each.err


def test_a_connection_with_an_app_of_github(server: ServerProcess, tmp_path: Path) -> None:
    add_template(server, tmp_path, "clone")
    file, pem = tmp_path / "app.pem", pem_of(new_key())
    file.write_text(pem)
    command = ("admin", "repositories")
    given = ("--vendor", "github", "--host-url", "https://git.example.com")
    given = (*given, "--repository", "acme/*", "--template", "clone")
    half = server.call(*command, "add", "Our GitHub", *given, "--app-id", "123456")
    assert (half.code, "--app-key-file" in half.err) == (2, True)
    app = ("--app-id", "123456", "--app-key-file", file)
    both = server.call(*command, "add", "Our GitHub", *given, *app, "--secret-file", file)
    assert (both.code, "not both" in both.err) == (2, True)
    added = server.done(*command, "add", "Our GitHub", *given, *app)
    assert len(added.out.strip()) >= 32
    assert "give the App its webhook" in added.err
    listed = server.done(*command, "list", "--json")
    assert '"123456"' in listed.out
    tried = server.call(*command, "test", "Our GitHub")
    assert (tried.code, "cannot be reached" in tried.out) == (1, True)
    file.write_text("no key")
    wrong = server.call(*command, "change", "Our GitHub", *app)
    assert (wrong.code, "not a private key" in wrong.err) == (2, True)
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    changed = server.done(*command, "change", "Our GitHub", "--secret-file", token, "--json")
    assert fields_of(changed.json)["app_id"] is None
    for each in (added, listed, tried, wrong, changed):
        assert pem[100:140] not in each.out + each.err


def test_connections_to_slack(server: ServerProcess, tmp_path: Path) -> None:
    bot, app = tmp_path / "bot", tmp_path / "app"
    bot.write_text(f"{BOT_TOKEN}\n")
    app.write_text(f"{APP_TOKEN}\n")
    files = ("--bot-token-file", bot, "--app-token-file", app)
    command = ("admin", "slack")
    manifest = fields_of(server.done(*command, "manifest").json)
    assert fields_of(manifest["settings"])["socket_mode_enabled"] is True
    swapped = server.call(*command, "add", "Acme", "--bot-token-file", app, "--app-token-file", bot)
    assert (swapped.code, "bot_token" in swapped.err) == (2, True)
    added = server.done(*command, "add", "Acme", *files)
    assert "added Acme" in added.err
    server.done(*command, "change", "Acme", "--disable")
    listed = server.done(*command, "list")
    assert "Acme (disabled)" in listed.out
    changed = server.done(*command, "change", "Acme", "--name", "Inc", "--match-email", "--json")
    shown = fields_of(changed.json)
    assert (shown["name"], shown["match_email"], shown["connected_at"]) == ("Inc", True, None)
    nothing = server.call(*command, "change", "Inc")
    assert (nothing.code, "say what to change" in nothing.err) == (2, True)
    assert server.done(*command, "events", "Inc").out.split()[:2] == ["AT", "EVENT"]
    tried = server.call(*command, "test", "Inc")
    assert (tried.code, "cannot be reached" in tried.out) == (1, True)
    code = server.done("slack", "link")
    assert code.out.startswith("link ")
    assert server.done("slack", "list").out.split()[0] == "ID"
    unknown = server.call("slack", "unlink", "1")
    assert (unknown.code, "there is no link" in unknown.err) == (2, True)
    removed = server.done(*command, "remove", "Inc")
    assert "removed Inc" in removed.err
    for each in (swapped, added, listed, changed, tried, removed):
        assert BOT_TOKEN not in each.out + each.err
        assert APP_TOKEN not in each.out + each.err
