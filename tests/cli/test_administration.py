"""`chatd admin`: which deployment a command changes, and that it creates none."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from chatd.cli.main import app
from chatd.store.database import migrator

COMMANDS = ["sign-in-link", "create-user ada", "reset-password admin", "rotate-keys", "audit"]
PASSWORD = "a long passphrase\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CHATD_TEST_DATABASE_URL", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def chatd_admin(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["admin", *map(str, arguments)], input=PASSWORD)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("exists", [False, True])
def test_a_directory_without_a_deployment_is_refused_and_stays_as_it_is(
    home: Path, command: str, *, exists: bool
) -> None:
    place = home / "forgotten"
    if exists:
        place.mkdir()
    ended = chatd_admin(*command.split(), "--data-dir", place)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert f"there is no deployment in {place}" in ended.stderr
    assert "--data-dir" in ended.stderr
    assert "chatd serve creates" in ended.stderr
    assert sorted(home.rglob("*")) == ([place] if exists else [])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_without_a_deployment_is_refused_and_stays_empty(
    home: Path, empty_dsn: str, command: str
) -> None:
    ended = chatd_admin(*command.split(), "--data-dir", home, "--database-url", empty_dsn)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "is no database of chatd: no migration was applied to it" in ended.stderr
    assert {one.state for one in asyncio.run(migrator.status(empty_dsn))} == {"pending"}
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_first_which_deployment_it_changes(
    home: Path, dsn: str, command: str
) -> None:
    ended = chatd_admin(*command.split(), "--data-dir", home, "--database-url", dsn)
    assert ended.stderr.splitlines()[0].startswith(f"deployment: {home}, database postgresql://")


def test_the_audit_log_is_printed_filtered_and_exported(home: Path, dsn: str) -> None:
    place = ("--data-dir", home, "--database-url", dsn)
    chatd_admin("create-user", "ada", *place)
    printed = chatd_admin("audit", "--type", "user", "--text", "created", *place).stdout
    assert printed.endswith("  chatd admin create-user created the user ada\n")
    found = chatd_admin("audit", "--type", "user", "--text", "created", "--json", *place).stdout
    entry = msgspec.json.decode(found, type=list[dict[str, object]])[0]
    assert (entry["action"], entry["summary"]) == ("user.create", "created the user ada")
    assert chatd_admin("audit", "--until", "2020-01-01", *place).stdout == ""
    assert "user ada" in chatd_admin("audit", "--until", "9999-12-31", *place).stdout
    exported = chatd_admin("audit", "--csv", "--since", "2020-01-01", *place).stdout
    assert "chatd admin create-user,created the user ada,user.create,user,ada," in exported
    newest = chatd_admin("audit", "--limit", "1", *place).stdout
    assert newest.endswith("  chatd admin audit exported 2 entries of the audit log\n")
    for options, said in {
        ("--since", "soon"): "--since: 'soon' is not a day",
        ("--type", "thing"): "--type: there is no type 'thing'",
        ("--object", "1"): "--object: give its --type too",
        ("--user", "bob"): "there is no user 'bob'",
    }.items():
        refused = chatd_admin("audit", *options, *place)
        assert (refused.exit_code != 0, said in refused.stderr) == (True, True), refused.stderr
